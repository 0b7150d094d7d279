"""rms_norm_rows: each row divided by the root of its mean square."""

from __future__ import annotations

from mindspore import Tensor, mint

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.route import check_tensor
from hpmoe.support.errors import check_argument, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops.norms import RMS_NORM, RMS_NORM_GRAD, rms_norm_grad as tile_rms_norm_grad, scale_of

rms_norm = Primitive("rms_norm")
rms_norm_grad = Primitive("rms_norm_grad")
rms_norm.reference(lambda x, eps: x * scale_of(x, eps))
rms_norm.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(RMS_NORM, eqn)))
rms_norm_grad.infer(lambda g, x, eps: x)
rms_norm_grad.reference(tile_rms_norm_grad)
rms_norm_grad.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(RMS_NORM_GRAD, eqn)))


@suggests_keywords
def rms_norm_rows(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divides each row by the root of its mean square, in one task for a tile of rows.

    Args:
        x: [..., H], received rows too.
        eps: added to the mean square.

    Returns:
        x / sqrt(mean(x^2, -1) + eps), of the shape and dtype of x, computed in float32. Multiply by a gain of [H] where the
        model has one.

    Raises:
        ArgumentError: x has no last dimension, or eps is no positive number.

    Formula: Zhang and Sennrich, Root Mean Square Layer Normalization (arXiv 1910.07467).

    Example:
        >>> import mindspore as ms, hpmoe
        >>> hpmoe.token_ops.rms_norm_rows(ms.Tensor([[3.0, 4.0], [0.0, -2.0]])).asnumpy()
        array([[ 0.8485281,  1.1313708],
               [ 0.       , -1.4142132]], dtype=float32)
    """
    outside_graphs("hpmoe.token_ops.rms_norm_rows")
    is_positive = is_number(eps) and eps > 0
    check_argument(is_positive, "hpmoe.token_ops.rms_norm_rows", "eps", repr(eps), "a positive number that float32 holds")
    return rms_norm(x, float(eps))


@rms_norm.infer
def _(x: ShapeDtypeStruct, eps: float) -> ShapeDtypeStruct:
    check_argument(len(x.shape) >= 2, "rms_norm_rows", "x", x, "rows [..., H]")
    return x


@rms_norm.eager
@in_float32
def _(x: Tensor, eps: float) -> Tensor:
    check_tensor("hpmoe.token_ops.rms_norm_rows", "x", x)
    check_argument(x.ndim >= 2, "hpmoe.token_ops.rms_norm_rows", "x", f"of shape {x.shape}", "rows [..., H]")
    return x / mint.sqrt(mint.mean(x * x, -1, True) + eps)


@rms_norm.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, eps = eqn.inputs
    return [b.add(rms_norm_grad, cotangents[0], x, eps), None]
