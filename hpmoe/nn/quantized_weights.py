"""Experts' weights that stay quantized in a layer: arrays of checkpoints as `hpmoe.grouped_matmul(scale=)` takes them.

    a scale for each output (compressed-tensors)    int8 or float8_e4m3fn [E, K, N], scales float32 [E, N]
    MXFP4                                           mxfp8 [E, N, K], since e4m3 has all values of fp4, scales [E, N, K / 32]
    FP8, powers of two for 128 x 128                mxfp8 [E, N, K], each scale for 4 groups of 32
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn

from hpmoe.nn.expert_reads import read_into
from hpmoe.nn.matching import Block, Place
from hpmoe.nn.moe_layer import MoELayer
from hpmoe.nn.quantized_files import BLOCK, FP4, GROUP, Quantized, by_input, expanded, nibbles
from hpmoe.nn.safetensors import Stored
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.row_formats import e4m3_codes

WEIGHTS = ("experts.weight1", "experts.weight2")
E4M3_OF_FP4 = e4m3_codes(FP4)


class Kept(NamedTuple):
    """An array of a checkpoint that stays quantized."""

    codes: Stored  # int8, or the bytes of e4m3, in the layout of the checkpoint
    scales: Stored  # one for each output column of `codes`, or for each `group` inputs of a column, in the same layout
    group: int  # number of inputs of a column that share a scale; 0 if all inputs share one


def _kept(who: str, name: str, array: Quantized, transposed: bool) -> Kept:
    """Returns an array as a layer keeps it; inputs are its last axis if `transposed`."""
    if array.kind == "mxfp4" and not transposed:
        return _of_mxfp4(array)
    check_argument(transposed, who, "keep_quantized", f"True, and {name} has scales of its inputs",
                   "True if its outputs have scales")
    if array.kind == "channel":
        return Kept(array.codes, array.scales, 0)
    mantissas, exponents = np.frexp(array.scales.read().astype(np.float32))
    codes = exponents + 126  # of e8m0
    check_argument(bool(((mantissas == 0.5) & (codes >= 0) & (codes < 255)).all()), who, "keep_quantized",
                   f"True, and {name} has scales of {BLOCK} x {BLOCK} that are no powers of two",
                   "True if each output has a scale, or each scale is a power of two",
                   "Without keep_quantized weights are read as floats.")
    *outer, rows, columns = array.codes.shape
    shape = (*outer, rows, -(-columns // GROUP))
    of_blocks = Stored("U8", codes.shape, lambda *ranges: codes[tuple(slice(r.start, r.stop) for r in ranges)])
    return Kept(array.codes, expanded(of_blocks, shape, (BLOCK, BLOCK // GROUP)), GROUP)


def _of_mxfp4(array: Quantized) -> Kept:
    experts, columns, groups = array.scales.shape
    codes = Stored("U8", (experts, groups * GROUP, columns), lambda *ranges: nibbles(array.codes, ranges, E4M3_OF_FP4))
    return Kept(codes, by_input(array.scales), GROUP)


def kept_weights(who: str, layer: nn.Cell, quantized: Mapping[str, Quantized], places: Mapping[str, Place]
                 ) -> dict[str, Kept]:
    """Returns the arrays of experts' weights of a checkpoint, by name, as a layer keeps them."""
    mesh = getattr(layer, "mesh", None)
    check_argument(isinstance(layer, MoELayer) and (mesh is None or mesh.tp == 1), who, "keep_quantized",
                   f"True for a {type(layer).__name__}{'' if mesh is None else f' on {mesh}'}",
                   "True for an hpmoe.nn.MoELayer of whole experts")
    entries = {name: place.entry for name, place in places.items() if place.entry.parameter in WEIGHTS}
    floats = ", ".join([name for name in entries if name not in quantized][:4])
    check_argument(not floats, who, "keep_quantized", f"True, and these are not quantized: {floats}",
                   "True if all weights of experts are quantized")
    return {name: _kept(who, name, quantized[name], entry.transposed) for name, entry in entries.items()}


def keep(experts: nn.Cell, parameter: str, arrays: Mapping[str, Kept], places: Mapping[str, Place], block: Block,
         at: np.ndarray | None) -> None:
    """Replaces a weight of a GroupedMLP, such as "experts.weight1", by quantized arrays and their scales.

    `arrays` and `places` are those of the checkpoint's arrays of this weight. `at` is the expert that each index of the
    weight's first axis holds; None for experts in order.
    """
    held, (_, inputs, outputs) = len(block.held), block.kinds[parameter][1]
    first = arrays[next(iter(places))]
    size = -(-inputs // first.group) if first.group else 1
    codes = np.empty((held, outputs, inputs), "int8" if first.codes.dtype == "I8" else "uint8")
    scales = np.empty((held, outputs, size), "uint8" if first.group else "float32")
    of_scales = block._replace(kinds={**block.kinds, parameter: ("", (block.num_experts, size, outputs))})
    for name, place in places.items():
        read_into(codes.swapaxes(1, 2), arrays[name].codes, place, block)
        read_into(scales.swapaxes(1, 2), arrays[name].scales, place, of_scales)
    weight, scale = (codes, scales) if first.group else (codes.swapaxes(1, 2), scales[..., 0])
    for name, array in ((f"weight{parameter[-1]}", weight), (f"scale{parameter[-1]}", scale)):
        array = np.ascontiguousarray(array if at is None else array[at])
        setattr(experts, name, Parameter(Tensor(array), name=f"experts.{name}", requires_grad=False))
        experts.splits[name] = "all"  # no shards
    setattr(experts, f"has_scale{parameter[-1]}", True)
