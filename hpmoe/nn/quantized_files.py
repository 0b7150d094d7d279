"""Quantized arrays of checkpoints as published, read as floats: FP8 blocks, MXFP4, int8 or FP8 with a scale for each row.

    X (F8_E4M3 [..., r, c]), X_scale_inv (F32 [..., ceil(r / 128), ceil(c / 128)])    value * scale of its block
    X_blocks (U8 [E, c, r / 32, 16]), X_scales (U8 [E, c, r / 32])                    X [E, r, c], fp4 * 2^(scale - 127)
    X (I8 or F8_E4M3 [..., r, c]), X_scale ([..., r, 1])                              value * scale of its row

Sources: DeepSeek-V3's model card; OCP Microscaling Formats 1.0, with the low nibble first, as gpt-oss has it;
compressed-tensors, strategy "channel".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.nn.safetensors import Stored
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.tile_ops.row_formats import E4M3_VALUES

BLOCK = 128  # rows and columns that share a scale
GROUP = 32  # values of MXFP4 that share a scale
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


class Quantized(NamedTuple):
    """A quantized array of a checkpoint.

    Attributes:
        kind: "blocks", "channel" or "mxfp4", in the order of this file's text.
        codes, scales: its arrays, and `names` what follows the array's name in theirs.
    """

    kind: str
    codes: Stored
    scales: Stored
    names: tuple[str, str]


def find_quantized(arrays: Mapping[str, Stored]) -> dict[str, Quantized]:
    """Returns the quantized arrays of a checkpoint that have scales of a known shape, by name."""
    found = {}
    for name, array in arrays.items():
        if array.dtype in ("F8_E4M3", "I8") and len(array.shape) > 1:
            *outer, rows, columns = array.shape
            shapes = {"_scale_inv": (*outer, -(-rows // BLOCK), -(-columns // BLOCK)), "_scale": (*outer, rows, 1)}
            for (suffix, shape), kind in zip(shapes.items(), ("blocks", "channel"), strict=True):
                if (scale := arrays.get(name + suffix)) is not None and scale.shape == shape:
                    found[name] = Quantized(kind, array, scale, ("", suffix))
        short = name.removesuffix("_blocks")
        if short != name and (scale := arrays.get(f"{short}_scales")) is not None:
            if array.dtype == scale.dtype == "U8" and array.shape == (*scale.shape, GROUP // 2) and len(scale.shape) == 3:
                found[short] = Quantized("mxfp4", array, scale, ("_blocks", "_scales"))
    return found


def dequantized(arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns the arrays of a checkpoint with quantized ones and their scales replaced by arrays of floats.

    An array that is read in part reads the scales of that part. Quantized arrays whose scales are missing, or have another
    shape, stay as they are.
    """
    quantized = find_quantized(arrays)
    replaced = {name + suffix for name, array in quantized.items() for suffix in array.names}
    values = {name: _mxfp4(array) if array.kind == "mxfp4" else _scaled(array) for name, array in quantized.items()}
    return {name: array for name, array in arrays.items() if name not in replaced} | values


def expanded(scale: Stored, shape: tuple[int, ...], step: tuple[int, int]) -> Stored:
    """Returns scales, each of which `step` rows and columns of an array share, for every element of the array."""
    steps = (*[1] * (len(shape) - 2), *step)

    def read(*ranges: range) -> np.ndarray:
        ranges = (*ranges, *(range(size) for size in shape[len(ranges):]))
        parts = scale.read(*(range(r.start // s, -(-r.stop // s)) for r, s in zip(ranges, steps, strict=True)))
        return parts[np.ix_(*[np.arange(r.start, r.stop) // s - r.start // s for r, s in zip(ranges, steps, strict=True)])]
    return Stored(scale.dtype, shape, read)


def _scaled(array: Quantized) -> Stored:
    """Returns an array times its scales, in float32."""
    codes = array.codes
    scale = expanded(array.scales, codes.shape, (BLOCK, BLOCK) if array.kind == "blocks" else (1, codes.shape[-1]))

    def read(*ranges: range) -> np.ndarray:
        found = codes.read(*ranges)
        values = E4M3_VALUES[found] if codes.dtype == "F8_E4M3" else found.astype(np.float32)
        return values * scale.read(*ranges).astype(np.float32)
    return Stored("float32", codes.shape, read)


def nibbles(blocks: Stored, ranges: Sequence[range], values: np.ndarray) -> np.ndarray:
    """Returns the values, by code of fp4, of part of an array [E, r, c] whose blocks are [E, c, r / 32, 16]."""
    experts, columns, groups, _ = blocks.shape
    e, r, c = (*ranges, *(range(size) for size in (experts, groups * GROUP, columns)[len(ranges):]))
    held = range(r.start // GROUP, -(-r.stop // GROUP))
    codes = blocks.read(e, c, held)
    found = values[np.stack((codes & 15, codes >> 4), -1)].reshape(len(e), len(c), -1)
    first = r.start - held.start * GROUP
    return found[:, :, first:first + len(r)].swapaxes(1, 2)


def by_input(scales: Stored) -> Stored:
    """Returns scales [E, c, groups] of MXFP4 as [E, groups, c]."""
    experts, columns, groups = scales.shape

    def read(*ranges: range) -> np.ndarray:
        e, g, c = (*ranges, *map(range, (experts, groups, columns)[len(ranges):]))
        return scales.read(e, c, g).swapaxes(1, 2)
    return Stored("U8", (experts, groups, columns), read)


def _mxfp4(array: Quantized) -> Stored:
    """Returns the values [E, r, c] of blocks [E, c, r / 32, 16], which bfloat16 holds exactly."""
    experts, columns, groups = array.scales.shape
    shape = (experts, groups * GROUP, columns)
    exponents = expanded(by_input(array.scales), shape, (GROUP, 1))

    def read(*ranges: range) -> np.ndarray:
        exponent = exponents.read(*ranges).astype(np.int32) - 127
        return np.ldexp(nibbles(array.codes, ranges, FP4), exponent).astype(numpy_dtype("bfloat16"))
    return Stored("bfloat16", shape, read)


def fault_of_quantization(config: Fields) -> str:
    """Returns the fault of a model's quantization_config that `dequantized` cannot read, "" if it can."""
    method = config.get("quant_method")
    if method == "fp8":
        size = config.get("weight_block_size")
        return "" if size in ([BLOCK, BLOCK], (BLOCK, BLOCK)) else f"weight_block_size {size!r}"
    if method == "compressed-tensors":
        groups = (config.get("config_groups") or {}).values()
        weights = [group.get("weights") or {} for group in groups if isinstance(group, dict)]
        fits = all(w.get("num_bits") == 8 and w.get("strategy") == "channel" and w.get("symmetric", True) for w in weights)
        return "" if weights and fits else "weights that are not of 8 bits with a scale for each channel"
    return "" if method == "mxfp4" else f"quant_method {method!r}"
