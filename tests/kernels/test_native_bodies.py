"""Every tile body alone, on one rank, against NumPy in float64."""

import math

import numpy as np
import pytest
from bodies_in_tiles import expert_rows, run, tiles
from native.image_builder import OWN, OWN_ALL

from hpmoe.kernels import load, use_blas
from hpmoe.kernels.protocol import Code, Cols, Domain, Dtype, MapCode, Opcode, Reduction, Rows
from hpmoe.support.errors import LaunchError
from hpmoe.tile_ops.functions import Function

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 88.7, 89.5, -87.4, -103.9, -200.0, 1e30]
)


# --- MAP ---

UNARY = {
    MapCode.COPY: lambda x: x,
    MapCode.NEG: np.negative,
    MapCode.EXP: np.exp,
    MapCode.LOG: np.log,
    MapCode.SQRT: np.sqrt,
    MapCode.RSQRT: lambda x: 1 / np.sqrt(x),
    MapCode.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    MapCode.TANH: np.tanh,
    MapCode.SILU: lambda x: x / (1 + np.exp(-x)),
    MapCode.RELU: lambda x: np.maximum(x, 0),
    MapCode.ERF: np.vectorize(math.erf),
    MapCode.ABS: np.abs,
    MapCode.RECIPROCAL: lambda x: 1 / x,
    MapCode.SQUARE: np.square,
    MapCode.SIN: np.sin,
    MapCode.COS: np.cos,
    MapCode.SIGN: np.sign,
    MapCode.SOFTPLUS: lambda x: np.logaddexp(0, x),
    MapCode.FLOOR: np.floor,
    MapCode.ROUND: np.rint,
}
BINARY = {
    MapCode.ADD: np.add,
    MapCode.SUB: np.subtract,
    MapCode.MUL: np.multiply,
    MapCode.DIV: np.divide,
    MapCode.POW: np.power,
    MapCode.MAXIMUM: np.maximum,
    MapCode.MINIMUM: np.minimum,
    MapCode.GREATER: np.greater,
    MapCode.GREATER_EQUAL: np.greater_equal,
    MapCode.LESS: np.less,
    MapCode.LESS_EQUAL: np.less_equal,
    MapCode.EQUAL: np.equal,
    MapCode.NOT_EQUAL: np.not_equal,
    MapCode.FLOOR_DIV: np.floor_divide,
    MapCode.REMAINDER: np.remainder,
}


def test_every_map_code_is_tested():
    assert set(MapCode) == {*UNARY, *BINARY, MapCode.SELECT}


def test_a_functions_code_gives_its_number_of_inputs():
    for name, function in Function.members.items():
        assert function.inputs == 1 + MapCode[name.upper()] // 32, name


def map_values(code, *inputs):
    t = tiles(num_rows=len(inputs[0]))
    cols = inputs[0].shape[1]
    out = t.array(cols, values=np.zeros_like(inputs[0]))
    operands = [(t.array(cols, values=x), *OWN) for x in inputs]
    t.run(Opcode.MAP, (out, *OWN), *operands, columns=[(0, 500), (500, cols - 500)], param=(code,))
    return t.buffers[out]


def wide_inputs(rng, count=1):
    """Values of every size and all the special ones, each in another place for each input."""
    arrays = []
    for _ in range(count):
        x = (rng.standard_normal((5, 641)) * 10.0 ** rng.integers(-6, 2, (5, 641))).astype(np.float32)
        x.reshape(-1)[rng.permutation(x.size)[: 20 * SPECIAL.size]] = np.tile(SPECIAL, 20)
        arrays.append(x)
    return arrays


