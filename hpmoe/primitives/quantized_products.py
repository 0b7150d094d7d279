"""The tile tasks of a product with quantised weights: which there are, by what a machine's matrix units multiply.

    rows of bytes    GMM_INT8, or GMM_FP8, then RESCALE; of mxfp8 GMM_FP8 alone
    rows of floats   GMM_DEQUANTIZED where a worker is both units; else DEQUANTIZE_WEIGHT, GMM and a product with the scales
Matrix units alone multiply mxfp8 by weights whose blocks lie along the depth, whole pairs of these: weights, and rows, of
other products are dequantized before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe.ir.avals import ShapeDtypeStruct, as_route, fixed
from hpmoe.ir.program import Atom, Equation, Var
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.expert import rows_of_experts
from hpmoe.primitives.quantize_weight import ELEMENT_OF, split_copies
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import BYTES
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.elementwise import MAP
from hpmoe.tile_ops.functions import COPY, MUL
from hpmoe.tile_ops.matmuls import GMM
from hpmoe.tile_ops.params import EarlyMatmul, Elementwise
from hpmoe.tile_ops.quantized import DEQUANTIZE, QUANTIZE
from hpmoe.tile_ops.quantized_matmuls import (
    DEQUANTIZE_WEIGHT,
    GMM_DEQUANTIZED,
    GMM_FP8,
    GMM_INT8,
    RESCALE,
    DequantizedMatmul,
    Fp8Matmul,
)
from hpmoe.tile_ops.row_formats import MX_BLOCK, WEIGHT_FORMATS, Element
from hpmoe.tile_ops.tile_primitive import TilePrimitive

WHOSE = row_modes.SLOT_EXPERT, row_modes.REPLICA  # matrices are the rank's own, and copies
MX_PAIR = 2 * MX_BLOCK  # as deep a matrix unit of a 950 multiplies mxfp8


class QuantizedProduct:
    """A product with quantised weights whose tile tasks are emitted.

    Attributes:
        x, out, form, transposed, domain: the rows, the result, the format and layout of weights, and the units of tasks.
        given: the weights, the rank's own and those of replicas; `weights` are their accesses.
        scales: scales of columns, if there are any.
        of_blocks: scales of blocks of elements, if there are any.
    """

    def __init__(self, tiler: Tiler, eqn: Equation) -> None:
        (self.x, w, route, *more), self.out = eqn.inputs, eqn.outputs[0]
        self.tiler, self.form, self.transposed = tiler, WEIGHT_FORMATS[eqn.params["element"]], bool(eqn.params["transpose"])
        tiler.new(self.out)
        self.domain = tiler.rows_of(self.out)
        scale, copies, of_scales = split_copies(as_route(route.aval).placement, tuple(more))
        self.given, scales, cols = (w, *copies), (*scale, *of_scales), col_modes.ALL if self.transposed else col_modes.OWN
        self.weights = [tiler.at(a, rows, cols, dtypes=tuple(ELEMENT_OF))
                        for a, rows in zip(self.given, WHOSE, strict=False)]
        self.of_blocks = [tiler.at(a, rows, col_modes.ALL, dtypes=(BYTES,)) for a, rows in zip(
            scales if self.form.block else (), WHOSE, strict=False)]
        self.scales = [rows_of_experts(tiler, s, scales[1:]) for s in (() if self.form.block else scales[:1])]

    def of_floats(self) -> None:
        """Multiplies rows as they are, by dequantized weights."""
        rows = self.tiler.at(self.x, cols=col_modes.ALL)
        if not self.tiler.unified:
            self._dequantized_before(rows)
        else:
            params = DequantizedMatmul(self.transposed, self.form.element, self.form.scale, self.form.block)
            self._emit(GMM_DEQUANTIZED, self.tiler.at(self.out), rows, params, *self.scales)

    def of_quantised_rows(self) -> None:
        """Multiplies rows as bytes: exactly by a matrix unit; a vector unit makes numbers of the sums."""
        packed = self._packed()
        depth = self.form.cols_of(self.tiler.buffers[packed.buffer].cols)
        if not self.form.block:
            self._rescaled(packed)
        elif not self.tiler.unified and (not self.transposed or depth % MX_PAIR):
            self._dequantized_before(self._dequantized(packed, depth))
        else:
            self._emit(GMM_FP8, self.tiler.at(self.out), packed, Fp8Matmul(self.transposed, block=self.form.block))

    def _emit(self, primitive: TilePrimitive, to: Access, rows: Access, params: DequantizedMatmul | Fp8Matmul,
              *scales: Access) -> None:
        """Emits a product: its first weight, scales of columns or blocks, then operands of replicas."""
        first, *others = self.weights
        self.tiler.emit(primitive, self.domain, to, rows, first, *scales, *self.of_blocks[:1], *others,
                        *self.of_blocks[1:], params=params)

    def _rescaled(self, packed: Access) -> None:
        product, dtype, params = (GMM_INT8, "int32",
                                  EarlyMatmul(self.transposed)) if self.form.element is Element.INT8 else (
            GMM_FP8, "float32", Fp8Matmul(self.transposed))
        sums = self._sums(dtype)
        self.tiler.emit(product, self.domain, sums, packed, *self.weights, params=params)
        self.tiler.emit(RESCALE, self.domain, self.tiler.at(self.out), sums, packed, *self.scales, label="rescale")

    def _dequantized_before(self, rows: Access) -> None:
        """Multiplies by weights that vector units convert to the rows' dtype; float16 cannot hold those of mxfp8."""
        dtype, wanted = self.tiler.buffers[rows.buffer].dtype, self.out.aval.dtype
        if dtype == "float16" and self.form.block:
            dtype, rows = "float32", self._in_float32()
        weights = [dataclasses.replace(a, buffer=self._dequantized_weight(w, dtype, self.of_blocks[i:i + 1]))
                   for i, (a, w) in enumerate(zip(self.weights, self.given, strict=True))]
        is_last = not self.scales and wanted in (dtype, "float32")
        sums = self.tiler.at(self.out) if is_last else self._sums("float32")
        self.tiler.emit(GMM, self.domain, sums, rows, *weights, params=EarlyMatmul(self.transposed))
        if not is_last:
            self.tiler.emit(MAP, self.domain, self.tiler.at(self.out), sums, *self.scales,
                            params=Elementwise(MUL if self.scales else COPY), label="rescale")

    def _dequantized_weight(self, w: Atom, dtype: str, scales: Sequence[Access]) -> int:
        """Returns the buffer of a weight as floats, which is made once."""
        tiler, codes = self.tiler, self.tiler.buffer_of[w]
        for op in tiler.ops:
            made = op.operands[0].buffer
            if op.primitive is DEQUANTIZE_WEIGHT and op.operands[1].buffer == codes and tiler.buffers[made].dtype == dtype:
                return made
        made = tiler.new(Var(ShapeDtypeStruct(w.aval.shape, dtype)))
        given = (Access(b, cols=col_modes.ALL) for b in (made, codes, *(s.buffer for s in scales)))
        tiler.emit(DEQUANTIZE_WEIGHT, tiler.domain_of(codes), *given, cols=0, params=self.form, label="dequantize")
        return made

    def _packed(self) -> Access:
        """Returns the access to the rows as bytes; a task quantizes rows of floats."""
        tiler, x = self.tiler, self.x
        if x.aval.dtype == BYTES:
            return tiler.at(x, cols=col_modes.ALL, dtypes=(BYTES,))
        made = self._rows(self.form.packed_cols(fixed(x.aval.shape[1:])[0]), BYTES)
        tiler.emit(QUANTIZE, tiler.rows_of(x), made, tiler.at(x, cols=col_modes.ALL), cols=0, params=self.form,
                   label="quantize")
        return made

    def _dequantized(self, packed: Access, depth: int) -> Access:
        """Returns rows of mxfp8 as bfloat16, which has all their elements times scales except numbers below 2^-133."""
        made = self._rows(depth, "bfloat16")
        self.tiler.emit(DEQUANTIZE, self.tiler.rows_of(self.x), made, packed, cols=0, params=self.form, label="dequantize")
        return made

    def _in_float32(self) -> Access:
        made = self._rows(fixed(self.x.aval.shape[1:])[0], "float32")
        self.tiler.emit(MAP, self.tiler.rows_of(self.x), dataclasses.replace(made, cols=col_modes.OWN),
                        self.tiler.at(self.x), params=Elementwise(COPY), label="widen rows")
        return made

    def _rows(self, cols: int, dtype: str) -> Access:
        """Returns a variable with the rows of x, `cols` columns and a dtype."""
        return Access(self.tiler.buffer_of[self.tiler.like(self.x, cols, dtype=dtype)], cols=col_modes.ALL)

    def _sums(self, dtype: str) -> Access:
        made = self.tiler.like(self.out, *fixed(self.out.aval.shape[1:]), dtype=dtype)
        return Access(self.tiler.buffer_of[made])
