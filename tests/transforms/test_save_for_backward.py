"""save_for_backward: every policy gives bitwise the gradients of every other, and saves what it says."""

import pytest
from helpers import Layer, assert_close, bitwise_equal, nothing, numpy_moe_ffn, run_spmd, stages, tensors
from mindspore import mint
from variants import LAYER, VARIANTS, arguments, cotangents_of, differentiable

import hpmoe
from hpmoe import ShapeDtypeStruct, save_for_backward, spmd
from hpmoe.autodiff.vjp import linearize
from hpmoe.ir.program import Literal


def matmuls(eqn):
    return eqn.primitive.name in ("grouped_matmul", "matmul")


def narrow(eqn):
    shape = eqn.outputs[0].aval.shape
    return len(shape) > 0 and shape[-1] == 3


ONLY_SOME = "recompute_swiglu", "dispatched_rows", matmuls, narrow
POLICIES = "everything", *ONLY_SOME, nothing


def assert_policies_change_nothing(f, args, cotangents, stage, num_tokens=None, policies=POLICIES):
    ep, positions = args[0].shape[0], differentiable(args)

    def run(g):
        outs, grads = run_spmd(stages()[stage](g), ep, args, cotangents, num_tokens, positions=positions)
        return [*outs, *grads]

    plain = run(f)
    for policy in policies:
        assert bitwise_equal(run(save_for_backward(f, policy=policy)), plain), policy
    return plain


@pytest.mark.parametrize("i, name", [*enumerate(VARIANTS)])
def test_gradients_of_variants_are_those_without_a_policy(i, name):
    f, in_jax = VARIANTS[name]
    args = arguments(f, LAYER)
    cotangents = cotangents_of(in_jax, args)
    assert_policies_change_nothing(f, args, cotangents, "plain", policies=(nothing, ONLY_SOME[i % len(ONLY_SOME)]))
    assert_policies_change_nothing(f, args, cotangents, "fused", (2, 4), policies=(("dispatched_rows", nothing)[i % 2],))


@pytest.mark.parametrize("i, stage", [*enumerate(stages())])
def test_gradients_at_every_stage(i, stage):
    """All policies in the plain function and the kernel, on different layers; some at the stages between."""
    for j, layer in enumerate((Layer(ep=3, T=5, E=6, num_tokens=(5, 0, 3)), Layer(ep=2, T=7, K=4, routing="one expert"))):
        args, cotangent = layer.arguments(), layer.cotangent()
        policies = POLICIES if (stage, j) in (("plain", 1), ("fused", 0)) else (ONLY_SOME[(i + j) % len(ONLY_SOME)],)
        got = assert_policies_change_nothing(hpmoe.moe_ffn, args, [cotangent], stage, layer.num_tokens, policies)
        want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
        assert_close(got, [want, *want_grads])


AVALS = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in Layer(ep=1).arguments()]


def saved_by(f, policy, avals=AVALS):
    """Names of the primitives whose results the forward saves."""
    program = save_for_backward.apply_to(hpmoe.trace(f, *avals), policy=policy)
    made_by = {v: e.primitive.name for e in program.equations for v in e.outputs}
    return [made_by[v] for v in linearize(program).forward.outputs[len(program.outputs):]]


def test_what_each_policy_saves_of_moe_ffn():
    assert saved_by(hpmoe.moe_ffn, "everything") == ["dispatch", "grouped_matmul", "swiglu"]
    assert saved_by(hpmoe.moe_ffn, "recompute_swiglu") == ["dispatch", "grouped_matmul"]
    assert saved_by(hpmoe.moe_ffn, "dispatched_rows") == ["dispatch"]
    assert saved_by(hpmoe.moe_ffn, nothing) == []
    assert saved_by(hpmoe.moe_ffn, matmuls) == ["grouped_matmul"]


