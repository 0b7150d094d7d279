"""Formats of quantised rows: elements of one byte, then a scale for each block of them, together one row of bytes.

A block is a whole row, or a fixed number of its columns; the last block may be shorter. `amax` is a block's largest
magnitude.

- float32 scales: scale = amax / L, L = 127 of int8 and 448 of float8_e4m3fn; x / scale is rounded to an element. Where scale
  is 0 (a block of zeros, or of numbers so small that amax / L underflows) all elements are 0.
- e8m0 scales (OCP Microscaling Formats v1.0, MXFP8 E4M3 with blocks of 32): scale = 2^(floor(log2(amax)) - 8), no less than
  2^-127, which zeros have; x / scale is rounded to an element.
- Rounding is to the nearest, ties to even; what is larger than L is L with its sign (saturation).
- A block with a NaN or an infinity has a scale of NaN and elements of 0, so that the whole block reads back as NaN.
- Read back, an element is element * scale in float32, rounded once to the dtype that it is stored in.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum

import numpy as np

from hpmoe.support.errors import check_argument, is_int, is_name
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.terms import Number, ceil_div, where


class Element(IntEnum):
    """Format of an element of a quantised row."""

    INT8 = 0
    E4M3 = 1


class BlockScale(IntEnum):
    """Format of the scale of a block."""

    FLOAT32 = 0
    E8M0 = 1


LARGEST = {Element.INT8: 127.0, Element.E4M3: 448.0}
INFINITY_BITS = 0x7F800000
LARGEST_EXPONENT = 8  # of an element of e4m3
NAN_CODE = 255  # of an e8m0 scale


@dataclasses.dataclass(frozen=True)
class RowFormat(Params):
    """Format of quantised rows: elements, scales, and columns of a block; block 0 is a whole row."""

    element: Element
    scale: BlockScale
    block: int

    def is_known(self) -> Number:
        """Returns whether this format exists: int8 has only float32 scales."""
        return (self.block >= 0) & ((self.element == Element.E4M3) | (self.scale == BlockScale.FLOAT32))

    @property
    def scale_bytes(self) -> Number:
        return where(self.scale == BlockScale.E8M0, 1, 4)

    def blocks(self, cols: Number) -> Number:
        """Returns the number of blocks in a row of `cols` columns."""
        return where(self.block > 0, ceil_div(cols, where(self.block > 0, self.block, 1)), where(cols > 0, 1, 0))

    def packed_cols(self, cols: Number) -> Number:
        """Returns the bytes of a row of `cols` columns.

        Example:
            >>> format_of("int8").packed_cols(64), format_of("mxfp8", 32).packed_cols(64)
            (68, 66)
        """
        return cols + self.blocks(cols) * self.scale_bytes

    def cols_of(self, packed: Number) -> Number:
        """Returns the columns of a row of `packed` bytes, or -1 if no row has this size."""
        blocks = where(self.block > 0, ceil_div(packed, self.block + self.scale_bytes), 1)
        cols = packed - self.scale_bytes * blocks
        return where((cols > 0) & (self.packed_cols(cols) == packed), cols, -1)

    @property
    def passes(self) -> int:
        """Number of passes of an NPU over float32 elements: magnitude, maximum, product, rounding, conversion."""
        return 5


FORMATS = {"int8": (Element.INT8, BlockScale.FLOAT32), "float8_e4m3fn": (Element.E4M3, BlockScale.FLOAT32),
           "mxfp8": (Element.E4M3, BlockScale.E8M0)}


MX_BLOCK = 32  # columns of a block of mxfp8, whose name says so
WEIGHT_FORMATS = {"int8": RowFormat(Element.INT8, BlockScale.FLOAT32, 0),
                  "float8_e4m3fn": RowFormat(Element.E4M3, BlockScale.FLOAT32, 0),
                  "mxfp8": RowFormat(Element.E4M3, BlockScale.E8M0, MX_BLOCK)}


def format_of(dtype: str, block: int = 0) -> RowFormat:
    """Returns the format of a name, with a scale for each `block` columns, or for each row if 0."""
    check_argument(is_name(dtype, FORMATS), "quantize", "dtype", repr(dtype), f"one of {', '.join(FORMATS)}")
    check_argument(is_int(block, 0), "quantize", "block", repr(block), "columns, an int in 0..2**30")
    return RowFormat(*FORMATS[dtype], block)


def quantized(rows: np.ndarray, form: RowFormat) -> np.ndarray:
    """Returns rows of floats [n, N] as rows of bytes."""
    cols = rows.shape[1]
    x = _in_blocks(rows.astype(np.float32), form)
    top = np.max(np.abs(x).view(np.uint32), axis=-1, keepdims=True)  # of magnitudes, in the order of their bits
    is_finite = top < INFINITY_BITS
    with np.errstate(all="ignore"):
        if form.scale is BlockScale.E8M0:
            exponent = np.maximum(top >> 23, LARGEST_EXPONENT) - LARGEST_EXPONENT
            scales = np.where(is_finite, exponent, NAN_CODE).astype(np.uint8)
            scale = e8m0_values(scales)
        else:
            scale = np.where(is_finite, top.view(np.float32) / np.float32(LARGEST[form.element]), np.float32(np.nan))
            scales = scale.view(np.uint8)
        scaled = np.where(scale > 0, x / scale, np.float32(0))
    elements = _rounded_to(form.element, scaled).reshape(len(rows), x.shape[1] * x.shape[2])[:, :cols]
    return np.concatenate([elements, scales.reshape(len(rows), form.packed_cols(cols) - cols)], axis=1)


def dequantized(packed: np.ndarray, form: RowFormat) -> np.ndarray:
    """Returns rows of bytes as rows of float32."""
    cols = form.cols_of(packed.shape[1])
    scales = scales_in(packed, cols, form)
    scale = e8m0_values(scales) if form.scale is BlockScale.E8M0 else scales
    block = form.block or cols
    with np.errstate(all="ignore"):
        return values_of(form.element, packed[:, :cols]) * np.repeat(scale, block, axis=1)[:, :cols]


def scales_in(packed: np.ndarray, cols: int, form: RowFormat) -> np.ndarray:
    """Returns the scales of rows of bytes, [n, blocks]: float32, or the bytes of e8m0."""
    scales = np.ascontiguousarray(packed[:, cols:])
    return scales if form.scale is BlockScale.E8M0 else scales.view(np.float32)


def values_of(element: Element, codes: np.ndarray) -> np.ndarray:
    """Returns the float32 numbers that bytes, or int8, stand for as elements."""
    codes = np.ascontiguousarray(codes).view(np.uint8)
    return codes.view(np.int8).astype(np.float32) if element is Element.INT8 else E4M3_VALUES[codes]


def _in_blocks(rows: np.ndarray, form: RowFormat) -> np.ndarray:
    """Returns rows as [n, blocks, columns of a block], with zeros after the last column."""
    n, cols = rows.shape
    block, blocks = form.block or cols, form.blocks(cols)
    return np.pad(rows, ((0, 0), (0, blocks * block - cols))).reshape(n, blocks, block)


def _rounded_to(element: Element, x: np.ndarray) -> np.ndarray:
    if element is Element.INT8:
        return np.clip(np.rint(x), -127, 127).astype(np.int8).view(np.uint8)
    return e4m3_codes(x)


def e4m3_codes(x: np.ndarray) -> np.ndarray:
    """Converts numbers that are not NaN to float8_e4m3fn: rounds to nearest even and saturates."""
    magnitude = np.minimum(np.abs(x), np.float32(LARGEST[Element.E4M3]))
    bits = magnitude.view(np.uint32)
    normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3)
    subnormal = np.rint(magnitude * np.float32(512)).astype(np.uint32)
    sign = x.view(np.uint32) >> 24 & 0x80
    return (np.where(magnitude < 2.0**-6, subnormal, normal) | sign).astype(np.uint8)


def _e4m3_values() -> np.ndarray:
    """Returns the value of each of the 256 codes."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    magnitude = np.where(exponent > 0, np.ldexp(8 + fraction, exponent - 10), np.ldexp(fraction, -9))
    return np.where(code & 127 == 127, np.nan, np.where(code & 128, -magnitude, magnitude)).astype(np.float32)


E4M3_VALUES = _e4m3_values()


def e8m0_values(codes: np.ndarray) -> np.ndarray:
    """Returns the values of e8m0 scales: powers of two, or NaN."""
    return np.where(codes == NAN_CODE, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127)).astype(np.float32)
