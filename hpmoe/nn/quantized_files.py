"""Quantized arrays of checkpoints as published: read as floats, or kept as `hpmoe.grouped_matmul(scale=)` takes them.

    X (F8_E4M3 [..., r, c]), X_scale_inv (F32 [..., ceil(r / 128), ceil(c / 128)])    value * scale of its block
    X_blocks (U8 [E, c, r / 32, 16]), X_scales (U8 [E, c, r / 32])                    X [E, r, c], fp4 * 2^(scale - 127)
    X (I8 or F8_E4M3 [..., r, c]), X_scale ([..., r, 1])                              value * scale of its row

A layer keeps int8 or float8_e4m3fn [E, K, N] with scales float32 [E, N], one for each output; and mxfp8 [E, N, K] with
scales [E, N, K / 32]: MXFP4, since e4m3 has all values of fp4, and FP8 blocks whose scales are powers of two.

Sources: DeepSeek-V3's model card; OCP Microscaling Formats 1.0, with the low nibble first, as gpt-oss has it;
compressed-tensors, strategy "channel".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn

from hpmoe.nn.expert_reads import read_into
from hpmoe.nn.matching import Block, Place
from hpmoe.nn.moe_layer import MoELayer
from hpmoe.nn.safetensors import Stored
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.row_formats import E4M3_VALUES, e4m3_codes

WEIGHTS = ("experts.weight1", "experts.weight2")  # those that a layer keeps quantized
BLOCK = 128  # rows and columns that share a scale
GROUP = 32  # values of MXFP4 that share a scale
FP4 = e4m3_codes(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32))


class Quantized(NamedTuple):
    """A quantized array [..., r, c] of a checkpoint."""

    kind: str  # "blocks", "channel" or "mxfp4", in the order of this file's text
    codes: Stored  # int8, or the bytes of e4m3
    scales: Stored  # floats, of mxfp4 bytes of e8m0
    step: tuple[int, int]  # rows and columns of the array that share a scale
    names: tuple[str, str]  # what follows the array's name in the names of its codes and its scales


def find_quantized(arrays: Mapping[str, Stored]) -> dict[str, Quantized]:
    """Returns the quantized arrays of a checkpoint that have scales of a known shape, by name."""
    found = {}
    for name, array in arrays.items():
        if array.dtype in ("F8_E4M3", "I8") and len(array.shape) > 1:
            *outer, rows, columns = array.shape
            blocks, channels = (*outer, -(-rows // BLOCK), -(-columns // BLOCK)), (*outer, rows, 1)
            for kind, suffix, shape, step in (("blocks", "_scale_inv", blocks, (BLOCK, BLOCK)),
                                              ("channel", "_scale", channels, (1, columns))):
                if (scale := arrays.get(name + suffix)) is not None and scale.shape == shape:
                    found[name] = Quantized(kind, array, scale, step, ("", suffix))
        short = name.removesuffix("_blocks")
        if short != name and (scale := arrays.get(f"{short}_scales")) is not None:
            if array.dtype == scale.dtype == "U8" and array.shape == (*scale.shape, GROUP // 2) and len(scale.shape) == 3:
                found[short] = Quantized("mxfp4", _nibbles(array), _by_input(scale), (GROUP, 1), ("_blocks", "_scales"))
    return found


def dequantized(arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns the arrays of a checkpoint with quantized ones and their scales replaced by arrays of floats.

    An array that is read in part reads the scales of that part. Quantized arrays whose scales are missing, or have another
    shape, stay as they are.
    """
    quantized = find_quantized(arrays)
    replaced = {name + suffix for name, array in quantized.items() for suffix in array.names}
    values = {name: _values(array) for name, array in quantized.items()}
    return {name: array for name, array in arrays.items() if name not in replaced} | values


def _values(array: Quantized) -> Stored:
    """Returns an array times its scales: MXFP4 in bfloat16, which holds it exactly, others in float32."""
    codes, scales, is_mxfp4 = array.codes, _expanded(array.scales, array.codes.shape, array.step), array.kind == "mxfp4"

    def read(*ranges: range) -> np.ndarray:
        found, scale = codes.read(*ranges), scales.read(*ranges)
        values = found.astype(np.float32) if codes.dtype == "I8" else E4M3_VALUES[found]
        if is_mxfp4:
            return np.ldexp(values, scale.astype(np.int32) - 127).astype(numpy_dtype("bfloat16"))
        return values * scale.astype(np.float32)

    return Stored("bfloat16" if is_mxfp4 else "float32", codes.shape, read)


