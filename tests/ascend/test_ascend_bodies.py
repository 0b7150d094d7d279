"""Tile bodies of the Ascend kernel on its emulator, one at a time and in chains, forward and backward, in many orders,
against float64."""

import numpy as np
import pytest
from ascend_helpers import ProgramRun, bf16, from_seed
from mindspore import mint

import hpmoe
from hpmoe import ShapeDtypeStruct, trace
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.support.errors import LaunchError

SEEDS = (0, 1000, 2000)


def half(*shape):
    return ShapeDtypeStruct(shape, "float16")


BODIES = {
    "matmul after matmul": (lambda x, v, w: x @ v @ w, bf16(40, 32), bf16(32, 48), bf16(48, 32)),
    "widths that are no fractals": (lambda x, w: x @ w, bf16(21, 40), bf16(40, 75)),
    "narrow": (lambda x, w: x @ w, half(5, 3), half(3, 7)),
    "one column": (lambda x, w: x @ w, bf16(17, 19), bf16(19, 1)),
    "map after map": (lambda x, y: (x * 2.0 + y) * (x - y), bf16(40, 24), bf16(40, 24)),
    "tanh and rsqrt": (lambda x: mint.tanh(x) * mint.rsqrt(x * x + 1.0), bf16(9, 33)),
    "sum of rows": (lambda x: mint.sum(x * x, -1, True), bf16(21, 72)),
    "sum of long rows": (lambda x: mint.sum(x, -1, True), ShapeDtypeStruct((3, 9001), "float32")),
    "sum of columns": (lambda x: mint.sum(x, 0), bf16(37, 40)),
    "largest of rows": (lambda x: mint.amax(x, -1, True), bf16(21, 72)),
    "gather": (lambda x, i: mint.nn.functional.embedding(i, x), bf16(8, 24), ShapeDtypeStruct((300,), "int32")),
    "gather of long rows": (lambda x, i: mint.nn.functional.embedding(i, x), bf16(8, 9001), ShapeDtypeStruct((5,), "int32")),
    "swiglu of odd width": (hpmoe.swiglu, bf16(19, 2 * 11)),
}
DIFFERENTIABLE = ("matmul after matmul", "widths that are no fractals", "narrow", "map after map", "sum of columns",
                  "swiglu of odd width")
CASES = [(name, "forward") for name in BODIES] + [(name, "backward") for name in DIFFERENTIABLE]


@pytest.mark.parametrize("name, direction", CASES)
def test_body_equals_float64_in_any_order(monkeypatch, name, direction):
    f, *avals = BODIES[name]
    program = trace(f, *avals)
    run, seen = ProgramRun(program if direction == "forward" else linearize(program).backward), set()
    for seed in SEEDS:
        from_seed(monkeypatch, seed)
        seen.add(b"".join(a.tobytes() for a in run.assert_close_to_float64()))
    assert len(seen) == 1


FUNCTIONS = {
    "erf": lambda x, y: mint.erf(x),
    "sin": lambda x, y: mint.sin(x * 100.0),
    "cos": lambda x, y: mint.cos(x * 100.0),
    "sign": lambda x, y: mint.sign(x),
    "softplus": lambda x, y: mint.nn.functional.softplus(x),
    "floor": lambda x, y: mint.floor(x),
    "power of positive": lambda x, y: mint.pow(mint.abs(x), y),
    "whole power": lambda x, y: mint.pow(x, mint.floor(y)),
    "power of anything": mint.pow,
    "greater": lambda x, y: mint.where(mint.greater(x, y), x, y * 2.0),
    "greater or equal": lambda x, y: mint.where(mint.greater_equal(x, y), x, y * 2.0),
    "less": lambda x, y: mint.where(mint.less(x, y), x, y * 2.0),
    "less or equal": lambda x, y: mint.where(mint.less_equal(x, y), x, y * 2.0),
    "equal": lambda x, y: mint.where(mint.eq(x, y), x * 3.0, y),
    "not equal": lambda x, y: mint.where(mint.ne(x, y), x * 3.0, y),
    "where, of a column": lambda x, y: mint.where(mint.greater(mint.sum(x, -1, True), 0.0), x, y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_equals_float64(monkeypatch, name):
    """Inputs include zeros, numbers near the limits of float32, and NaN in the branch that `where` does not choose."""
    run, rng = ProgramRun(trace(FUNCTIONS[name], *[ShapeDtypeStruct((9, 75), "float32")] * 2),
                          rows=4), np.random.default_rng(0)
    x, y = (np.round(rng.standard_normal((9, 75)) * 16).astype(np.float32) / 8 for _ in range(2))
    x[0, :6] = 0.0, -0.0, 30.0, -80.0, 1e-12, -20.5
    if "equal" in name or name in ("greater", "less"):
        x[0, 0], y[0, :3] = np.inf, (1.0, np.nan, np.inf)
    run.inputs[:] = x, y
    with np.errstate(all="ignore"):
        want = np.asarray(interpret(run.program, [run.inputs], dtype="float64")[0][0])
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        np.testing.assert_allclose(run()[0], want, rtol=4e-6, atol=1e-6 if name in ("sin", "cos") else 1e-37)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_overflows_is_infinite(dtype):
    """On an AIV and on an AIC, although an NPU that is not told so makes the largest number of it, and 0 of what is no
    number."""
    run = ProgramRun(trace(lambda x, w: (x * 4.0, x @ w, (x * 4.0) - (x * 4.0)), ShapeDtypeStruct((5, 32), dtype),
                           ShapeDtypeStruct((32, 24), dtype)))
    run.inputs[0][...], run.inputs[1][...] = (2e38 if dtype == "bfloat16" else 3e4), 1.0
    run.inputs[0][2] = 0
    scaled, product, difference = run()
    lost = np.arange(5) != 2
    assert np.isposinf(scaled[lost]).all() and np.isposinf(product[lost]).all() and np.isnan(difference[lost]).all()
    assert not (scaled[2].any() or product[2].any() or difference[2].any())


@pytest.mark.parametrize("index", [8, -9])
def test_index_past_the_rows_is_an_error(index):
    f, *avals = BODIES["gather"]
    run = ProgramRun(trace(f, *avals))
    run.inputs[1][7] = index
    with pytest.raises(LaunchError, match=r"GATHER of op 0, .* read an index past the rows it gathers from"):
        run()
    run.inputs[1][7] = 0
    run.assert_close_to_float64()


def test_sums_without_rows_are_zeros():
    run = ProgramRun(trace(lambda x: mint.sum(x, 0), bf16(37, 40)))
    run.inputs[0][...] = 0
    assert not np.any(run.assert_close_to_float64()[0])
