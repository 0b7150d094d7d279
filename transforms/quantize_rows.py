"""quantize_rows: rows are dispatched as elements of one byte and scales, and read as floats again where they arrive."""

from __future__ import annotations

import dataclasses

from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import combine_rows, dispatch_rows
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.quantized import combine_quantized, dequantize, quantize
from hpmoe.primitives.quantized_matmul import MULTIPLIED, grouped_quantized
from hpmoe.primitives.relay import relay, relay_back
from hpmoe.runtime.transform import transform
from hpmoe.support.dtypes import BYTES
from hpmoe.support.errors import TransformError, check_argument, check_flags, is_int, is_name
from hpmoe.tile_ops.row_formats import FORMATS

BACKWARDS = ("straight_through", "quantized")
SCALES = {"int8": "token", "float8_e4m3fn": "token", "mxfp8": 32}


def _check(dtype: str = "int8", scale: str | int | None = None, combine: bool = False,
           backward: str = "straight_through") -> None:
    check_argument(is_name(dtype, FORMATS), "quantize_rows", "dtype", repr(dtype), f"one of {', '.join(FORMATS)}")
    if dtype == "mxfp8":
        check_argument(scale is None or (is_int(scale) and scale == 32), "quantize_rows", "scale", repr(scale),
                       "None or 32, the columns of a block of mxfp8")
    else:
        check_argument(scale is None or is_name(scale, ("token",)) or is_int(scale), "quantize_rows", "scale", repr(scale),
                       "\"token\", the columns of a block, an int in 1..2**30, or None")
    check_flags("quantize_rows", combine=combine)
    check_argument(is_name(backward, BACKWARDS), "quantize_rows", "backward", repr(backward),
                   f"one of {', '.join(BACKWARDS)}")


@transform(requires="program", once=True, check=_check, passes="both")
def quantize_rows(program: Program, *, dtype: str = "int8", scale: str | int | None = None,
                  combine: bool = False, backward: str = "straight_through") -> Program:
    """Dispatches rows as elements of one byte and scales: about half the bytes of bfloat16 rows, a quarter of float32.

    The ranks of tokens quantise each row once, and the ranks of experts read the rows that arrive as floats again, all in
    tile tasks of the same kernel. `hpmoe.tile_ops.row_formats` defines rounding and
    saturation; a row, or block, with a NaN or an infinity arrives as NaN.

    Gradients are straight-through: those of the function of the rows that arrived, passed on to the rows that were sent as
    if nothing had been rounded. Rows that `combine` sends back are quantised only with `combine=True`: each row of an
    expert, before it is weighted and summed in float32; the gradient of its weight is that of the row before rounding.

    Rewrite:
        b = dispatch x a  ->  q = quantize[dtype=int8] x    p = dispatch q a    b = dequantize[dtype=int8 to=float32] p
        e = combine d a w ->  q = quantize[dtype=int8] d    e = combine_quantized[dtype=int8 to=float32] q a w      (combine)

    Requires: a plain function with a dispatch; transforms of the traced Program come before it.
    Ensures: the same function of rounded rows. Products of rows in this format, see `quantize_weights`, read rows as
        they arrive.

    Args:
        f: the function.
        dtype: "int8"; "float8_e4m3fn"; or "mxfp8", float8_e4m3fn with an e8m0 scale for each 32 columns (OCP MX).
        scale: "token", a float32 scale for each row; an int, one for each block of this many columns; or None, "token", and
            32 columns for mxfp8, which has no others.
        combine: True also quantises the rows that experts send back. Apply send_rows(scheme="deduplicated"), which sends
            back sums, before.
        backward: "straight_through" sends gradients unquantised; "quantized" also quantises the gradients that the backward
            pass dispatches and, with combine=True, the gradients that it sends back.

    Raises:
        ArgumentError: an option is none of these.
        TransformError: applied out of order or twice; f has no dispatch.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 64), (4, 2), (4, 2), (2, 64, 6), (2, 3, 64)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 2), "int32")
        >>> print(hpmoe.quantize_rows(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(2)))
        # moe_ffn | quantize_rows(dtype=int8, backward=straight_through)
        { lambda hidden_states:f32[4,64] topk_ids:i32[4,2] topk_weights:f32[4,2] gate_up_weight:f32[2,64,6]
                 down_weight:f32[2,3,64]
          let a:route[R]  = route[num_local_experts=2 ep_size=2 max_rows=16] topk_ids
              b:u8[4,68]  = quantize[dtype=int8] hidden_states
              c:u8[R,68]  = dispatch b a
              d:f32[R,64] = dequantize[dtype=int8 to=float32] c
              e:f32[R,6]  = grouped_matmul d gate_up_weight a
              f:f32[R,3]  = swiglu e
              g:f32[R,64] = grouped_matmul f down_weight a
              h:f32[4,64] = combine g a topk_weights
          in (h,) : f32[4,64] }
    """
    _check_dispatches(program)
    block = SCALES[dtype] if scale is None else scale
    form = {"dtype": dtype, **({} if block == "token" else {"block": block})}
    exact = _gradients(program) if backward == "straight_through" else set()
    moves = (dispatch_rows, combine_rows) if combine else (dispatch_rows,)
    weights = {a for e in program.equations if e.primitive is relay_back for a in e.inputs[3:]}
    return map_equations(program, _Rule(form, moves, exact, weights))