def test_recompute_swiglu_saves_what_other_work_makes_of_tokens():
    def f(x, w):
        return hpmoe.swiglu(mint.tanh(x @ w) @ w) @ w[:2]

    avals = ShapeDtypeStruct((5, 4), "float32"), ShapeDtypeStruct((4, 4), "float32")
    assert saved_by(f, "recompute_swiglu", avals) == ["tanh", "matmul", "slice"]


@pytest.mark.parametrize("name", ["split_silu", "geglu", "three_matmuls", "softmax_inside", "dense_on_received_rows"])
def test_activations_are_what_recompute_swiglu_recomputes(name):
    f, _ = VARIANTS[name]
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in arguments(f, LAYER)]
    program = hpmoe.trace(f, *avals, mesh=hpmoe.Mesh(LAYER.ep))
    saved = save_for_backward.apply_to(program, policy="recompute_swiglu")
    made_by = {v: e.primitive.name for e in program.equations for v in e.outputs}
    names = {made_by[v] for v in linearize(saved).forward.outputs[1:]}
    assert names - {"matmul"} == {"dispatch", "grouped_matmul"} and ("matmul" in names) == (name == "dense_on_received_rows")


def test_the_backward_of_a_policy_reads_no_more_than_it_is_given():
    program = save_for_backward.apply_to(hpmoe.trace(hpmoe.moe_ffn, *AVALS), policy=nothing)
    backward = hpmoe.rewriting.vjp(program)
    assert backward.input_names == (*program.input_names[:1], "topk_ids", "topk_weights", "gate_up_weight", "down_weight",
                                    "d_out")
    assert [e.primitive.name for e in backward.equations][:4] == ["route", "dispatch", "grouped_matmul", "swiglu"]
    read = {a for e in backward.equations for a in e.inputs if not isinstance(a, Literal)} | set(backward.outputs)
    unread = [v for e in backward.equations for v in e.outputs if v not in read]
    assert unread == []


def test_the_policy_is_asked_once_of_each_equation_but_routes():
    asked = []

    def policy(eqn):
        asked.append(eqn.primitive.name)
        return True

    f = save_for_backward(hpmoe.moe_ffn, policy=policy)
    for direction in ("forward", "backward", "backward"):
        f.lower(*AVALS, direction=direction)
    assert asked == ["dispatch", "grouped_matmul", "swiglu", "grouped_matmul", "combine"]


def test_the_policy_is_in_the_text_of_both_directions():
    for stage in stages().values():
        f = stage(save_for_backward(hpmoe.moe_ffn, policy=nothing))
        for direction, name in (("forward", "moe_ffn"), ("backward", "moe_ffn_vjp")):
            first = str(f.lower(*AVALS, direction=direction)).splitlines()[0]
            assert first.startswith(f"# {name} | save_for_backward(policy=nothing)")
            assert first.count("save_for_backward") == 1


def test_saving_less_keeps_less_between_the_passes():
    layer = Layer(ep=2, T=6)
    args = tensors(layer.arguments())
    sizes = {}
    for policy in ("everything", "recompute_swiglu", "dispatched_rows", nothing):
        f = spmd(stages()["fused"](save_for_backward(hpmoe.moe_ffn, policy=policy)), hpmoe.Mesh(2))
        flow = f.lower(*args, direction="backward").flow
        sizes[policy] = sum(b.cols for b in flow.buffers if b.name.startswith("saved"))
    assert sizes == {"everything": 4 + 6 + 3, "recompute_swiglu": 4 + 6, "dispatched_rows": 4, nothing: 0}


@hpmoe.transform(requires="program")
def renamed(program):
    return program.replace(name=program.name + "_x")


def test_a_program_transform_comes_after():
    f = renamed(save_for_backward(hpmoe.swiglu, policy=nothing))
    assert str(f.lower(ShapeDtypeStruct((3, 4),
                                        "float32"))).startswith("# swiglu_x | save_for_backward(policy=nothing) | renamed")
    assert save_for_backward(renamed(hpmoe.swiglu)).level == "program"
