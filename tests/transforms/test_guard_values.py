"""guard_values: what is out of range is counted and raised or replaced, in every runtime; the rest is as without a guard."""

import functools

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, jax_vjp, run_spmd, some_stages, stages, tensors
from jax import numpy as jnp
from mindspore import mint
from router_layers import arguments, side_by_side, two_layers

import hpmoe
from hpmoe import LaunchError, guard_values
from hpmoe.primitives.guard import LARGEST
from hpmoe.testing import assert_same

BAD = (np.nan, np.inf, -np.inf, 7.0, -8.0)
LAYER = Layer(ep=2, T=5, H=4)


def bad_rows(seed=3, share=0.2):
    """[ep, T, H], of which some are bad, a whole row too."""
    rng = np.random.default_rng(seed)
    x = np.clip(LAYER.arguments()[0], -2, 2)
    x[rng.random(x.shape) < share] = rng.choice(BAD)
    x[0, 1] = np.nan
    x[1, 2, :2] = BAD[:2]
    return x


def filled(x, fill, low=-3.0, high=3.0):
    """The oracle, in JAX."""
    fine = (x >= low) & (x <= high)
    clean = jnp.where(fine, x, 0)
    mean = clean.sum(-1, keepdims=True) / jnp.maximum(fine.sum(-1, keepdims=True), 1)
    return jnp.where(fine, x, mean if fill == "mean" else 0)


@pytest.mark.parametrize("fill", ["zero", "mean"])
@pytest.mark.parametrize("stage", stages())
def test_rows_and_gradients_are_those_of_replaced_values(stage, fill):
    x = bad_rows()
    cotangent = LAYER.cotangent()

    def f(x, w):
        return (x * 2.0) @ w
    w = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    want = jax_vjp(lambda x, w: jnp.einsum("rth,rhn->rtn", filled(x, fill) * 2.0, w), [x, w], cotangent, (0, 1))
    counts = {}
    guarded = stages()[stage](guard_values(f, of=("x",), low=-3.0, high=3.0, fill=fill, counts=counts))
    got = run_spmd(guarded, 2, [x, w], [cotangent], positions=(0, 1))
    assert_close([*got[0], *got[1]], [want[0], *want[1]])
    assert counts == {"x": int((~((x >= -3) & (x <= 3))).sum())}


@pytest.mark.parametrize("stage", stages())
def test_a_layer_without_anything_wrong_is_bitwise_as_before(stage):
    args, cotangent = LAYER.arguments(), LAYER.cotangent()
    counts = {}
    plain = run_spmd(stages()[stage](hpmoe.moe_ffn), 2, args, [cotangent])
    guarded = run_spmd(stages()[stage](guard_values(hpmoe.moe_ffn, counts=counts)), 2, args, [cotangent])
    for got, want in zip([*guarded[0], *guarded[1]], [*plain[0], *plain[1]], strict=True):
        np.testing.assert_array_equal(got, want)
    assert counts == {"hidden_states": 0, "topk_weights": 0, "output": 0}


def test_a_guard_that_raises_only_reads():
    args = [hpmoe.ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in LAYER.arguments()]
    looks = guard_values(hpmoe.moe_ffn)
    lowered = looks.lower(*args)
    names = [eqn.primitive.name for eqn in lowered.equations]
    assert names.count("count_outside") == 3 and "fill_outside" not in names
    backward, plain = (hpmoe.save_for_backward(f, policy="everything").lower(*args, direction="backward")
                       for f in (looks, hpmoe.moe_ffn))
    assert str(backward).splitlines()[1:] == str(plain).splitlines()[1:]


def test_drops_are_decided_by_the_given_weights():
    avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in LAYER.arguments()]
    layer = functools.partial(hpmoe.moe_ffn, capacity_factor=0.5, drop_policy="probs")
    program = guard_values(lambda *args: layer(*args), fill="zero").lower(*avals)
    (route,) = [e for e in program.equations if e.primitive.name == "route"]
    assert len(route.inputs) == 2 and set(route.inputs) <= set(program.inputs)


@pytest.mark.parametrize("name", ["hidden_states", "topk_weights", "gate_up_weight"])
@pytest.mark.parametrize("stage", ["tiles", "fused"])
def test_what_is_wrong_is_raised_by_name_rank_and_row(name, stage):
    args = LAYER.arguments()
    args[["hidden_states", "", "topk_weights", "gate_up_weight"].index(name)][1, 1, 0] = np.nan
    f = hpmoe.spmd(stages()[stage](guard_values(hpmoe.moe_ffn, of=(name,))), hpmoe.Mesh(2))
    with pytest.raises(LaunchError, match=rf"{name} of moe_ffn has \d value.* the first in row \d+ of rank 1"):
        f(*tensors(args))


