"""Closed formulas for kernels of a vendor's library, and for a persistent kernel that another project wrote.

The simulator runs the taskflows of hpmoe. These formulas predict measured times of kernels whose schedules are not known:
each is a sum of a fixed time and of multiplications and reads that hide each other in part.
"""

from __future__ import annotations

import math

import numpy as np

from hpmoe.machines.machine import Machine
from hpmoe.support.dtypes import BYTES

SPLITS = 1, 2, 4, 8, 24  # parts of the sums of a product, on workers that would be idle
LEAST_INNER = 64  # products of a part
HEIGHTS, WIDTHS = (16, 32, 64, 128, 256), (32, 64, 128, 256, 512)  # of tiles that a product chooses from
FULL_ROWS = 256  # rows after which `operators.dequantize_us` grows no more
RESULT = 2  # bytes of a number of a result


def matmul_us(machine: Machine, rows: np.ndarray | float, cols: np.ndarray | float, inner: np.ndarray | float,
              quantized: bool = False, buffers: int = 0) -> np.ndarray:
    """Returns microseconds of matrix products as kernels, [n]: the least over tiles and splits of the sums.

    Args:
        rows, cols, inner: [n] or one number each; C[rows, cols] = A[rows, inner] B[cols, inner]^T.
        quantized: whether A and B are int8, with results in bfloat16; else all is bfloat16.
        buffers: copies of the operands that take turns, as benchmarks do to empty L2; 0 if L2 holds no operand.

    Example:
        >>> import hpmoe
        >>> matmul_us(hpmoe.machines.ascend_a3, [16, 8192], 7168, 4096).round().tolist()
        [52.0, 1471.0]
    """
    m, n, k = (np.atleast_1d(np.asarray(x, float)) for x in (rows, cols, inner))
    m, n, k = (x[:, None] for x in np.broadcast_arrays(m, n, k))
    height, width, parts = _choices(machine)
    size, operators = (1 if quantized else 2), machine.operators
    part_inner = k / parts
    tiles = np.ceil(m / height) * np.ceil(n / width) * parts
    of_tile = _tile_us(machine, np.minimum(height, m), np.minimum(width, n), part_inner, size, size)
    core = np.ceil(tiles / machine.num_aic) * of_tile
    workers = np.minimum(tiles, machine.num_aic)
    a, b, out = m * k * size, n * k * size, m * n * RESULT
    read = np.minimum(a + b * _passes(machine, b, m, height * k * size), b + a * _passes(machine, a, n, width * k * size))
    cold = np.clip(buffers * (a + b + out) / machine.l2.bytes - 1, 0, 1) if buffers else 1.0
    share = 1.0 if quantized else operators.read_share
    of_memory = np.minimum(machine.memory.bytes_per_us * share, workers * machine.memory.worker_bytes_per_us)
    of_l2 = np.minimum(operators.reuse_bytes_per_us, workers * machine.l2.worker_bytes_per_us)
    memory = read * (cold / of_memory + (1 - cold) / of_l2)
    memory = memory + np.where(parts > 1, 2 * 4 * parts * m * n, 0) / machine.l2.bytes_per_us
    memory = memory + np.maximum(0, out - machine.l2.bytes) * machine.memory.write_cost / machine.memory.bytes_per_us
    us = _together(core, memory, np.where(m <= machine.tile_rows, operators.row_overlap, operators.overlap))
    us = np.where((parts > 1) & (part_inner < LEAST_INNER), np.inf, us).min(axis=1)
    us = us + _fixed_us(machine, m[:, 0], quantized) + (_dequantized_us(machine, m * n)[:, 0] if quantized else 0.0)
    return operators.spread * us


def moe_ffn_us(machine: Machine, rows: np.ndarray, hidden: int, intermediate: int, entries: int, tokens: int,
               quantized: bool = False) -> float:
    """Returns microseconds of the experts of one rank as kernels: permute, product, SwiGLU, product and unpermute.

    Args:
        rows: of each expert of the rank, [E_local].
        hidden, intermediate: H and I.
        entries, tokens: rows of the permuted array, zeros for experts of other ranks, and rows of the result.
        quantized: whether rows and weights are int8.

    Example:
        >>> import hpmoe
        >>> round(moe_ffn_us(hpmoe.machines.ascend_a3, np.full(32, 8), 7168, 2048, 2048, 256))
        2301
    """
    size, read = (1 if quantized else 2), machine.memory.bytes_per_us
    kernels = 3 + 2 * quantized
    moved = entries * hidden * RESULT * (1 + machine.memory.write_cost) + tokens * hidden * RESULT
    moved += float(rows.sum()) * intermediate * RESULT * (2 + machine.memory.write_cost)
    us = kernels * machine.operators.vector_us + moved / read
    for inner, cols in ((hidden, 2 * intermediate), (intermediate, hidden)):
        core, memory = experts_us(machine, rows, inner, cols, size, size, 1.0 if quantized else machine.operators.read_share)
        exponent = np.where(rows <= machine.tile_rows, machine.operators.row_overlap, machine.operators.overlap)
        us += float(_together(core, memory, exponent).sum()) + float(_fixed_us(machine, rows.sum(), quantized))
        us += float(_dequantized_us(machine, rows.sum() * cols)) if quantized else 0.0
    return machine.operators.spread * us