def _check_dispatches(program: Program) -> None:
    is_whole = program.token_rows is None  # a segment before the exchanges has no token rows
    if is_whole and not any(e.primitive is dispatch_rows for e in program.equations):
        raise TransformError(f"quantize_rows: {program.name} has no dispatch, so it sends no rows to experts")


@dataclasses.dataclass
class _Rule:
    """The right side of the rewrite of one equation.

    Attributes:
        form: the params of quantize.
        moves: primitives that send quantised rows.
        exact: values that are sent unquantised.
        weights: weights of tokens, sent to relays.
        sent: rows that are quantised already, as bytes.
        arrived: arrived bytes, by the rows of floats that replace them elsewhere.
    """

    form: dict[str, object]
    moves: tuple[Primitive, ...]
    exact: set[Atom]
    weights: set[Atom]
    sent: dict[Atom, Var] = dataclasses.field(default_factory=dict)
    arrived: dict[Atom, Atom] = dataclasses.field(default_factory=dict)

    def __call__(self, builder: Builder, eqn: Equation) -> list[Atom] | None:
        if eqn.inputs and eqn.inputs[0] in self.arrived and (out := self._of_arrived(builder, eqn)):
            return out
        is_float = eqn.primitive in self.moves and eqn.inputs[0].aval.dtype != BYTES
        if not is_float or eqn.inputs[0] in self.exact or not self.weights.isdisjoint(eqn.outputs):
            return None
        return self._quantized(builder, eqn)

    def _of_arrived(self, builder: Builder, eqn: Equation) -> list[Atom] | None:
        """Rewrites equations that read rows as they arrive: products of such rows, and relays."""
        rows, others = self.arrived[eqn.inputs[0]], eqn.inputs[1:]
        if eqn.primitive is grouped_quantized and self.form == MULTIPLIED.get(str(eqn.params.get("rows", ""))):
            return [builder.keep(eqn.replace(inputs=(rows, *others)))]
        if eqn.primitive is quantize and dict(eqn.params) == self.form:
            return [rows]
        if eqn.primitive is relay:
            passed = builder.add(relay, rows, *others, source=eqn.source, **eqn.params)
            return [self._floats(builder, eqn, passed)]
        return None

    def _quantized(self, builder: Builder, eqn: Equation) -> list[Atom]:
        rows, route, *weights = eqn.inputs
        if rows not in self.sent:
            self.sent[rows] = builder.add(quantize, rows, source=eqn.source, **self.form)
        if eqn.primitive is combine_rows:
            return [builder.add(combine_quantized, self.sent[rows], route, *weights, **self.form, to=rows.aval.dtype,
                                source=eqn.source)]
        return [self._floats(builder, eqn, builder.add(dispatch_rows, self.sent[rows], route, source=eqn.source))]

    def _floats(self, builder: Builder, eqn: Equation, arrived: Var) -> Var:
        """Returns arrived rows as floats of the dtype that was sent."""
        out = builder.add(dequantize, arrived, **self.form, to=eqn.inputs[0].aval.dtype, source=eqn.source)
        self.arrived[out] = arrived
        return out


def _gradients(program: Program) -> set[Atom]:
    """Returns the values that a backward program computes from given gradients; it recomputes all others."""
    found: set[Atom] = set(program.cotangents)
    for eqn in program.equations:
        if not found.isdisjoint(eqn.inputs):
            found.update(eqn.outputs)
    return found
