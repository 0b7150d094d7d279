"""Every value that a half-precision chain stores is the rounding of its equation's result, in the kernel and the
interpreter.

The oracle takes the values as they were stored and computes each equation alone, in float64. What is stored may only be what
some number within CLOSE of the exact one rounds to: float32 sums come in another order, and only where that number is so
near to the middle between two neighbours do both of them pass. No rounding of an earlier value is in the way.
"""

import functools

import mindspore as ms
import numpy as np
import pytest
from helpers import HALVES, TIMEOUT, Layer, U, avals_of, dtype_names, in_dtype, run_spmd, stages
from mindspore import Tensor, mint

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, moe_ffn, overlap_comm, tile_partition, trace
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import Var
from hpmoe.kernels.cpu.target import CPU
from hpmoe.support.dtypes import dtype_name, rounded, widen

CLOSE = 1e-5  # of the largest value of an array: more than float32 sums of different order differ by
LAYER = Layer(ep=2, T=33, H=40, I=24, E=6, K=3)


def stored_values(program):
    """Returns the values that the equations of a program make, except routes."""
    return [v for eqn in program.equations for v in eqn.outputs if not isinstance(v.aval, RouteAval)]


def with_all_stored(program):
    """The program that returns what it stores on its way, too."""
    return program.replace(outputs=(*program.outputs, *stored_values(program)))


def equations_apart(program):
    """The program whose equations take what others make as further inputs, and returns what each makes of those."""
    stored = stored_values(program)
    made = {v: Var(v.aval) for v in stored}
    return program.replace(
        inputs=(*program.inputs, *stored), outputs=tuple(made.values()),
        input_names=(*program.input_names, *(f"stored_{i}" for i in range(len(stored)))),
        equations=tuple(e.replace(outputs=tuple(made.get(v, v) for v in e.outputs)) for e in program.equations))


def assert_roundings(program, inputs, stored):
    """Raises AssertionError unless each of `stored`, [rank][value], is a rounding of what its equation makes of the
    others."""
    exact = interpret(equations_apart(program), [[*a, *b] for a, b in zip(inputs, stored, strict=True)], dtype="float64")
    for rank, (wants, gots) in enumerate(zip(exact, stored, strict=True)):
        for i, (want, got) in enumerate(zip(wants, gots, strict=True)):
            dtype, margin = dtype_name(got.dtype), CLOSE * np.abs(want).max(initial=0)
            low, high, nearest = (widen(rounded(want + d, dtype)) for d in (-margin, margin, 0))
            wrong = ~((low <= widen(got)) & (widen(got) <= high))
            assert not wrong.any(), f"rank {rank} value {i}: {widen(got)[wrong][:4]} is stored for {want[wrong][:4]}"
            if dtype in HALVES:
                assert np.mean(widen(got) == nearest) > 0.98, f"rank {rank} value {i}: too few are the nearest"


def run(program, inputs, target):
    """(outputs, all stored values) of each rank, by the kernel or the interpreter."""
    tiled = overlap_comm.apply_to(tile_partition.apply_to(with_all_stored(program), rows=16, cols=32))
    flow = assign_queues.apply_to(tiled, machine=hpmoe.cpu(2))
    outs = CPU.compile([flow], timeout=TIMEOUT).run(inputs) if target == "kernel" else interpret(flow, inputs)
    n = len(program.outputs)
    return [out[:n] for out in outs], [out[n:] for out in outs]


@functools.cache
def both_passes(dtype, target):
    """[(program, inputs, outputs, stored values)] of forward and backward, on the same arrays for every target."""
    args = in_dtype(LAYER.arguments(), dtype, but=(2,))
    parts = linearize(trace(moe_ffn, *avals_of(args), mesh=hpmoe.Mesh(LAYER.ep)))
    inputs = [[a[r] for a in args] for r in range(LAYER.ep)]
    outs, stored = run(parts.forward, inputs, target)
    cotangent = rounded(LAYER.cotangent(), dtype)
    back = [[*(args[i][r] for i in parts.kept_inputs), *outs[r][1:], cotangent[r]] for r in range(LAYER.ep)]
    return [(parts.forward, inputs, outs, stored), (parts.backward, back, *run(parts.backward, back, target))]


