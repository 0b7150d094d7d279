"""hpmoe.rewriting: all that a transform of one's own needs is there, and examples and READMEs import nothing further in."""

import ast
import re
from pathlib import Path

import pytest

import hpmoe
from hpmoe import rewriting
from hpmoe.primitives.primitive import REGISTRY, Primitive

ROOT = Path(__file__).parents[2]
OTHERS = ("Access Buffer Builder Domain Equation Literal Program Taskflow TileOp col_modes map_equations rebuild "
          "row_modes").split()


def test_every_primitive_is_there_by_one_name():
    primitives = {name: value for name, value in vars(rewriting).items() if isinstance(value, Primitive)}
    assert sorted(p.name for p in primitives.values()) == sorted(REGISTRY)


def test_all_else_is_listed():
    names = [n for n, v in vars(rewriting).items() if not n.startswith("_") and not isinstance(v, Primitive)]
    assert sorted(names) == OTHERS and rewriting.Program is hpmoe.Program and rewriting.Taskflow is hpmoe.Taskflow


def code_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    return "\n".join(re.findall(r"^>>> ((?:from|import) .*)", text, re.MULTILINE))


READ = [ROOT / "README.md", ROOT / "transforms" / "README.md", *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_read_imports_public_names(path):
    imported = {node.module for node in ast.walk(ast.parse(code_of(path))) if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in ast.walk(ast.parse(code_of(path))) if isinstance(node, ast.Import) for a in node.names}
    ours = {name for name in imported if name.split(".")[0] == "hpmoe"}
    assert ours and ours <= {"hpmoe", "hpmoe.rewriting"}
