"""Checks of what routers are made of, of guards, and of rows and weights of int8: each kind of body alone, on one rank."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint
from mindspore.mint.nn import functional

import hpmoe
from hpmoe.bring_up.device import CheckFailed, Device, random
from hpmoe.bring_up.layers import layer_inputs
from hpmoe.primitives.draw import draw
from hpmoe.primitives.guard import count_and_fill
from hpmoe.support.trees import Function, PyTree

FILLS = "zero", "mean"
pad: Function = functional.pad  # whose annotation says that it returns nothing


def _of_groups(x: Tensor) -> Tensor:
    groups = x.reshape(21, 5, 15)
    parts = mint.sum(groups[:, 1:4, ::2], 1), mint.amax(groups, 1), pad(groups, (1, 2))[:, 2]
    return mint.cat((*parts, groups[:, 0]), 1)


# What moves and sorts numbers, or adds integers: bit for bit.
EXACT: dict[str, Function] = {
    "the largest of rows": lambda x, ids: mint.topk(x, 7)[0], "their columns": lambda x, ids: mint.topk(x, 7)[1],
    "rows in order": lambda x, ids: mint.sort(x, dim=1, descending=True)[0],
    "columns of integers in order": lambda x, ids: mint.argsort(ids, dim=1),
    "columns by their numbers": lambda x, ids: mint.gather(x, 1, ids),
    "sums of integers": lambda x, ids: mint.cumsum(ids, 1) % 7 + ids // 3,
}
# What rounds, with gradients: those of columns picked by their numbers are sums at these.
ROUNDED: dict[str, Function] = {
    "running sums": lambda x, ids: mint.cumsum(x, 1), "columns picked": lambda x, ids: mint.gather(x, 1, ids) * x,
    "axes inside rows": lambda x, ids: _of_groups(x),
}


def routers(device: Device) -> str:
    """Choices, sorts, picks, sums at an index, running sums, axes inside rows, and random numbers from a seed."""
    rng, worst = np.random.default_rng(6), 0.0
    x, ids = random(rng, 21, 75, dtype="float32"), rng.integers(0, 75, (21, 75)).astype(np.int32)
    x[0, :4] = x[0, 4:8]  # equals: the one with the smaller column comes first
    for kinds, options in ((EXACT, {"exact": True}), (ROUNDED, {"grads": True, "tolerance": 1e-5})):
        for name, f in kinds.items():
            worst = max(worst, _named(device, name, f, [x, ids], **options))
    _named(device, "random numbers", lambda seed: draw(seed, shape=(9, 90), stream=1),
           [np.array([17], np.int32)], exact=True)
    return f"{len(EXACT) + 1} kinds bit for bit, {len(ROUNDED)} with gradients, error at most {worst:.1e}"


def guards(device: Device) -> str:
    """Rows with a NaN, infinities and numbers out of bounds, and what comes in the place of each."""
    x = random(np.random.default_rng(7), 21, 75, dtype="float32")
    x[3, 5], x[4, 6], x[5, :2], x[6, 74] = np.nan, np.inf, (9.0, -9.0), -np.inf
    for fill in FILLS:
        _named(device, fill, lambda x, fill=fill: count_and_fill(x, -3.0, 3.0, fill=fill)[0], [x], tolerance=1e-5)
        _named(device, fill, lambda x, fill=fill: count_and_fill(x, -3.0, 3.0, fill=fill)[1], [x], exact=True)
    return f"filled with {', '.join(FILLS)}, and counted"


def int8(device: Device) -> str:
    """Rows and weights of int8, multiplied exactly in int32; and rows that are dispatched, and come back, as int8."""
    rng = np.random.default_rng(8)
    x, ids = random(rng, 21, 80, dtype="float32"), rng.random((21, 3)).argsort(-1)[:, :2].astype(np.int32)
    weight = rng.integers(-128, 128, (3, 48, 80)).astype(np.int8)
    scale = np.abs(random(rng, 3, 48, dtype="float32"))

    def multiplied(x: Tensor, ids: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=3)
        transposed = weight.swapaxes(1, 2)
        return hpmoe.combine(hpmoe.grouped_matmul(rows, transposed, route, scale=scale, row_dtype="int8"), route)

    worst = _named(device, "products", multiplied, [x, ids, weight, scale], tolerance=1e-5)
    rows = device.compare(hpmoe.moe_ffn, layer_inputs(1, dtype="float32"), before=hpmoe.quantize_rows(combine=True),
                          tolerance=3e-2)
    return f"products exact but for the last rounding, {worst:.1e}; of rows as int8 both ways, {rows:.1e}"


def _named(device: Device, name: str, f: Function, arrays: list[np.ndarray], **options: PyTree) -> float:
    try:
        return device.compare(f, [arrays], **options)
    except CheckFailed as failed:
        raise CheckFailed(f"{name}: {failed}") from None