@pytest.mark.parametrize("code", UNARY)
def test_unary_map(code):
    (x,) = wide_inputs(np.random.default_rng(code))
    with np.errstate(all="ignore"):
        expected = UNARY[code](x.astype(float)).astype(np.float32)
    # Below the smallest normal number an exponential has fewer digits: 1e-37 absolute.
    np.testing.assert_allclose(map_values(code, x), expected, rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("code", BINARY)
def test_binary_map(code):
    a, b = wide_inputs(np.random.default_rng(code), 2)
    b.reshape(-1)[::7] = a.reshape(-1)[::7]
    with np.errstate(all="ignore"):
        expected = BINARY[code](a.astype(float), b.astype(float)).astype(np.float32)
    np.testing.assert_allclose(map_values(code, a, b), expected, rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("code", [MapCode.EXP, MapCode.TANH, MapCode.SIGMOID, MapCode.SILU])
def test_exponentials_are_within_three_ulp(code):
    x = np.concatenate([np.linspace(-87, 88, 60000), np.geomspace(1e-8, 1, 5920)]).astype(np.float32).reshape(80, -1)
    exact = UNARY[code](x.astype(float))
    error = np.abs(map_values(code, x).astype(float) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error.max() < 3


def test_select_takes_nan_as_true_and_passes_both_sides():
    c, a, b = wide_inputs(np.random.default_rng(0), 3)
    np.testing.assert_array_equal(map_values(MapCode.SELECT, c, a, b), np.where(c != 0, a, b))


def test_copies_of_numbers_and_immediates():
    t = tiles()
    x, out, filled = t.array(3), t.array(3), t.array(3)
    op = t.builder.op(Opcode.MAP, Domain.TILES, (filled, *OWN, 1), 2.5, num_rows=11, param=(MapCode.COPY,))
    for tile in range(3):
        t.builder.task(op, tile, (0, 2))
    before = t.buffers[filled][:, 0].copy()
    t.run(Opcode.MAP, (out, *OWN), 1.0, (x, *OWN), columns=[(0, 3)], param=(MapCode.SUB,))
    np.testing.assert_array_equal(t.buffers[out], 1 - t.buffers[x])
    assert (t.buffers[filled][:, 1:] == 2.5).all() and (t.buffers[filled][:, 0] == before).all()


def test_broadcast_rows_columns_and_offsets():
    t = tiles()
    x, row, col, out = t.array(600), t.array(300, rows=1), t.array(2), t.array(300)
    operands = (x, *OWN, 300), (row, Rows.ONE, Cols.OWN), (col, Rows.OWN, Cols.ONE, 1)
    t.run(Opcode.MAP, (out, *OWN), *operands, columns=[(0, 300)], param=(MapCode.SELECT,))
    b = t.buffers
    np.testing.assert_array_equal(b[out], np.where(b[x][:, 300:] != 0, b[row], b[col][:, 1:]))


# --- rows ---


def test_swiglu_and_its_gradient():
    t, inner = tiles(), 9
    x, dy, out, grad = t.array(2 * inner), t.array(inner), t.array(inner), t.array(2 * inner)
    halves = (0, 5), (5, 4)
    op = t.builder.op(Opcode.SWIGLU, Domain.TILES, (out, *OWN), (x, *OWN), (x, *OWN, inner), num_rows=11)
    for tile in range(3):
        for cols in halves:
            t.builder.task(op, tile, cols)
    operands = (grad, *OWN), (grad, *OWN, inner), (dy, *OWN), (x, *OWN), (x, *OWN, inner)
    t.run(Opcode.SWIGLU_GRAD, *operands, columns=halves)
    gate, up = np.split(t.buffers[x].astype(float), 2, axis=1)
    d, s = t.buffers[dy].astype(float), 1 / (1 + np.exp(-gate))
    np.testing.assert_allclose(t.buffers[out], gate * s * up, rtol=1e-6, atol=1e-6)
    expected = np.concatenate([d * up * (s + gate * s * (1 - s)), d * gate * s], axis=1)
    np.testing.assert_allclose(t.buffers[grad], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduction, function", [(Reduction.SUM, np.sum), (Reduction.MAX, np.max)])
@pytest.mark.parametrize("cols", [1, 16, 37])
def test_row_reduce(reduction, function, cols):
    t = tiles()
    x, out = t.array(cols), t.array(1)
    t.buffers[x][3, cols // 2] = np.nan
    t.run(Opcode.ROW_REDUCE, (out, *OWN_ALL), (x, *OWN_ALL), param=(reduction,))
    expected = function(t.buffers[x].astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(t.buffers[out], expected, rtol=1e-5, atol=1e-5)


def test_row_dot():
    t = tiles()
    a, b, out = t.array(35), t.array(35), t.array(1)
    t.run(Opcode.ROW_DOT, (out, *OWN_ALL), (a, *OWN_ALL), (b, *OWN_ALL))
    expected = (t.buffers[a].astype(float) * t.buffers[b]).sum(1, keepdims=True)
    np.testing.assert_allclose(t.buffers[out], expected, rtol=1e-5, atol=1e-5)


def gather_tiles(index):
    t = tiles(num_rows=len(index))
    x, out = t.array(3, rows=5), t.array(3)
    i = t.array(1, values=np.array(index)[:, None], dtype=Dtype.INT32)
    t.run(Opcode.GATHER, (out, *OWN_ALL), (x, Rows.ALL, Cols.ALL), (i, Rows.OWN, Cols.ONE))
    return t.buffers[x], t.buffers[out]


def test_gather_counts_a_negative_index_from_the_end():
    index = np.array([4, 0, -1, 2, 2, -5])
    x, out = gather_tiles(index)
    np.testing.assert_array_equal(out, x[index])


@pytest.mark.parametrize("index", [5, -6])
def test_gather_past_either_end_is_an_error(index):
    with pytest.raises(LaunchError, match="GATHER.*past the rows") as error:
        gather_tiles([0, index])
    assert error.value.status["code"] == Code.INDEX_OUT_OF_RANGE


def test_clipped_tiles_leave_padding_alone():
    t = tiles()
    x, out = t.array(3), t.array(3, values=np.zeros((11, 3)))
    t.run(Opcode.MAP, (out, *OWN), (x, *OWN), columns=[(0, 3)], param=(MapCode.COPY,), clipped=1, num_tokens=6)
    np.testing.assert_array_equal(t.buffers[out][:6], t.buffers[x][:6])
    assert not t.buffers[out][6:].any()


# --- matrices ---


def test_col_sum_of_each_expert():
    b, route, buffers, _, dy, rows = expert_rows(np.random.default_rng(1))
    out = b.buffer(10, 3)
    buffers.append(np.full((3, 10), np.nan, np.float32))
    op = b.op(Opcode.COL_SUM, Domain.EXPERTS, (out, *OWN), (dy, Rows.EXPERT, Cols.OWN), route=route, num_rows=3)
    for row in range(3):
        b.task(op, row, (0, 10))
    run(b, buffers, 23)
    expected = np.stack([buffers[dy][r].astype(float).sum(0) for r in rows])
    np.testing.assert_allclose(buffers[out], expected, rtol=1e-5, atol=1e-5)


def test_dense_wgrad_and_col_sum_stop_at_the_real_tokens(blas):
    t = tiles(num_rows=9)
    x, dy, out, total = t.array(7), t.array(5), t.array(5, rows=7), t.array(5, rows=1)
    fields = {"num_rows": 1, "param": (7, 9, 1)}
    everything = (Rows.ALL, Cols.OWN)
    wgrad = t.builder.op(
        Opcode.WGRAD, Domain.EXPERTS, (out, *OWN), (x, Rows.ALL, Cols.ALL), (dy, *everything), **fields
    )
    col_sum = t.builder.op(Opcode.COL_SUM, Domain.EXPERTS, (total, *OWN), (dy, *everything), **fields)
    for op in (wgrad, col_sum):
        t.builder.task(op, 0, (0, 5))
    run(t.builder, t.buffers, 6)
    a, d = t.buffers[x][:6].astype(float), t.buffers[dy][:6].astype(float)
    np.testing.assert_allclose(t.buffers[out], a.T @ d, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(t.buffers[total][0], d.sum(0), rtol=1e-5, atol=1e-5)


def test_use_blas_refuses_what_it_cannot_load(tmp_path):
    with pytest.raises(OSError, match="cannot be loaded"):
        use_blas(tmp_path / "missing.so")
    with pytest.raises(OSError, match="has no dnnl_sgemm"):
        use_blas(load()._name)
