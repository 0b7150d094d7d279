"""`Any` is for what MindSpore, or a user, may hand in as anything: no folder has more uses of it than it is known to."""

import ast
import collections

import pytest
from test_layering import ROOT, SOURCES

# Uses by folder at most; one that is not named has none. A change that leaves fewer takes the number down.
MOST = {
    "hpmoe": 1, "hpmoe/bring_up": 20, "hpmoe/calibration": 5,
    "hpmoe/commands": 35, "hpmoe/ir": 9, "hpmoe/machines": 5,
    "hpmoe/mindformers": 16, "hpmoe/nn": 1, "hpmoe/peers": 4, "hpmoe/primitives": 2, "hpmoe/ranks": 3,
    "hpmoe/routing": 1, "hpmoe/runtime": 14, "hpmoe/support": 44, "hpmoe/testing": 46, "hpmoe/tile_ops": 6,
    "hpmoe/timelines": 3, "hpmoe/tracing": 6, "hpmoe/tuning": 40, "kernels": 46, "transforms": 2,
}


def uses_of(text):
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(ast.parse(text)))


def found():
    counts = collections.Counter()
    for path, text in SOURCES.values():
        counts[str(path.relative_to(ROOT).parent)] += uses_of(text)
    return +counts


def test_any_is_used_no_more_than_it_was():
    over = {folder: uses for folder, uses in found().items() if uses > MOST.get(folder, 0)}
    assert not over, "use the type that it is, or a name of hpmoe.support.trees for what a user may hand in"


@pytest.mark.parametrize("text, uses", [
    ("x: Any = 1", 1), ("def f(*args: Any) -> list[Any]: ...", 2), ("from typing import Any", 0)])
def test_uses_are_counted(text, uses):
    assert uses_of(text) == uses
