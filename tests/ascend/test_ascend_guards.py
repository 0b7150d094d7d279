"""Guards of the Ascend kernel on its emulator, against NumPy: rows whose values are counted, and replaced where they are out
of range."""

import numpy as np
import pytest
from ascend_helpers import emulator, f32, from_seed
from helpers import Layer, assert_close, jax_vjp, run_spmd
from jax import numpy as jnp
from native.image_builder import OWN_ALL
from one_body import run_on_emulator

import hpmoe
from hpmoe import guard_values
from hpmoe.kernels.protocol import Cols, Rows
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError

DTYPES = ("float32", "bfloat16", "float16")
BAD = np.array([np.nan, np.inf, -np.inf, 7.0, -8.0], np.float32)
FILLS = ("zero", "mean", "spread")


def rows(cols, dtype, share=0.1):
    """One row without any, one of nothing else, one whose last value is one."""
    rng = np.random.default_rng(cols)
    x = np.clip(rng.standard_normal((9, cols)), -2, 2).astype(np.float32)
    is_bad = rng.random(x.shape) < share
    is_bad[[1, 4]], is_bad[2], is_bad[4, -1] = False, True, True
    x[is_bad] = rng.choice(BAD, is_bad.sum())
    return x.astype(numpy_dtype(dtype)), is_bad


def words(is_bad):
    """Returns the number of bad values of each row, and a bit for each value."""
    padding = -is_bad.shape[1] % 32
    bits = np.packbits(np.pad(is_bad, [(0, 0), (0, padding)]), axis=1, bitorder="little").view("<i4")
    return np.concatenate([is_bad.sum(1, keepdims=True, dtype=np.int32), bits], axis=1)


def filled(x, is_bad, fill):
    wide, others = x.astype(np.float64), np.maximum((~is_bad).sum(1, keepdims=True), 1)
    if fill == "spread":
        return np.where(is_bad, 0, wide + np.where(is_bad, wide, 0).sum(1, keepdims=True) / others)
    mean = np.where(is_bad, 0, wide).sum(1, keepdims=True) / others
    return np.where(is_bad, mean if fill == "mean" else 0, wide)


def assert_rows(got, want, dtype):
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [5, 200, 5001])
def test_values_out_of_range_are_counted(cols, dtype):
    x, is_bad = rows(cols, dtype)
    out = np.zeros((9, 1), np.float32)
    run_on_emulator("COUNT_OUTSIDE", 9, (out, Rows.OWN, Cols.ALL), (x, *OWN_ALL), -3.0, 3.0)
    np.testing.assert_array_equal(out[:, 0], is_bad.sum(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [0, 1])
@pytest.mark.parametrize("cols", [5, 200, 5001])
def test_values_out_of_range_are_found_and_replaced(cols, fill, dtype):
    x, is_bad = rows(cols, dtype)
    out, found = np.ones_like(x), np.full((9, 1 + -(-cols // 32)), -1, np.int32)
    for seed in (0, 1):
        operands = (out, *OWN_ALL), (found, *OWN_ALL), (x, *OWN_ALL), -3.0, 3.0
        run_on_emulator("COUNT_AND_FILL", 9, *operands, param=(fill,), seed=seed)
        np.testing.assert_array_equal(found, words(is_bad))
        assert_rows(out, filled(x, is_bad, FILLS[fill]), dtype)
        np.testing.assert_array_equal(out[1], x[1])  # bit for bit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [0, 1, 2])
@pytest.mark.parametrize("cols", [5, 200, 5001])
def test_what_was_found_is_replaced(cols, fill, dtype):
    """Replaces gradients of replaced values by numbers."""
    x, is_bad = rows(cols, dtype, share=0.05)
    x = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)
    out = np.ones_like(x)
    run_on_emulator("FILL_OUTSIDE", 9, (out, *OWN_ALL), (x, *OWN_ALL), (words(is_bad), *OWN_ALL), param=(fill,))
    assert_rows(out, filled(x, is_bad, FILLS[fill]), dtype)


@pytest.mark.parametrize("name", ["COUNT_AND_FILL", "FILL_OUTSIDE"])
def test_too_wide_a_row_is_refused_by_the_kernel(name):
    x, found = np.zeros((3, 16385), np.float32), np.zeros((3, 514), np.int32)
    given, words = (x, *OWN_ALL), (found, *OWN_ALL)
    operands = [words, given, -3.0, 3.0] if name == "COUNT_AND_FILL" else [given, words]
    with pytest.raises(LaunchError, match=f"{name} .* has no body in this kernel"):
        run_on_emulator(name, 3, (x.copy(), *OWN_ALL), *operands, param=(0,))


@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_a_guarded_layer_with_gradients(monkeypatch, fill):
    """Guards the input in any order, and the sum of expert rows where it is summed."""
    layer, rng = Layer(ep=2, T=5, H=20), np.random.default_rng(3)
    x, w = np.clip(layer.arguments()[0], -2, 2), rng.standard_normal((2, 20, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan

    def oracle(x, w):
        fine = jnp.abs(x) <= 3
        clean = jnp.where(fine, x, 0)
        mean = clean.sum(-1, keepdims=True) / jnp.maximum(fine.sum(-1, keepdims=True), 1)
        return jnp.einsum("rth,rhn->rtn", jnp.where(fine, x, mean if fill == "mean" else 0) * 2.0, w)

    cotangent, counts = rng.standard_normal((2, 5, 4)).astype(np.float32), {}
    want = jax_vjp(oracle, [x, w], cotangent, (0, 1))
    guarded = emulator(guard_values(lambda x, w: (x * 2.0) @ w, of=("x",), low=-3.0, high=3.0, fill=fill, counts=counts),
                       rows=4)
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        got = run_spmd(guarded, 2, [x, w], [cotangent], positions=(0, 1))
        assert_close([*got[0], *got[1]], [want[0], *want[1]])
    assert counts["x"] == 2 * int((~(np.abs(x) <= 3)).sum())

    args, sums = layer.arguments(), {}
    plain, guarded = (run_spmd(emulator(f, rows=4), 2, args, [layer.cotangent()]) for f in (
        hpmoe.moe_ffn, guard_values(hpmoe.moe_ffn, low=-0.01, high=0.01, fill="zero", counts=sums)))
    assert sums and sum(sums.values()) > 0 and np.abs(guarded[0][0]).max() <= 0.01 < np.abs(plain[0][0]).max()
    opcodes = {op.opcode for op in hpmoe.spmd(emulator(guard_values(hpmoe.moe_ffn, fill="zero")), hpmoe.Mesh(2)).lower(
        *(f32(*a.shape) if a.dtype == np.float32 else hpmoe.ShapeDtypeStruct(a.shape, "int32") for a in args)).flow.ops}
    assert {"COUNT_AND_FILL", "REDUCE_AND_FILL"} & opcodes
