"""Tile operations are defined once: the header that C++ reads is theirs, each has a body, and nobody else names one."""

import ast
import re
from pathlib import Path

import pytest

from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema.headers import FOLDER, HEADERS
from hpmoe.runtime.targets import find_target
from hpmoe.tile_ops import families

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "hpmoe" / "tile_ops"
NAMES = {primitive.name for primitive in PRIMITIVES.values()}
ASKING = sorted(path for folder in ("hpmoe", "transforms", "kernels") for path in (ROOT / folder).rglob("*.py")
                if DEFINITIONS not in path.parents and path.name != "bodies.py")


@pytest.mark.parametrize("name", HEADERS)
def test_a_generated_header_is_made_of_the_definitions(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == HEADERS[name]()


def test_no_other_header_is_called_generated():
    assert {path.name for path in FOLDER.iterdir()} == set(HEADERS)


def test_every_operation_has_a_code_of_its_own_and_a_body_in_numpy():
    assert sorted(PRIMITIVES) == list(range(1, len(PRIMITIVES) + 1))
    assert not [p.name for p in PRIMITIVES.values() if not callable(p.body)]


def test_every_family_is_known():
    """A file of the folder that defines an operation is one of the families."""
    defining = {path.stem for path in DEFINITIONS.glob("*.py") if re.search(
        r"= (TilePrimitive|Product|Transfer)\(", path.read_text(encoding="utf-8"))}
    assert defining == {name for name in vars(families) if not name.startswith("_")}


@pytest.mark.parametrize("target, switches", [
    ("cpu", ["cpu/bodies.cc"]), ("ascend", ["ascendc/tile_bodies.h"])])
def test_a_target_has_the_bodies_that_definitions_say(target, switches):
    """What moves rows or tells of it has no body beside the segments and signals of core; products run on matrix units."""
    text = "".join((ROOT / "kernels" / path).read_text(encoding="utf-8") for path in switches)
    in_switch = {name for name in NAMES if f"case Opcode::{name}:" in text}
    moved = {p.name for p in PRIMITIVES.values() if p.is_remote or p.is_notice}
    products = {p.name for p in PRIMITIVES.values() if p.is_matmul}
    said = find_target(target).bodies.operations
    assert said - moved - products == in_switch - moved - products
    assert products & said == {name for name in products if re.search(rf"Opcode::{name}\b", text)}


def identities(text):
    """Lines of Python that name an operation: by a string, a member of Opcode, or a comparison of an opcode."""
    tree = ast.parse(text)
    statements = (n.value for n in ast.walk(tree) if isinstance(n, ast.Expr))  # docstrings name what they like
    docstrings = {id(n) for n in statements if isinstance(n, ast.Constant)}
    return [node.lineno for node in ast.walk(tree) if id(node) not in docstrings and names_one(node)]


def names_one(node):
    match node:
        case ast.Constant(value=str(value)):
            return value in NAMES
        case ast.Attribute(value=ast.Name(id="Opcode"), attr=name):
            return name in NAMES
        case ast.Compare(left=left, comparators=others):
            return any(isinstance(side, ast.Attribute) and side.attr == "opcode" for side in (left, *others))
    return False


@pytest.mark.parametrize("text, lines", [
    ('if op.opcode == name:\n    pass', [1]),
    ('x = 1\nif name in op.opcode or op.opcode in names:\n    pass', [2, 2]),
    ('"""PUT"""\nlabel = "PUT"', [2]),
    ('kind = Opcode.GMM', [1]),
    ('def f():\n    "GMM"\n    return op.primitive.is_matmul', []),
    ('print(op.opcode, Opcode(4).name)', []),
])
def test_naming_an_operation_is_noticed(text, lines):
    assert identities(text) == lines


@pytest.mark.parametrize("path", ASKING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nobody_but_the_definitions_names_an_operation(path):
    assert not identities(path.read_text(encoding="utf-8"))
