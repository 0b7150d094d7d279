"""float32 products on matrix units of bfloat16 are as exact as float32 ones for all numbers, beside NumPy's float64."""

import needs
import numpy as np
import pytest
from bodies_in_tiles import run, tiles
from native.image_builder import OWN, OWN_ALL

from hpmoe.kernels import use_amx
from hpmoe.kernels.protocol import Cols, Domain, Opcode, Rows

ROUNDOFF = 2.0**-24
SIZES = [(65, 40, 17), (128, 96, 512), (70, 65, 1000), (200, 33, 64)]  # m, n, k
FORMS = ("x @ w", "x @ w.T", "x.T @ dy", "main + x.T @ dy")
PATHS = {"vectors": False, "matrix units": True}


@pytest.fixture(autouse=True)
def has_amx():
    needs.has_amx(use_amx(True))
    yield
    use_amx(True)


def product(a, b, form, path, main=0.0, core_is_shared=None):
    """a @ b in one task, the operands lying in memory as `form` says."""
    use_amx(PATHS[path], core_is_shared)
    (m, k), n = a.shape, b.shape[1]
    if form in FORMS[:2]:
        t = tiles(num_rows=m, tile_rows=m)
        transposed = form == FORMS[1]
        out, x, w = t.array(n), t.array(k, values=a), t.array(*((k, n, b.T.copy()) if transposed else (n, k, b)))
        t.run(Opcode.GMM, (out, *OWN), (x, *OWN_ALL), (w, Rows.ONE, Cols.OWN), columns=[(0, n)], param=(transposed,))
        return t.buffers[out]
    t = tiles(num_rows=k)
    out, x, dy = t.array(n, rows=m), t.array(m, values=a.T.copy()), t.array(n, values=b)
    operands = [(out, *OWN), (x, Rows.ALL, Cols.ALL), (dy, Rows.ALL, Cols.OWN)]
    if form == FORMS[3]:
        operands.append((t.array(n, rows=m, values=np.broadcast_to(main, (m, n))), *OWN))
    t.builder.task(t.builder.op(Opcode.WGRAD, Domain.EXPERTS, *operands, num_rows=1, param=(m, k, 1)), 0, (0, n))
    run(t.builder, t.buffers, k)
    return t.buffers[out]


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def of_range(bits):
    def make(rng, *shape):
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-bits, bits, shape)).astype(np.float32)
    return lambda rng, m, n, k: (make(rng, m, k), make(rng, k, n))


def scaled(left, right):
    return lambda rng, m, n, k: (normal(rng, m, k) * np.float32(left), normal(rng, k, n) * np.float32(right))


def ill_conditioned(rng, m, n, k):
    a, b, half = normal(rng, m, k), normal(rng, k, n), k // 2
    a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half] * (1 + 1e-6)
    return a, b


def sparse(rng, m, n, k):
    return np.eye(m, k, dtype=np.float32) * normal(rng, m, 1), normal(rng, k, n)


