"""assert_rewrite and the parser of programs: texts before and after, forward and backward."""

import hypothesis
import pytest
from helpers import avals_of
from variants import VARIANTS, arguments

import hpmoe
from hpmoe import ArgumentError, Mesh, ShapeDtypeStruct, chain, moe_ffn, tile_partition, trace
from hpmoe.rewriting import map_equations, primitives
from hpmoe.testing import assert_rewrite, strategies
from hpmoe.testing.program_parser import parse_program

X = ShapeDtypeStruct((4, 3), "float32")


@hpmoe.transform(requires="program", passes="backward")
def scaled_grads(program, *, by=0.5):
    """combine rows route -> combine (mul rows by) route, of the backward program alone."""
    def rule(builder, eqn):
        if eqn.primitive is primitives.combine:
            rows, *others = eqn.inputs
            return [builder.add(eqn.primitive, builder.add(primitives.mul, rows, by), *others)]
    return map_equations(program, rule)


BEFORE = """
    # mine_vjp
    { lambda ids:i32[4,1] saved_0:f32[R,3] d_out:f32[4,3]
      let a:route[R]  = route[num_local_experts=2 ep_size=2] ids
          b:f32[R,3]  = dispatch d_out a
          c:f32[R,3]  = mul b saved_0
          d:f32[4,3]  = combine c a
      in (d,) : f32[4,3] }"""
AFTER = """
    { lambda ids:i32[4,1] saved_0:f32[R,3] d_out:f32[4,3]
      let a:route[R]  = route[num_local_experts=2 ep_size=2] ids
          b:f32[R,3]  = dispatch d_out a
          c:f32[R,3]  = mul b saved_0
          d:f32[R,3]  = mul c 0.25
          e:f32[4,3]  = combine d a
      in (e,) : f32[4,3] }"""


def test_the_backward_program_alone_as_a_text():
    assert_rewrite(scaled_grads(by=0.25), BEFORE, AFTER, direction="backward")
    assert_rewrite(chain(scaled_grads(by=0.25)), parse_program(BEFORE, "backward"), AFTER)
    assert_rewrite(scaled_grads, BEFORE, BEFORE)  # the text of a forward program, which stays as it is


def test_the_difference_is_shown():
    with pytest.raises(AssertionError) as caught:
        assert_rewrite(scaled_grads(by=0.3), BEFORE, AFTER, direction="backward")
    text = str(caught.value)
    assert text.startswith("assert_rewrite: scaled_grads(by=0.3) makes another text.\n")
    assert "\n-d:f32[R,3] = mul c 0.25\n+d:f32[R,3] = mul c 0.3\n" in text
    with pytest.raises(AssertionError, match="makes another text"):
        assert_rewrite(scaled_grads, BEFORE, BEFORE, direction="backward")


def test_a_function_and_its_arguments():
    grads = (moe_ffn, [ShapeDtypeStruct(*a) for a in (((4, 2), "float32"), ((4, 1), "int32"), ((4, 1), "float32"),
                                          ((1, 2, 6), "float32"), ((1, 3, 2), "float32"))])
    made = str(scaled_grads(moe_ffn).lower(*grads[1], mesh=Mesh(2), direction="backward"))
    assert "= mul" in made and made.startswith("# moe_ffn_vjp | scaled_grads(by=0.5)")
    assert_rewrite(scaled_grads, grads, made, mesh=Mesh(2), direction="backward")
    tiles = str(tile_partition(hpmoe.swiglu, rows=2).lower(ShapeDtypeStruct((4, 2), "float32")))
    assert_rewrite(tile_partition(rows=2), (hpmoe.swiglu, [ShapeDtypeStruct((4, 2), "float32")]), tiles)
    by_peer = chain(tile_partition(rows=2), hpmoe.overlap_comm(signal="peer"))
    assert_rewrite(by_peer, grads, str(by_peer(moe_ffn).lower(*grads[1], mesh=Mesh(2))), mesh=Mesh(2))
    with pytest.raises(AssertionError, match=r"\+taskflow swiglu ranks=1 tasks=2"):
        assert_rewrite(hpmoe.overlap_comm, (hpmoe.swiglu, [ShapeDtypeStruct((4, 2), "float32")]), "")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_program_is_read_as_it_is_printed(name):
    f = VARIANTS[name][0]
    program = trace(f, *avals_of(arguments(f)), mesh=Mesh(2))
    for one in (program, hpmoe.rewriting.vjp(program)):
        read = parse_program(str(one), one.direction)
        assert (str(read), read.direction) == (str(one), one.direction)
        assert read.ep_size == (one.ep_size if "= route" in str(one) else 1)


@hypothesis.settings(max_examples=10, derandomize=True)
@hypothesis.given(strategies.layers(dtypes=("float32", "bfloat16", "float16")))
def test_programs_of_any_layer_are_read(layer):
    program = trace(layer.f, *layer.avals, mesh=layer.mesh)
    for one in (program, hpmoe.rewriting.vjp(program)):
        assert str(parse_program(str(one), one.direction)) == str(one)


@pytest.mark.parametrize("before, words", [
    ("a = b", "the text of a program begins with"),
    ("{ lambda x:f32[3]\n let a:f32[3] = ad x 1.0\n in (a,) : f32[3] }", "'a:f32\\[3\\] = ad x 1.0' is no equation"),
    ("{ lambda x:f32[3]\n let a:f32[3] = add y 1.0\n in (a,) : f32[3] }", "'y' is no variable"),
    ("{ lambda x:f32[3]\n let a:f32[3] = add x\n in (a,) : f32[3] }", "missing a required argument: 'y'"),
    (3, "before is 3; it must be the text of a Program")])
def test_what_is_no_program_is_refused(before, words):
    with pytest.raises(ArgumentError, match=words):
        assert_rewrite(scaled_grads, before, "")


def test_what_is_written_of_another_type_is_refused():
    with pytest.raises(hpmoe.ProgramError, match=r"has outputs \(f32\[4\],\), its shape rule gives \(f32\[3\],\)"):
        assert_rewrite(scaled_grads, "{ lambda x:f32[3]\n let a:f32[4] = add x 1.0\n in (a,) : f32[4] }", "")
