"""SwiGLU: silu(first half) * second half of the columns."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint
from mindspore.mint.nn import functional

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Equation
from hpmoe.primitives.elementwise import silu
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.route import check_tensor
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops.elementwise import SWIGLU, SWIGLU_GRAD, swiglu_grad as tile_swiglu_grad

gated = Primitive("swiglu")
swiglu_grad = Primitive("swiglu_grad")
gated.vjp(lambda b, eqn, cotangents: [b.add(swiglu_grad, cotangents[0], eqn.inputs[0])])
swiglu_grad.reference(lambda g, x: np.concatenate(tile_swiglu_grad(g, *_halves(x)), axis=-1))


@suggests_keywords
def swiglu(x: Tensor) -> Tensor:
    """Returns SwiGLU over the last dimension: silu of its first half times its second half.

    Args:
        x: [..., 2I].

    Returns:
        [..., I].

    Raises:
        ArgumentError: x is no float tensor, or its last dimension is odd.

    Formula: Shazeer, GLU Variants Improve Transformer (arXiv 2002.05202), the gate's half first.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> hpmoe.swiglu(ms.Tensor([[0.0, 5.0], [20.0, 2.0]])).asnumpy().round(3).tolist()
        [[0.0], [40.0]]
    """
    outside_graphs("hpmoe.swiglu")
    return gated(x)


@gated.infer
def _(x: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_argument(len(x.shape) >= 1 and isinstance(x.shape[-1], int) and x.shape[-1] % 2 == 0, "swiglu", "x", x,
                   "an array whose last dimension is even")
    return ShapeDtypeStruct((*x.shape[:-1], fixed(x.shape)[-1] // 2), x.dtype)


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


@gated.reference
def _(x: np.ndarray) -> np.ndarray:
    gate, up = _halves(x)
    return silu.rules["reference"](gate) * up


@gated.eager
@in_float32
def _(x: Tensor) -> Tensor:
    check_tensor("hpmoe.swiglu", "x", x)
    check_argument(x.ndim >= 1 and x.shape[-1] % 2 == 0, "hpmoe.swiglu", "x", f"of shape {x.shape}",
                   "a tensor whose last dimension is even")
    gate, up = mint.chunk(x, 2, -1)
    return functional.silu(gate) * up


@gated.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), out = eqn.inputs, eqn.outputs[0]
    if len(out.aval.shape) < 2:
        tiler.refuse(f"makes {out.aval}; SwiGLU tiles take rows [..., 2I]")
    tiler.new(out)
    tiler.emit(SWIGLU, tiler.rows_of(out), tiler.at(out), tiler.at(x), tiler.at(x, offset=fixed(out.aval.shape)[-1]))


@swiglu_grad.infer
def _(g: ShapeDtypeStruct, x: ShapeDtypeStruct) -> ShapeDtypeStruct:
    return x


@swiglu_grad.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    (g, x), out, half = eqn.inputs, eqn.outputs[0], fixed(eqn.inputs[0].aval.shape)[-1]
    tiler.new(out)
    tiler.emit(SWIGLU_GRAD, tiler.rows_of(out), tiler.at(out), tiler.at(out, offset=half), tiler.at(g), tiler.at(x),
               tiler.at(x, offset=half), cols=half)