def _expanded(scale: Stored, shape: tuple[int, ...], step: tuple[int, int]) -> Stored:
    """Returns scales, each of which `step` rows and columns of an array share, for every element of the array."""
    steps = (*[1] * (len(shape) - 2), *step)

    def read(*ranges: range) -> np.ndarray:
        ranges = (*ranges, *(range(size) for size in shape[len(ranges):]))
        parts = scale.read(*(range(r.start // s, -(-r.stop // s)) for r, s in zip(ranges, steps, strict=True)))
        return parts[np.ix_(*[np.arange(r.start, r.stop) // s - r.start // s for r, s in zip(ranges, steps, strict=True)])]

    return Stored(scale.dtype, shape, read)


def _nibbles(blocks: Stored) -> Stored:
    """Returns the codes of fp4 in blocks [E, c, r / 32, 16] as codes of e4m3, [E, r, c]."""
    experts, columns, groups, _ = blocks.shape
    shape = (experts, groups * GROUP, columns)

    def read(*ranges: range) -> np.ndarray:
        e, r, c = (*ranges, *map(range, shape[len(ranges):]))
        held = range(r.start // GROUP, -(-r.stop // GROUP))
        codes = blocks.read(e, c, held)
        found = FP4[np.stack((codes & 15, codes >> 4), -1)].reshape(len(e), len(c), -1)
        first = r.start - held.start * GROUP
        return found[:, :, first:first + len(r)].swapaxes(1, 2)

    return Stored("F8_E4M3", shape, read)


def _by_input(scales: Stored) -> Stored:
    """Returns scales [E, c, groups] of MXFP4 as [E, groups, c]."""
    experts, columns, groups = scales.shape

    def read(*ranges: range) -> np.ndarray:
        e, g, c = (*ranges, *map(range, (experts, groups, columns)[len(ranges):]))
        return scales.read(e, c, g).swapaxes(1, 2)

    return Stored("U8", (experts, groups, columns), read)


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


# Kept quantized.


def _kept(who: str, name: str, array: Quantized, transposed: bool) -> Quantized:
    """Returns an array as a layer keeps it; inputs are its last axis if `transposed`."""
    if array.kind == "mxfp4" and not transposed:
        return array
    check_argument(transposed, who, "keep_quantized", f"True, and {name} has scales of its inputs",
                   "True if its outputs have scales")
    if array.kind == "channel":
        return array
    mantissas, exponents = np.frexp(array.scales.read().astype(np.float32))
    codes = exponents + 126  # of e8m0
    check_argument(bool(((mantissas == 0.5) & (codes >= 0) & (codes < 255)).all()), who, "keep_quantized",
                   f"True, and {name} has scales of {BLOCK} x {BLOCK} that are no powers of two",
                   "True if each output has a scale, or each scale is a power of two",
                   "Without keep_quantized weights are read as floats.")
    *outer, rows, columns = array.codes.shape
    of_blocks = Stored("U8", codes.shape, lambda *ranges: codes[tuple(slice(r.start, r.stop) for r in ranges)])
    return array._replace(scales=_expanded(of_blocks, (*outer, rows, -(-columns // GROUP)), (BLOCK, BLOCK // GROUP)))


def kept_weights(who: str, layer: nn.Cell, quantized: Mapping[str, Quantized], places: Mapping[str, Place]
                 ) -> dict[str, Quantized]:
    """Returns the arrays of experts' weights of a checkpoint, by name, as a MoELayer keeps them."""
    mesh = getattr(layer, "mesh", None)
    check_argument(isinstance(layer, MoELayer) and (mesh is None or mesh.tp == 1), who, "keep_quantized",
                   f"True for a {type(layer).__name__}{'' if mesh is None else f' on {mesh}'}",
                   "True for an hpmoe.nn.MoELayer of whole experts")
    entries = {name: place.entry for name, place in places.items() if place.entry.parameter in WEIGHTS}
    floats = ", ".join([name for name in entries if name not in quantized][:4])
    check_argument(not floats, who, "keep_quantized", f"True, and these are not quantized: {floats}",
                   "True if all weights of experts are quantized")
    return {name: _kept(who, name, quantized[name], entry.transposed) for name, entry in entries.items()}


def keep(experts: nn.Cell, parameter: str, arrays: Mapping[str, Quantized], places: Mapping[str, Place], block: Block,
         at: np.ndarray | None) -> None:
    """Replaces a weight of a GroupedMLP, such as "experts.weight1", by quantized arrays and their scales.

    `arrays` and `places` are those of the checkpoint's arrays of this weight. `at` is the expert that each index of the
    weight's first axis holds; None for experts in order.
    """
    held, (_, inputs, outputs) = len(block.held), block.kinds[parameter][1]
    first = arrays[next(iter(places))]
    has_groups = first.kind != "channel"
    size = -(-inputs // GROUP) if has_groups else 1
    codes = np.empty((held, outputs, inputs), "int8" if first.codes.dtype == "I8" else "uint8")
    scales = np.empty((held, outputs, size), "uint8" if has_groups else "float32")
    of_scales = block._replace(kinds={**block.kinds, parameter: ("", (block.num_experts, size, outputs))})
    for name, place in places.items():
        read_into(codes.swapaxes(1, 2), arrays[name].codes, place, block)
        read_into(scales.swapaxes(1, 2), arrays[name].scales, place, of_scales)
    weight, scale = (codes, scales) if has_groups else (codes.swapaxes(1, 2), scales[..., 0])
    for name, array in ((f"weight{parameter[-1]}", weight), (f"scale{parameter[-1]}", scale)):
        array = np.ascontiguousarray(array if at is None else array[at])
        setattr(experts, name, Parameter(Tensor(array), name=f"experts.{name}", requires_grad=False))
        experts.splits[name] = "all"  # no shards
    setattr(experts, f"has_scale{parameter[-1]}", True)