def one_small(rng, m, n, k):
    a, b = normal(rng, m, k), normal(rng, k, n)
    a[m // 2, k // 2] = b[k // 2, n // 2] = 1e-40
    return a, b


DATA = {
    "normal": scaled(1, 1),
    "positive": lambda rng, m, n, k: (rng.random((m, k), np.float32), rng.random((k, n), np.float32)),
    "ill-conditioned": ill_conditioned,
    "one product a row": sparse,
    "of 2^-20 .. 2^20": of_range(20),
    "of 2^-60 .. 2^60": of_range(60),
    "2^-75 and 2^23": scaled(2.0**-75, 2.0**23),
    "2^-70 and 2^-70": scaled(2.0**-70, 2.0**-70),
    "denormal": scaled(2.0**-140, 1),
    "denormal and huge": scaled(2.0**-140, 2.0**120),
    "huge": scaled(2.0**60, 2.0**55),
    "one small": one_small,
}


def errors(a, b, path, form):
    """Returns the error of every element in roundings of the sum of its products' absolute values, which may be denormal."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    size = np.maximum(np.abs(a64) @ np.abs(b64), 2.0**-126)
    return np.abs(product(a, b, form, path) - a64 @ b64) / size / ROUNDOFF


@pytest.mark.parametrize("data", DATA)
def test_errors_are_those_of_float32(data):
    """Each is at most a rounding for each product, and the largest and mean ones not above twice those of float32
    vectors."""
    rng = np.random.default_rng(0)
    found = {path: [] for path in PATHS}
    for m, n, k in SIZES:
        a, b = DATA[data](rng, m, n, k)
        for path, form in ((path, form) for path in PATHS for form in FORMS[:3]):
            error = errors(a, b, path, form)
            found[path].append((error.max(), np.sqrt((error**2).mean())))
            assert error.max() <= k + 4, (path, form, m, n, k, error.max())
    worst = {path: np.max(each, axis=0) for path, each in found.items()}
    print(f"{data:20}", *(f"{path}: largest {w[0]:6.2f}, rms {w[1]:6.3f}   " for path, w in worst.items()))
    assert (worst["matrix units"] <= 2 * worst["vectors"]).all()


def test_the_worst_numbers_stay_in_the_bound():
    """Both parts that are left out as large as can be, and of one sign: 4 roundings of each product."""
    x = np.uint32(0x3F80FF80).view(np.float32)
    for value in (x, np.uint32(0x3F807F80).view(np.float32), np.uint32(0x3F818180).view(np.float32)):
        a, b = np.full((64, 96), value), np.full((96, 50), value)
        assert max(errors(a, b, "matrix units", form).max() for form in FORMS[:3]) <= 4 + 6 * 3


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_so(form):
    rng = np.random.default_rng(1)
    a, b = normal(rng, 150, 700), normal(rng, 700, 90)
    bits = np.array([0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32).view(np.float32)
    a[np.arange(6) * 20, np.arange(6) * 100], b[690, 5] = bits, np.inf
    a[149, :] = 0
    main = normal(rng, 150, 90)
    got, plain = (product(a, b, form, path, main) for path in ("matrix units", "vectors"))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(plain))
    np.testing.assert_array_equal(got[~np.isfinite(plain)], plain[~np.isfinite(plain)])
    np.testing.assert_allclose(got[np.isfinite(plain)], plain[np.isfinite(plain)], rtol=1e-4, atol=1e-4)
    assert np.isnan(got[149, 5]) and np.isnan(got[0, 0]) == np.isnan(plain[0, 0])


def test_a_sum_that_overflows_is_infinite():
    a, b = np.full((64, 64), 2e38, np.float32), np.full((64, 40), 1.0, np.float32)
    assert (product(a, b, "x @ w", "matrix units") == np.inf).all()
    c = np.full((64, 64), 2.0**20, np.float32)
    main = np.float32(3.4e38)
    np.testing.assert_array_equal(product(c, c, FORMS[3], "matrix units", main), product(c, c, FORMS[3], "vectors", main))


@pytest.mark.parametrize("form", FORMS)
def test_rows_do_not_depend_on_their_number(form):
    """Sums have the same order, not that of vectors, and the accumulator is added once."""
    rng = np.random.default_rng(2)
    a, b, main = normal(rng, 200, 1100), normal(rng, 1100, 70), np.float32(0.25)
    whole, part, again = (product(a[:m], b, form, "matrix units", main) for m in (200, 77, 200))
    np.testing.assert_array_equal(whole[:77], part)
    np.testing.assert_array_equal(whole, again)
    assert (whole != product(a, b, form, "vectors", main)).any()
    np.testing.assert_allclose(whole, a.astype(float) @ b + (0.25 if form == FORMS[3] else 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_bits_do_not_depend_on_what_else_the_core_does(form):
    rng = np.random.default_rng(3)
    for m, n, k in [(5, 40, 33), (16, 16, 64), (45, 49, 700), (200, 70, 300)]:
        a, b, main = normal(rng, m, k), normal(rng, k, n), np.float32(0.25)
        shared, own = (product(a, b, form, "matrix units", main, core_is_shared=shared) for shared in (True, False))
        np.testing.assert_array_equal(shared, own)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("k", [0, 9, 300])
def test_a_result_larger_than_the_caches(path, k):
    """It is stored past them where its rows are whole lines of memory; the same numbers, nothing beside them."""
    use_amx(PATHS[path])
    rng, m, n = np.random.default_rng(4), 2060, 2064  # 16 MiB of float32
    t = tiles(num_rows=k)
    out, x, dy = t.array(n, rows=m), t.array(m), t.array(n)
    memory = rng.standard_normal((m + 2) * n + 16).astype(np.float32)
    line = -memory.ctypes.data % 64 // 4 + n
    before, t.buffers[out] = memory.copy(), memory[line : line + m * n].reshape(m, n)
    operands = [(out, *OWN), (x, Rows.ALL, Cols.ALL), (dy, Rows.ALL, Cols.OWN)]
    t.builder.task(t.builder.op(Opcode.WGRAD, Domain.EXPERTS, *operands, num_rows=1, param=(m, k, 1)), 0, (0, n))
    run(t.builder, t.buffers, k)
    np.testing.assert_allclose(t.buffers[out], t.buffers[x].T @ t.buffers[dy], rtol=1e-4, atol=1e-4)
    for outside in (slice(line), slice(line + m * n, None)):
        np.testing.assert_array_equal(memory[outside], before[outside])