def test_an_output_that_overflows_is_raised_and_counts_add_up():
    counts = {}
    f = stages()["fused"](guard_values(lambda x: mint.exp(x), of=("output",), counts=counts))
    for times in (1, 2):
        with pytest.raises(LaunchError, match="output of <lambda> has 2 values that are NaN, infinite"):
            f(ms.Tensor([[1.0, 200.0], [300.0, 0.0]]))
        assert counts == {"output": 2 * times}


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(dtype):
    x = ms.Tensor(np.array([[1.0, np.nan, 2.0], [np.inf, 3.0, 5.0]], np.float32)).astype(dtype)
    f = stages()["fused"](guard_values(lambda x: x * 1.0, fill="mean", of=("x",)))
    assert f(x).astype(ms.float32).asnumpy().tolist() == [[1.0, 1.5, 2.0], [4.0, 3.0, 5.0]]
    assert f(x).dtype == dtype


@pytest.mark.parametrize("low, high", [(None, None), (-1.0, 1.0), (0.0, 2.0), (-2.0, -0.0), (0.0, 0.0), (1.001, 1.002),
                                       (-1.001, 3.3), (-1e-40, 1e-40), (3.0e38, None)])
def test_every_bfloat16_is_in_a_range_or_not(low, high):
    """Row by row of neighbours, so that some rows are all inside, and some are cut by an end of the range."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    values = bits.view(np.float32)
    limits = [np.float32(limit) for limit in (-LARGEST if low is None else low, LARGEST if high is None else high)]
    is_inside = (values >= limits[0]) & (values <= limits[1])
    counts, x = {}, ms.Tensor(values.reshape(512, 128)).astype(ms.bfloat16)
    guarded = stages(rows=64, cols=128)["fused"](
        guard_values(lambda x: x * 1.0, of=("x",), low=low, high=high, fill="zero", counts=counts))
    out = guarded(x).astype(ms.float32).asnumpy().reshape(-1)
    assert counts == {"x": int((~is_inside).sum())}
    normal = np.abs(values) >= np.finfo(np.float32).tiny  # products of the rest may be rounded to zero
    np.testing.assert_array_equal(out[normal], np.where(is_inside, values, 0)[normal])


@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_a_row_is_one_of_the_last_dimension(fill):
    """A token with several heads has several such rows."""
    x = bad_rows()

    def f(x):
        return x.reshape(-1, 2, 2) * 2.0
    counts, cotangent = {}, np.ones((2, 5, 2, 2), np.float32)
    guarded = guard_values(f, of=("output",), low=-3.0, high=3.0, fill=fill, counts=counts)
    want = jax_vjp(lambda x: filled(2 * x.reshape(2, 5, 2, 2), fill), [x], cotangent, (0,))
    got = run_spmd(stages()["fused"](guarded), 2, [x], [cotangent], positions=(0,))
    assert_close([*got[0], *got[1]], [want[0], *want[1]])
    assert counts["output"] == int((~(abs(2 * x) <= 3)).sum())


def test_padding_is_not_counted():
    args, counts = LAYER.arguments(), {}
    args[0][1, 3:] = np.nan
    guarded = guard_values(hpmoe.moe_ffn, of=("hidden_states", "output"), counts=counts)
    f = hpmoe.spmd(stages()["fused"](guarded), hpmoe.Mesh(2))
    f(*tensors(args), num_tokens=[5, 3])
    assert counts == {"hidden_states": 0, "output": 0}


def test_it_computes_the_same_as_far_as_all_is_fine():
    avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in LAYER.arguments()]
    assert_same(guard_values(fill="mean"), hpmoe.moe_ffn, avals, hpmoe.Mesh(2), orders=2)


def num_calls(fill):
    """MindSpore takes three seconds over each error in a graph."""
    return 2 if fill == "raise" else 3


@pytest.mark.parametrize("fill", ["mean", *(pytest.param(fill, marks=pytest.mark.slow) for fill in ("zero", "raise"))])
def test_in_a_compiled_graph(fill):
    """Counts and errors are those of PyNative, call by call, and a graph that raised goes on."""
    counts, x, fine = {}, ms.Tensor(bad_rows()), ms.Tensor(np.zeros((2, 5, 4), np.float32))
    guarded = guard_values(lambda x: mint.exp(x), low=-3.0, high=3.0, fill=fill, counts=counts)
    f, seen = hpmoe.spmd(stages()["fused"](guarded), hpmoe.Mesh(2)), []

    def loss(x):
        return (f(x) * 2.0).sum()
    eager = ms.value_and_grad(loss)
    with_grads = (ms.jit(eager), ms.value_and_grad(ms.jit(loss)), eager)
    for run in with_grads if fill != "raise" else (ms.jit(loss), loss):  # an error inside ms.grad leaves MindSpore in it
        for given in (x, fine, x)[:num_calls(fill)]:
            counts.clear()
            try:
                results = run(given)
                result = [a.asnumpy().tolist() for a in (results if isinstance(results, tuple) else (results,))]
            except LaunchError as error:
                result = str(error)
            seen.append((result, dict(counts)))
    assert seen[:num_calls(fill)] * (len(seen) // num_calls(fill)) == seen
    assert isinstance(seen[0][0], str) == (fill == "raise") and seen[0][1]["x"] and seen[1][1] == {"x": 0, "output": 0}


def test_computed_routing_weights_are_guarded_layer_by_layer():
    """A router's weight that is NaN makes all weights of its layer NaN, and no other's."""
    args = arguments(LAYER, 2)
    args[4][1, :, 1] = np.inf
    counts = {}
    guarded = guard_values(side_by_side, fill="zero", counts=counts)
    hpmoe.spmd(stages()["fused"](guarded), hpmoe.Mesh(2))(*tensors(args))
    assert counts == {"x": 0, "routing_weights 0": 0, "routing_weights 1": LAYER.T * 3, "output": 0}
    raising = hpmoe.spmd(stages()["fused"](guard_values(two_layers)), hpmoe.Mesh(2))
    with pytest.raises(LaunchError, match=r"routing_weights 1 of two_layers has \d+ values .* the first in row 0 of rank 1"):
        raising(*tensors(args))


def test_what_layers_take_and_return_is_guarded_by_name():
    args, counts = arguments(LAYER, 2), {}
    args[3][0] *= 1e30
    of = ("layer_input", "layer_output")
    run = hpmoe.spmd(stages()["plain"](guard_values(two_layers, of=of, high=1e9, low=-1e9, fill="zero", counts=counts)),
                     hpmoe.Mesh(2))
    assert np.isfinite(run(*tensors(args)).asnumpy()).all()
    assert counts.pop("layer_output 0") > 0 and counts == {"layer_output 1": 0, "layer_input 1": 0}


@pytest.mark.parametrize("weighted, dtype, fill", [
    (True, ms.float32, "zero"), (False, ms.float32, "mean"), (True, ms.bfloat16, "mean"), (False, ms.float16, "zero")])
def test_the_sum_of_expert_rows_is_checked_where_it_is_made(weighted, dtype, fill):
    """One task sums and checks the stored values, and other values stay bitwise equal."""
    def f(x, ids, w):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
        return hpmoe.combine(rows * 2.0, route, *[w] * weighted)
    layer, counts, x = Layer(ep=2, T=5, H=20), {}, np.random.default_rng(2).standard_normal((2, 5, 20))
    x[1, 2, 3], x[0, 4, 7] = np.nan, 9e3
    args = [ms.Tensor(x, ms.float32).astype(dtype), *tensors(layer.arguments()[1:3])]
    guarded = guard_values(f, of=("output",), low=-1.0, high=2.0, fill=fill, counts=counts)
    avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in args]
    assert stages()["tiles"](guarded).lower(*avals, mesh=hpmoe.Mesh(2)).ops[-1].opcode == "REDUCE_AND_FILL"
    for stage in some_stages(fill == "mean"):
        plain, looks = (hpmoe.spmd(stages()[stage](g), hpmoe.Mesh(2)) for g in (f, guarded))
        for num_tokens in (None, [5, 3]):
            counts.clear()
            want, got = (run(*args, num_tokens=num_tokens).astype(ms.float32).asnumpy() for run in (plain, looks))
            is_fine = (want >= -1) & (want <= 2)
            np.testing.assert_array_equal(got[is_fine], want[is_fine])
            np.testing.assert_allclose(got, filled(want, fill, -1.0, 2.0), rtol=1e-2 if dtype != ms.float32 else 1e-6)
            assert counts == {"output": int((~is_fine).sum())} and counts["output"] > 9