def fused_us(machine: Machine, rows: np.ndarray, hidden: int, intermediate: int, ep_size: int,
             quantized: bool = False, weight_bytes: float | None = None, shared_rows: int = 0) -> float:
    """Returns microseconds of one kernel for dispatch, both products and combine, on the rank with these rows.

    Args:
        rows: of each expert of the rank, [E_local].
        hidden, intermediate: H and I.
        ep_size: ranks that send rows.
        quantized: whether rows and weights are int8 or fp8.
        weight_bytes: bytes of a weight with its share of scales, if it is smaller than a number of a row, as FP4 is.
        shared_rows: rows of a shared expert of the same size, which travel nowhere.

    Example:
        >>> import hpmoe
        >>> round(fused_us(hpmoe.machines.ascend_a3, np.full(32, 8), 6144, 2048, 8))
        1653
    """
    size, host = (1 if quantized else 2), machine.host
    every = np.append(rows, shared_rows)
    both = [experts_us(machine, every, inner, cols, size, weight_bytes or size, read_share=1.0)
            for inner, cols in ((hidden, 2 * intermediate), (intermediate, hidden))]
    core, memory = (sum(float(of[i].sum()) for of in both) for i in (0, 1))
    link = rows.sum() * (1 - 1 / ep_size) * hidden * (size + RESULT) / machine.link.rate(ep_size)
    work = float(_together(_together(core, memory, machine.operators.row_overlap), link, machine.operators.row_overlap))
    return host.launch_us + host.prologue_us + host.expert_us * len(rows) + work


def experts_us(machine: Machine, rows: np.ndarray, inner: int, cols: int, size: int, weight_bytes: float,
               read_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns microseconds of multiplications and of reads of each expert, [E_local] each.

    Numbers of rows are of `size` bytes, those of weights of `weight_bytes`. Tiles of all experts are dealt to all workers;
    experts without rows cost no time.
    """
    full = np.floor(rows / machine.tile_rows)
    rest = rows - full * machine.tile_rows
    widths = math.ceil(cols / machine.tile_cols) / machine.num_aic
    whole = _tile_us(machine, np.asarray(float(machine.tile_rows)), machine.tile_cols, inner, size, weight_bytes)
    last = np.where(rest > 0, _tile_us(machine, rest, machine.tile_cols, inner, size, weight_bytes), 0.0)
    rate = min(machine.memory.bytes_per_us * read_share, machine.num_aic * machine.memory.worker_bytes_per_us)
    return (full * whole + last) * widths, (rows > 0) * (weight_bytes * inner * cols) / rate


def _choices(machine: Machine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns heights, widths and splits to choose from, [1, choices] each: of tiles whose float32 sums the core holds."""
    fits = [(h, w, s) for h in HEIGHTS for w in WIDTHS for s in SPLITS if 4 * h * w <= machine.cube.accumulator_bytes]
    height, width, parts = np.array(fits, float).T[:, None]
    return height, width, parts


def _tile_us(machine: Machine, height: np.ndarray, width: np.ndarray | int, inner: np.ndarray | int,
             size: int, weight_bytes: float) -> np.ndarray:
    """Returns microseconds of a worker for a tile: its multiplications, or its operands out of L2 if these take longer."""
    granule = machine.cube.granule
    flops = 2 * np.ceil(height / granule) * granule * np.ceil(np.asarray(width) / granule) * granule * inner
    rate = machine.cube.rate(BYTES if size == 1 else "bfloat16")
    return np.maximum(flops / rate, (height * size + width * weight_bytes) * inner / machine.l2.worker_bytes_per_us)


def _passes(machine: Machine, bytes_: np.ndarray, across: np.ndarray, band: np.ndarray) -> np.ndarray:
    """Returns how often an operand is read: once if L2 keeps it, else once for each band of the other operand's tiles.

    A swizzled walk keeps a band of tiles, of `band` bytes each, in half of `operators.reuse_bytes`.
    """
    kept = machine.operators.reuse_bytes
    tiles = np.maximum(1, np.floor(kept / 2 / band))
    size = machine.tile_rows
    return np.where(bytes_ > kept, np.ceil(np.ceil(across / size) / tiles), 1)


def _together(a: np.ndarray | float, b: np.ndarray | float, exponent: np.ndarray | float) -> np.ndarray:
    """Returns the time of two things that hide each other in part: their sum at 1, their maximum at large exponents."""
    most = np.maximum(np.maximum(a, b), 1e-9)
    return most * ((a / most) ** exponent + (b / most) ** exponent) ** (1 / exponent)


def _fixed_us(machine: Machine, rows: np.ndarray | float, quantized: bool) -> np.ndarray:
    operators = machine.operators
    if not quantized:
        return np.asarray(operators.matmul_us)
    return (operators.quantized_matmul_us + operators.dequantize_us * np.sqrt(np.minimum(rows, FULL_ROWS) / FULL_ROWS)
            + operators.dequantize_row_us * rows)


def _dequantized_us(machine: Machine, sums: np.ndarray | float) -> np.ndarray:
    """Returns microseconds in which int32 sums become floats."""
    return np.asarray(sums * (4.0 + RESULT) / machine.operators.dequantize_bytes_per_us)
