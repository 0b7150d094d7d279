"""Quantized arrays of checkpoints as published, read as floats: FP8 blocks, MXFP4, int8 or FP8 with a scale for each row.

    X (F8_E4M3 [..., r, c]), X_scale_inv (F32 [..., ceil(r / 128), ceil(c / 128)])    value * scale of its block
    X_blocks (U8 [E, c, r / 32, 16]), X_scales (U8 [E, c, r / 32])                    X [E, r, c], fp4 * 2^(scale - 127)
    X (I8 or F8_E4M3 [..., r, c]), X_scale ([..., r, 1])                              value * scale of its row

Sources: DeepSeek-V3's model card; OCP Microscaling Formats 1.0, with the low nibble first, as gpt-oss has it;
compressed-tensors, strategy "channel".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpmoe.nn.safetensors import Stored
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import numpy_dtype

BLOCK = 128  # rows and columns that share a scale
GROUP = 32  # values of MXFP4 that share a scale
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e4m3() -> np.ndarray:
    """Returns the values of the 256 codes of F8_E4M3: a sign, 4 bits of exponent, 3 of fraction, no infinity."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, (code & 7) / 8
    values = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0**(exponent - 7.0))
    values[code & 127 == 127] = np.nan
    return np.where(code > 127, -values, values).astype(np.float32)


E4M3 = _e4m3()


def dequantized(arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns the arrays of a checkpoint with quantized ones and their scales replaced by arrays of floats.

    An array that is read in part reads the scales of that part. Quantized arrays whose scales are missing, or have another
    shape, stay as they are.

    Example:
        >>> from hpmoe.nn.checkpoint_folder import open_arrays
        >>> state = {"w": np.int8([[1, -2], [3, 4]]), "w_scale": np.float32([[0.5], [2.0]])}
        >>> found = dequantized(open_arrays("example", state, ""))
        >>> list(found), found["w"].read().tolist()
        (['w'], [[0.5, -1.0], [6.0, 8.0]])
    """
    found = dict(arrays)
    for name, array in arrays.items():
        scales = {kind: arrays.get(f"{name}{kind}") for kind in ("_scale_inv", "_scale")}
        if array.dtype in ("F8_E4M3", "I8") and len(array.shape) > 1:
            *outer, rows, columns = array.shape
            blocks = (*outer, -(-rows // BLOCK), -(-columns // BLOCK))
            for kind, shape, step in (("_scale_inv", blocks, (BLOCK, BLOCK)), ("_scale", (*outer, rows, 1), (1, columns))):
                if (scale := scales[kind]) is not None and scale.shape == shape:
                    found[name] = _scaled(array, scale, step)
                    del found[f"{name}{kind}"]
        if name.endswith("_blocks") and (scale := arrays.get(f"{name[:-7]}_scales")) is not None:
            if array.dtype == scale.dtype == "U8" and array.shape == (*scale.shape, GROUP // 2) and len(scale.shape) == 3:
                found[name[:-7]] = _mxfp4(array, scale)
                del found[name], found[f"{name[:-7]}_scales"]
    return found


def _scaled(array: Stored, scale: Stored, step: tuple[int, int]) -> Stored:
    """Returns an array times scales, each of which `step` rows and columns share, in float32."""
    steps = (*[1] * (len(array.shape) - 2), *step)

    def read(*ranges: range) -> np.ndarray:
        ranges = (*ranges, *(range(size) for size in array.shape[len(ranges):]))
        codes = array.read(*ranges)
        values = E4M3[codes] if array.dtype == "F8_E4M3" else codes.astype(np.float32)
        parts = scale.read(*(range(r.start // s, -(-r.stop // s)) for r, s in zip(ranges, steps, strict=True)))
        at = [np.arange(r.start, r.stop) // s - r.start // s for r, s in zip(ranges, steps, strict=True)]
        return values * parts.astype(np.float32)[np.ix_(*at)]
    return Stored("float32", array.shape, read)


def _mxfp4(blocks: Stored, scales: Stored) -> Stored:
    """Returns the values [E, r, c] of blocks [E, c, r / 32, 16], which bfloat16 holds exactly."""
    experts, columns, groups, _ = blocks.shape

    def read(*ranges: range) -> np.ndarray:
        e, r, c = (*ranges, *(range(size) for size in (experts, groups * GROUP, columns)[len(ranges):]))
        held = range(r.start // GROUP, -(-r.stop // GROUP))
        codes, exponents = blocks.read(e, c, held), scales.read(e, c, held).astype(np.int32) - 127
        nibbles = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:3], GROUP)
        values = np.ldexp(FP4[nibbles], exponents[..., None]).reshape(len(e), len(c), -1)
        first = r.start - held.start * GROUP
        return values[:, :, first:first + len(r)].swapaxes(1, 2).astype(numpy_dtype("bfloat16"))
    return Stored("bfloat16", (experts, groups * GROUP, columns), read)


def fault_of_quantization(config: Fields) -> str:
    """Returns what `dequantized` cannot read of a model's quantization_config, "" if it reads all of it."""
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
