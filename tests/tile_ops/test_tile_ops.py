"""Tile operations are defined once: the header that C++ reads is theirs, each has a body, and no other code names one."""

import ast
import re
import types
from pathlib import Path

import pytest

from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema import bodies
from hpmoe.kernels.schema.headers import FOLDER, HEADERS
from hpmoe.runtime.targets import find_target

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "hpmoe" / "tile_ops"
NAMES = {primitive.name for primitive in PRIMITIVES.values()}
ASKING = sorted(path for folder in ("hpmoe", "transforms", "kernels") for path in (ROOT / folder).rglob("*.py")
                if DEFINITIONS not in path.parents and path != ROOT / "kernels" / "ascendc" / "bodies.py")
CPP = sorted(path for folder in ("core", "cpu", "ascendc", "link", "simulator")
             for path in (ROOT / "kernels" / folder).rglob("*")
             if path.suffix in (".h", ".cc", ".cpp", ".asc") and path.parent != FOLDER)


@pytest.mark.parametrize("name", HEADERS)
def test_a_generated_header_is_made_of_the_definitions(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == HEADERS[name]()


def test_no_other_header_is_called_generated():
    assert {path.name for path in FOLDER.iterdir()} == set(HEADERS)


def test_every_operation_has_its_own_code_and_a_numpy_body():
    assert sorted(PRIMITIVES) == list(range(1, len(PRIMITIVES) + 1))
    assert not [p.name for p in PRIMITIVES.values() if not callable(p.body)]


@pytest.mark.parametrize("unit, declaration", [("aiv", "void {}(VectorUnit& unit, const Frame& frame)"),
                                               ("aic", "Product {}(const Frame& frame)")])
def test_an_operation_without_a_body_on_ascend_is_left_out(unit, declaration):
    """A body of an operation that the capability table leaves out would never run."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kernels" / "ascendc").glob("*.h"))
    written = {p.name for p in PRIMITIVES.values() if p.outputs and p.unit == unit
               and f"inline {declaration.format(p.name.lower())} {{" in sources}
    said = find_target("ascend").bodies.operations
    assert written == {p.name for p in PRIMITIVES.values() if p.outputs and p.unit == unit and p.name in said}


def test_a_body_that_is_not_written_is_named():
    primitive = types.SimpleNamespace(name="MEDIAN", outputs=(None,))
    with pytest.raises(LookupError, match=r"MEDIAN: 0 headers of .*; expected 1\. Write this body, or leave MEDIAN out in "):
        bodies._file_of(primitive, bodies.VECTOR_BODY.format("median"))


def test_no_cpp_source_names_an_operation():
    """Generated switches and facts name operations."""
    found = {str(path): re.findall(r"Opcode::\w+", path.read_text(encoding="utf-8")) for path in CPP}
    assert len(found) > 200 and not {path: names for path, names in found.items() if names}


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


def test_nobody_but_the_definitions_names_an_operation():
    found = {str(path): identities(path.read_text(encoding="utf-8")) for path in ASKING}
    assert len(found) > 300 and not {path: lines for path, lines in found.items() if lines}
