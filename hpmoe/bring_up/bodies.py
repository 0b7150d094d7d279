"""Checks of one block on one rank: a launch, then each kind of tile body alone."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint
from mindspore.mint.nn import functional

import hpmoe
from hpmoe.bring_up.device import CheckFailed, Device, random
from hpmoe.support.dtypes import numpy_dtype

DTYPES = ("bfloat16", "float16", "float32")
RAGGED = ((17, 40, 75), (1, 64, 16), (128, 64, 256), (5, 3, 7), (17, 19, 1))  # rows, products of a sum, columns
LARGE = (256, 7168, 256)
LAUNCHES = 100


def launches(device: Device) -> str:
    """One small task, again and again: counters only grow, and every launch finds those of the one before."""
    kernel, x = device.bind(lambda x: x * 2.0), np.arange(64, dtype=np.float32).reshape(4, 16)
    for i in range(LAUNCHES):
        got = device.split(kernel(*device.tensors([[x + i]])), 1)[0]
        if not np.array_equal(got, (x + i) * 2):
            raise CheckFailed(f"launch {i} gave {got.reshape(-1)[:4]} for {(x + i).reshape(-1)[:4]} * 2")
    hpmoe.ranks.synchronize()
    return f"{LAUNCHES} in a row, each right"


def identity_products(device: Device) -> str:
    """The product with a unit matrix is the other matrix, bit for bit: addresses, fractals and pads are right."""
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        unit = np.eye(16, dtype=np.float32).astype(numpy_dtype(dtype))
        device.compare(lambda x, w: x @ w, [[unit, random(rng, 16, 16, dtype=dtype)]], exact=True)
    return "bfloat16, float16 and float32, bit for bit"


def float32_products(device: Device) -> str:
    """Products of float32 are of float32: an error of 2^-12 says that HF32 is on."""
    rng = np.random.default_rng(1)
    inputs = [random(rng, 64, 64, dtype="float32") for _ in range(2)]
    error = device.compare(lambda x, w: x @ w, [inputs])
    return f"largest error {error:.1e} of the largest number; HF32 would be at 2.4e-04"


def ragged_products(device: Device) -> str:
    """Products of sizes that are no tiles and no fractals; on an NPU also of the size that layers have."""
    rng, worst = np.random.default_rng(2), 0.0
    shapes = RAGGED if device.is_small else (*RAGGED, LARGE)
    for rows, inner, cols in shapes:
        for dtype in DTYPES:
            x, w = random(rng, rows, inner, dtype=dtype), random(rng, inner, cols, dtype=dtype)
            worst = max(worst, device.compare(lambda x, w: x @ w, [[x, w]], grads=True))
    return f"{len(shapes)} shapes, three dtypes, with both gradients, error at most {worst:.1e}"


def weight_gradients(device: Device) -> str:
    """Weights' gradients over 0, 1, 17, 24 and 300 rows of an expert: whole fractals, odd squares, none."""
    rng, worst = np.random.default_rng(3), 0.0
    rows = (0, 1, 17, 24, 300)
    ids = rng.permutation(np.repeat(np.arange(len(rows)), rows)).astype(np.int32)[:, None]

    def layer(x: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
        received, route = hpmoe.dispatch(x, ids, num_local_experts=len(rows))
        return hpmoe.combine(hpmoe.grouped_matmul(received, weight, route), route)

    for dtype in DTYPES:
        inputs = [random(rng, len(ids), 24, dtype=dtype), ids, random(rng, len(rows), 24, 40, dtype=dtype)]
        worst = max(worst, device.compare(layer, [inputs], grads=True))
    return f"experts of {', '.join(map(str, rows))} rows, three dtypes, error at most {worst:.1e}"


# What is elementwise, of two numbers.
FUNCTIONS = {
    "sums and products": lambda x, y: (x * 2.0 + y) * (x - y), "division": lambda x, y: x / (mint.abs(y) + 0.5),
    "exp and log": lambda x, y: mint.log(mint.exp(x) + 1.0),
    "tanh and rsqrt": lambda x, y: mint.tanh(x) * mint.rsqrt(y * y + 1.0),
    "erf": lambda x, y: mint.erf(x), "sine": lambda x, y: mint.sin(x * 4.0), "cosine": lambda x, y: mint.cos(x * 4.0),
    "sign": lambda x, y: mint.sign(x), "floor": lambda x, y: mint.floor(x * 4.0),
    "softplus": lambda x, y: functional.softplus(x), "powers": lambda x, y: mint.pow(mint.abs(x) + 0.5, y),
    "largest and smallest": lambda x, y: mint.maximum(x, y) * mint.minimum(x, 1.0),
    "comparisons": lambda x, y: mint.where(mint.greater(x, y), x, y * 2.0) + mint.where(mint.eq(x, y), x, y),
    "where, of a column": lambda x, y: mint.where(mint.greater(mint.sum(x, -1, True), 0.0), x, y),
    "sums of rows": lambda x, y: mint.sum(x * y, -1, True), "sums of columns": lambda x, y: mint.sum(x * y, 0),
    "largest of rows": lambda x, y: mint.amax(x * y, -1, True),
    "SwiGLU": lambda x, y: hpmoe.swiglu(x[:, :74]),
}


def functions(device: Device) -> str:
    """Elementwise functions, sums and maxima, in float32; what a comparison finds is in a register."""
    rng, worst = np.random.default_rng(4), ("", 0.0)
    x, y = (random(rng, 21, 75, dtype="float32") for _ in range(2))
    x[0, :4] = 0.0, -0.0, 30.0, -30.0
    y[1] = x[1]
    for name, f in FUNCTIONS.items():
        try:
            worst = max(worst, (name, device.compare(f, [[x, y]], tolerance=1e-5)), key=lambda found: found[1])
        except CheckFailed as failed:
            raise CheckFailed(f"{name}: {failed}") from None
    return f"{len(FUNCTIONS)} kinds, error at most {worst[1]:.1e}, of {worst[0]}"


def gathers(device: Device) -> str:
    """Rows by their numbers, from the end too, of rows longer than a piece."""
    rng = np.random.default_rng(5)
    for cols in (24, 9001):
        table, index = random(rng, 8, cols), rng.integers(-8, 8, (40,)).astype(np.int32)
        device.compare(lambda x, i: functional.embedding(i, x), [[table, index]], exact=True)
    return "rows of 24 and 9001 columns, bit for bit"


def overflow(device: Device) -> str:
    """Checks that overflow of half precision is infinite on both kinds of cores, with saturation off."""
    for dtype, large in (("bfloat16", 2e38), ("float16", 3e4)):
        x = np.full((5, 32), large, np.float32).astype(numpy_dtype(dtype))
        w = np.ones((32, 24), np.float32).astype(numpy_dtype(dtype))
        for unit, f in (("an AIV", lambda x, w: x * 4.0), ("an AIC", lambda x, w: x @ w)):
            got = device.split(device.bind(f)(*device.tensors([[x, w]])), 1)[0]
            if not np.isposinf(got).all():
                raise CheckFailed(f"{large:g} * 4 or more in {dtype} is {got[0, 0]:g} on {unit}, it must be infinite")
    return "infinite in bfloat16 and float16, on AIV and AIC"
