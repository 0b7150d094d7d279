"""hpmoe.rewriting: all that a transform of one's own needs is there, and examples and READMEs import nothing further in."""

import ast
import re
from pathlib import Path

import pytest

import hpmoe
from hpmoe import rewriting
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.rewriting import primitives

ROOT = Path(__file__).parents[2]
PUBLIC = {"hpmoe", "hpmoe.balance", "hpmoe.rewriting", "hpmoe.rewriting.primitives", "hpmoe.testing"}
NAMES = ("Access Buffer Builder Domain Equation Literal Program Stops Taskflow TileOp Var col_modes expected_rows "
         "expected_shares map_equations primitives rebuild requeue row_modes vjp").split()


def test_names_are_the_listed_ones():
    names = [n for n in vars(rewriting) if not n.startswith("_")]
    assert sorted(names) == NAMES


def test_primitives_have_the_names_that_programs_print():
    assert dir(primitives) == sorted(REGISTRY)
    assert all(getattr(primitives, name) is primitive for name, primitive in REGISTRY.items())


def test_help_lists_how_each_primitive_is_written():
    told = primitives.__doc__.split("All of them:\n")[1]
    assert re.findall(r"^    (\w+)\(.*\)$", told, re.MULTILINE) == sorted(REGISTRY)
    assert {"    matmul(x, w, transpose=False)", "    mul(x, y)", "    grouped_matmul(x, w, route, *replicas, transpose=)",
            "    concat(*xs, axis=)"} <= set(told.splitlines())


def test_a_name_that_is_none_is_refused_with_those_like_it():
    with pytest.raises(AttributeError, match=r"'groupd_matmul' is no primitive; did you mean grouped_matmul[ \w,]*\?"):
        _ = primitives.groupd_matmul
    with pytest.raises(ImportError, match="frobnicate"):
        exec("from hpmoe.rewriting.primitives import frobnicate", {})


X, W = hpmoe.ShapeDtypeStruct((4, 3), "float32"), hpmoe.ShapeDtypeStruct((3, 2), "float32")


def test_direction_is_data_of_the_ir_under_any_name_or_rewrite():
    @hpmoe.transform
    def anonymous(ir):
        return ir.replace(name="f")
    @hpmoe.transform(requires="program")
    def remade(program):
        return rewriting.map_equations(program, lambda builder, eqn: None)
    tiles = hpmoe.chain(remade, anonymous, hpmoe.tile_partition(rows=2), anonymous, hpmoe.assign_queues)
    for f in (anonymous(lambda x, w: x @ w), remade(lambda x, w: x @ w), tiles(lambda x, w: x @ w)):
        assert [f.lower(X, W, direction=d).direction for d in ("forward", "backward")] == ["forward", "backward"]


def test_passes_says_which_programs_a_rewrite_gets():
    seen = []

    def note(program):
        seen.append(program.direction)
        return program
    for passes, directions in {None: ["forward"], "forward": ["forward"], "backward": ["backward"],
                               "both": ["forward", "backward"]}.items():
        f = hpmoe.transform(requires="program", passes=passes)(note)(lambda x, w: x @ w)
        texts = [str(f.lower(X, W, direction=d)) for d in ("forward", "backward")]
        assert seen == directions
        assert ["| note" in text for text in texts] == [passes != "backward", passes != "forward"]
        seen.clear()


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
    assert ours and ours <= PUBLIC
