"""`Any` is for what MindSpore, or a user, may hand in as anything: no folder has more uses of it than it has reasons for."""

import ast
import collections

import pytest
from test_layering import ROOT, SOURCES

# Uses by folder at most, and for what; one that is not named has none. A change that leaves fewer takes the number down.
MOST = {
    "hpmoe": 1,  # what a call returns: an output, or one with counts
    "hpmoe/ir": 8,  # params of primitives, IR of whatever level, shapes as a user gives them
    "hpmoe/nn": 1,  # arrays of NumPy, MindSpore or PyTorch
    "hpmoe/primitives": 2,  # rules, of what their question says
    "hpmoe/runtime": 4,  # MindSpore's autograd contexts
    "hpmoe/support": 28,  # what MindSpore keeps private, JSON, and the trees of users
    "hpmoe/tile_ops": 6,  # bodies, of whatever params their operation has
    "hpmoe/tracing": 5,  # what MindSpore hands over of a call
    "transforms": 2,  # IR of whatever target, options that are passed on
    "kernels": 3,  # MindSpore's autograd contexts
    "kernels/ascendc": 11,  # objects of the device's module
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
