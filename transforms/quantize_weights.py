"""quantize_weights: experts' weights are multiplied as elements of one byte, by rows as they are or by int8 rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.expert import expert_scale
from hpmoe.primitives.grouped_matmul import grouped
from hpmoe.primitives.grouped_weight_grad import grouped_weight_grad
from hpmoe.primitives.quantize_weight import quantize_weight
from hpmoe.primitives.quantized import dequantize, quantize
from hpmoe.primitives.quantized_matmul import MULTIPLIED, ROW_DTYPES, grouped_quantized, product_params
from hpmoe.primitives.replicate import replicate_weights
from hpmoe.primitives.row_dot import row_dot
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import TransformError, check_argument, is_name
from hpmoe.tile_ops.row_formats import WEIGHT_FORMATS

BACKWARDS = ("straight_through", "quantized")


def _check(dtype: str = "int8", row_dtype: str | None = None, backward: str = "straight_through") -> None:
    who = "quantize_weights"
    check_argument(is_name(dtype, WEIGHT_FORMATS), who, "dtype", repr(dtype), f"one of {', '.join(WEIGHT_FORMATS)}")
    check_argument(row_dtype is None or (is_name(row_dtype, ROW_DTYPES) and row_dtype == dtype), who, "row_dtype",
                   repr(row_dtype), f"\"{dtype}\" beside weights of {dtype}, or None for rows as they are")
    check_argument(is_name(backward, BACKWARDS), who, "backward", repr(backward), f"one of {', '.join(BACKWARDS)}")
    check_argument(backward != "quantized" or row_dtype is not None, who, "backward", repr(backward),
                   "\"straight_through\" where rows stay as they are")


@transform(requires="program", once=True, check=_check, passes="both")
def quantize_weights(program: Program, *, dtype: str = "int8", row_dtype: str | None = None,
                     backward: str = "straight_through") -> Program:
    """Multiplies received rows by experts' weights of one byte an element: W8, or W8A8 with a `row_dtype`.

    Each launch rounds the weights that it is given, with a scale for each column of an expert's matrix, in tile tasks of the
    same kernel. Weights that are quantised already are arguments of `hpmoe.grouped_matmul` instead, which has the formulas.
    `hpmoe.tile_ops.row_formats` defines the rounding of columns and rows. Copies of experts (`replicate_experts`)
    are sent as what their owners have rounded, a byte an element, with the scales; copies that the forward pass saves for
    the backward one travel as floats, and are rounded where they arrive: `save_for_backward(policy="dispatched_rows")`,
    between the two, leaves them out.

    Gradients are straight-through: those of the function of the rounded rows and weights, passed on as if nothing had been
    rounded. With `quantize_rows` to the same dtype, before or after, rows are multiplied as they arrive.

    Rewrite:
        b = grouped_matmul x w r  ->  q, s = quantize_weight[dtype=int8] w    b = grouped_matmul_quantized x q r s
        of int8 rows                  p = quantize[dtype=int8] x              b = grouped_matmul_quantized[rows=int8] p q r s
        gradient, g @ w^T             h = expert_scale g s r                  d = grouped_matmul_quantized[transpose] h q r
        of int8 rows, x^T @ g         y = dequantize[dtype=int8] p            grouped_weight_grad y g r

    Requires: a plain function with grouped matmuls; transforms of the traced Program come before it.
    Ensures: the same function of rounded weights, and rows; dense matmuls, as those of routers, stay as they are.

    Args:
        f: the function.
        dtype: element type of weights, "int8" or "float8_e4m3fn"; or "mxfp8", float8_e4m3fn with an e8m0 scale for each
            32 elements of a column (OCP MX) instead of one for the column.
        row_dtype: None multiplies unrounded rows. The value of `dtype` also rounds rows, with a scale for each row, or for
            each 32 columns with mxfp8; sums of int8 are exact in int32, other sums are in float32.
        backward: "straight_through"; or "quantized", which multiplies output gradients by the scales of the weights and
            rounds them like rows before it multiplies them by the transposed weights.

    Raises:
        ArgumentError: an option is none of these.
        TransformError: applied out of order or twice; f has no grouped matmul.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 64), (4, 2), (4, 2), (2, 64, 6), (2, 3, 64)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 2), "int32")
        >>> w8a8 = hpmoe.chain(hpmoe.quantize_rows, hpmoe.quantize_weights(row_dtype="int8"))
        >>> print(w8a8(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(2)))
        # moe_ffn | quantize_rows(...) | quantize_weights(...)
        { lambda hidden_states:f32[4,64] topk_ids:i32[4,2] topk_weights:f32[4,2] gate_up_weight:f32[2,64,6]
                 down_weight:f32[2,3,64]
          let a:route[R]               = route[num_local_experts=2 ep_size=2 max_rows=16] topk_ids
              b:u8[4,68]               = quantize[dtype=int8] hidden_states
              c:u8[R,68]               = dispatch b a
              d:i8[2,6,64] e:f32[2,6]  = quantize_weight[dtype=int8] gate_up_weight
              f:f32[R,6]               = grouped_matmul_quantized[element=int8 transpose=True to=float32 rows=int8] c d a e
              g:f32[R,3]               = swiglu f
              h:i8[2,64,3] i:f32[2,64] = quantize_weight[dtype=int8] down_weight
              j:u8[R,7]                = quantize[dtype=int8] g
              k:f32[R,64]              = grouped_matmul_quantized[element=int8 transpose=True to=float32 rows=int8] j h a i
              l:f32[4,64]              = combine k a topk_weights
          in (l,) : f32[4,64] }
    """
    if program.token_rows is None and not any(e.primitive is grouped for e in program.equations):
        raise TransformError(f"quantize_weights: {program.name} has no grouped matmul, so it has no experts' weights")
    return map_equations(program, _Rule(program, dtype, row_dtype or "", backward == "quantized"))


@dataclasses.dataclass
class _Rule:
    """The rewrite of an equation, with the values that are quantised already.

    Attributes:
        exact: values that a backward program computes from the given gradients.
        transposed: gradients of rows, results of products with transposed weights.
        packed: rows as they are multiplied, by the original rows.
        rounded: `packed` rows as floats.
        weights: quantised weights and their scales.
        weighted: (rows, factors) by rows that are other rows, each times a factor.
        sent: replicas that are sent here, and that only products read.
        copies: replicas of quantised weights, and of their scales.
    """

    program: Program
    dtype: str
    rows: str
    rounds_gradients: bool
    exact: set[Atom] = dataclasses.field(default_factory=set)
    transposed: set[Atom] = dataclasses.field(default_factory=set)
    packed: dict[Atom, Atom] = dataclasses.field(default_factory=dict)
    rounded: dict[Atom, Atom] = dataclasses.field(default_factory=dict)
    weights: dict[tuple[Atom, bool], tuple[Var, Var]] = dataclasses.field(default_factory=dict)
    weighted: dict[Atom, Sequence[Atom]] = dataclasses.field(default_factory=dict)
    sent: set[Atom] = dataclasses.field(default_factory=set)
    copies: dict[tuple[Atom, Atom], list[Var]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exact.update(self.program.cotangents)
        made = {v for e in self.program.equations if e.primitive is replicate_weights for v in e.outputs}
        self.sent.update(made.difference(self.program.outputs))

    @property
    def form(self) -> Mapping[str, object]:
        """Params of the quantize equation for rows to multiply; empty if rows are not quantised."""
        return MULTIPLIED.get(self.rows, {})

    def __call__(self, b: Builder, eqn: Equation) -> list[Atom] | None:
        is_exact = not self.exact.isdisjoint(eqn.inputs)
        out = self._rewritten(b, eqn, is_exact)
        if is_exact:
            self.exact.update(eqn.outputs if out is None else out)
        if eqn.primitive is mul and eqn.inputs[-1].aval.shape == (*eqn.outputs[0].aval.shape[:1], 1):
            self.weighted[eqn.outputs[0]] = eqn.inputs
        if eqn.primitive is dequantize and dict(eqn.params) == {**self.form, "to": eqn.params["to"]}:
            self.packed[eqn.outputs[0]], self.rounded[eqn.outputs[0]] = eqn.inputs[0], eqn.outputs[0]
        return out

    def _rewritten(self, b: Builder, eqn: Equation, is_exact: bool) -> list[Atom] | None:
        if eqn.primitive is grouped:
            return [self._gradient(b, eqn) if eqn.inputs[0] in self.exact else self._product(b, eqn)]
        is_about_rows = self.rows and is_exact and (eqn.primitive is grouped_weight_grad or (
            eqn.primitive is row_dot and not self.transposed.isdisjoint(eqn.inputs)))
        if not is_about_rows:
            return None
        rows, others = eqn.inputs[:2], eqn.inputs[2:]
        rounded = (a if a in self.exact else self._rounded(b, a, eqn.source) for a in rows)
        return [b.add(eqn.primitive, *rounded, *others, source=eqn.source, **eqn.params)]

    def _product(self, b: Builder, eqn: Equation) -> Var:
        (x, _, route), source = eqn.inputs[:3], eqn.source
        codes, scales, *copies = self._weights(b, eqn, eqn.params["transpose"])
        rows = self._packed(b, x, source) if self.rows else x
        params = product_params(self.dtype, True, self.rows, x.aval.dtype)
        return b.add(grouped_quantized, rows, codes, route, scales, *copies, source=source, **params)

    def _gradient(self, b: Builder, eqn: Equation) -> Var:
        """Adds the gradient of rows; scales of a weight's columns multiply `g`, since the product sums over them."""
        (g, _, route), source = eqn.inputs[:3], eqn.source
        codes, scales, *copies = self._weights(b, eqn, not eqn.params["transpose"])
        params = product_params(self.dtype, False, self.rows if self.rounds_gradients else "", g.aval.dtype)
        if WEIGHT_FORMATS[self.dtype].block:
            out = b.add(grouped_quantized, g, codes, route, scales, *copies, source=source, **params)
        else:
            scaled = b.add(expert_scale, g, scales, route, *copies[1:], source=source)
            out = b.add(grouped_quantized, scaled, codes, route, *copies[:1], source=source, **params)
        self.transposed.add(out)
        return out

    def _weights(self, b: Builder, eqn: Equation, transposed: bool) -> list[Var]:
        """The weight of a product and its scales; then those of copies, which are sent as their owners have rounded them
        where nothing else reads the copies as floats, and else rounded where they are."""
        (w, route, *copies), source = eqn.inputs[1:], eqn.source
        out = self._weight(b, w, transposed, source)
        if not copies:
            return [*out]
        if copies[0] not in self.sent:
            return [*out, *self._weight(b, copies[0], transposed, source)]
        if (out[0], route) not in self.copies:
            self.copies[out[0], route] = [b.add(replicate_weights, a, route, source=source) for a in out]
        return [*out, *self.copies[out[0], route]]

    def _weight(self, b: Builder, w: Atom, transposed: bool, source: str) -> tuple[Var, Var]:
        if (w, transposed) not in self.weights:
            params = {"dtype": self.dtype, **({"transposed": True} if transposed else {})}
            self.weights[w, transposed] = b.add(quantize_weight, w, source=source, **params)
        return self.weights[w, transposed]

    def _packed(self, b: Builder, x: Atom, source: str) -> Atom:
        if x not in self.packed:
            self.packed[x] = b.add(quantize, x, source=source, **self.form)
        return self.packed[x]

    def _rounded(self, b: Builder, x: Atom, source: str) -> Atom:
        """Returns the rounded rows; for weighted rows, the unweighted ones as rounded before.

        Scales of mxfp8 are powers of two, so that weighted rows would round differently.
        """
        if x not in self.rounded and x in self.weighted:
            rows, weights = self.weighted[x]
            self.rounded[x] = b.add(mul, self._rounded(b, rows, source), weights, source=source)
        if x not in self.rounded:
            self.rounded[x] = b.add(dequantize, self._packed(b, x, source), **self.form, to=x.aval.dtype, source=source)
        return self.rounded[x]