@pytest.mark.parametrize("target", ["kernel", "interpreter"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_stored_value_is_the_rounding_of_its_equation(dtype, target):
    for program, inputs, _, stored in both_passes(dtype, target):
        assert_roundings(program, inputs, stored)


@pytest.mark.parametrize("stage, target", [("fused", "kernel"), ("queues", "interpreter")])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_whole_chain_stores_the_same_bits(dtype, stage, target):
    """Without what is only stored to be looked at."""
    args = in_dtype(LAYER.arguments(), dtype, but=(2,))
    outs, grads = run_spmd(stages(rows=16, cols=32)[stage](moe_ffn), LAYER.ep, args,
                           [widen(rounded(LAYER.cotangent(), dtype))])
    (_, _, forward, _), (_, _, backward, _) = both_passes(dtype, target)
    want = [np.stack([out[0] for out in forward]), *map(np.stack, zip(*backward, strict=True))]
    for a, b in zip([*outs, *grads], want, strict=True):
        np.testing.assert_array_equal(widen(a), widen(b))


@pytest.mark.parametrize("dtype", HALVES)
def test_one_unit_in_the_last_place_too_much_is_found(dtype):
    """In the largest element of any stored value; in one of float32 what 512 units are."""
    for program, inputs, _, stored in both_passes(dtype, "kernel"):
        for i, value in enumerate(stored[1]):
            off, place = value.copy(), np.unravel_index(np.argmax(np.abs(widen(value))), value.shape)
            bits, units = (off.view(np.uint16), 1) if value.itemsize == 2 else (off.view(np.uint32), 512)
            bits[place] += units
            broken = [stored[0], [off if j == i else v for j, v in enumerate(stored[1])]]
            with pytest.raises(AssertionError, match="is stored for"):
                assert_roundings(program, inputs, broken)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_sum_in_half_precision_is_found(dtype):
    """A matrix product whose second half is added after the first one is rounded."""
    program, inputs, _, stored = both_passes(dtype, "kernel")[0]
    stored = [list(values) for values in stored]
    (i,) = [i for i, v in enumerate(stored_values(program)) if v is program.equations[2].outputs[0]]
    rows, product, half = widen(stored[0][i - 1]), widen(stored[0][i]), LAYER.H // 2
    first = rows.copy()
    first[:, half:] = 0
    first, = [interpret(equations_apart(program), [[*a, *b] for a, b in zip(inputs, (
        [first if j == i - 1 else v for j, v in enumerate(stored[0])], stored[1]), strict=True)], dtype="float64")[0][i]]
    stored[0][i] = rounded(widen(rounded(first, dtype)) + (product - first), dtype)
    with pytest.raises(AssertionError, match=f"rank 0 value {i}: .* is stored for"):
        assert_roundings(program, inputs, stored)


# Where it is rounded.

def on_one_rank(stage, f, *arrays):
    """The results of `f` at a stage: without a stage by `evaluate`, not by MindSpore."""
    out = hpmoe.spmd(stages(rows=4, cols=64)[stage](f), hpmoe.Mesh(1))(*(Tensor(a[None]) for a in arrays))
    return [o.asnumpy()[0] for o in out]


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_equation_rounds_once(dtype, stage):
    x = rounded(np.full((2, 3), U[dtype] / 4, np.float32), dtype)
    lost, kept = on_one_rank(stage, lambda x: ((x + 1.0) - 1.0, ((x.astype(ms.float32) + 1.0) - 1.0).astype(x.dtype)), x)
    assert not widen(lost).any()
    np.testing.assert_array_equal(widen(kept), widen(x))


def test_the_float64_oracle_rounds_nothing():
    program = trace(lambda x: (x + 1.0) - 1.0, ShapeDtypeStruct((2,), "bfloat16"))
    (got,), = interpret(program, [[np.array([1e-6, 1.0])]], dtype="float64")
    np.testing.assert_allclose(got, [1e-6, 1.0], rtol=1e-9)
    (got,), = interpret(program, [[np.array([1e-6, 1.0])]])
    assert str(got.dtype) == "bfloat16" and widen(got).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
@pytest.mark.parametrize("dtype", HALVES)
def test_sums_run_in_float32(dtype, stage):
    """512 ones are 256 or 512 when summed in bfloat16; a float16 sum of 60000s overflows before it is divided."""
    x, y = rounded(np.ones((5, 300), np.float32), dtype), rounded(np.full((5, 300), 60000, np.float32), dtype)
    columns, rows, means, mean = on_one_rank(
        stage, lambda x, y: (mint.sum(x, dim=-1), mint.sum(x, dim=0), mint.mean(y, dim=-1), mint.mean(y)), x, y)
    assert set(dtype_names([columns, rows, means, mean])) == {dtype}
    np.testing.assert_array_equal(widen(columns), widen(rounded(np.full(5, 300, np.float32), dtype)))
    np.testing.assert_array_equal(widen(rows), 5)
    np.testing.assert_allclose(widen(np.append(means, mean)), widen(y[0, 0]), rtol=2 * U[dtype])


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_sums_of_received_rows_run_in_float32(stage):
    """257 ones of one expert and 129 of the other: bfloat16 has 386, but not the 257 in between."""
    def f(x, ids):
        return mint.sum(hpmoe.dispatch(x, ids, num_local_experts=2)[0], dim=0)

    x, ids = rounded(np.ones((386, 3), np.float32), "bfloat16"), np.int32(np.arange(386) >= 257)[:, None]
    got = hpmoe.spmd(stages(rows=512, cols=64)[stage](f), hpmoe.Mesh(1))(Tensor(x[None]), Tensor(ids[None])).asnumpy()
    assert widen(got).tolist() == [[386.0] * 3]


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_values_out_of_range_are_infinities(stage):
    out, = on_one_rank(stage, lambda x: (x * 2.0,), np.float16([[60000.0, -60000.0, 1.0]]))
    assert out.tolist() == [[np.inf, -np.inf, 2.0]]
