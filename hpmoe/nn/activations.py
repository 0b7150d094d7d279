"""Activations of experts beside `hpmoe.swiglu`: from rows [R, 2I], the gate's columns first, to rows [R, I]."""

from __future__ import annotations

from collections.abc import Callable

from mindspore import Tensor, mint
from mindspore.mint.nn import functional

from hpmoe.support.errors import check_argument, is_number
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def clamped_swiglu(limit: float) -> Callable[[Tensor], Tensor]:
    """SwiGLU of clamped columns, as DeepSeek-V4 has it: silu(min(g, limit)) * clamp(u, -limit, limit).

    Args:
        limit: a positive number; DeepSeek-V4's `swiglu_limit`, MindFormers' `activation_func_clamp_value`.

    Returns:
        A function of [R, 2I] to [R, I].

    Raises:
        ArgumentError: limit is not a positive number.

    Example:
        >>> import mindspore as ms
        >>> clamped_swiglu(10.0)(ms.Tensor([[30.0, -12.0]])).asnumpy().round(2).tolist()
        [[-100.0]]
    """
    check_argument(is_number(limit) and limit > 0, "hpmoe.nn.clamped_swiglu", "limit", repr(limit),
                   "a positive float32 number")

    def clamped(x: Tensor) -> Tensor:
        gate, up = mint.split(x, x.shape[-1] // 2, dim=-1)
        return functional.silu(mint.clamp(gate, max=limit)) * mint.clamp(up, -limit, limit)
    return clamped


@suggests_keywords
def gpt_oss_swiglu(limit: float = 7.0, alpha: float = 1.702) -> Callable[[Tensor], Tensor]:
    """The activation of gpt-oss: (u + 1) * g * sigmoid(alpha * g), of g clamped to at most limit and u to -limit..limit.

    Args:
        limit: a positive number, its `swiglu_limit`.
        alpha: a number, its `swiglu_alpha`.

    Returns:
        A function of [R, 2I] to [R, I].

    Raises:
        ArgumentError: limit is not a positive number, or alpha is no number.

    Example:
        >>> import mindspore as ms
        >>> gpt_oss_swiglu()(ms.Tensor([[30.0, 1.0]])).asnumpy().round(2).tolist()
        [[14.0]]
    """
    who = "hpmoe.nn.gpt_oss_swiglu"
    check_argument(is_number(limit) and limit > 0, who, "limit", repr(limit), "a positive float32 number")
    check_argument(is_number(alpha), who, "alpha", repr(alpha), "a finite float32 number")

    def clamped(x: Tensor) -> Tensor:
        gate, up = mint.split(x, x.shape[-1] // 2, dim=-1)
        gate, up = mint.clamp(gate, max=limit), mint.clamp(up, -limit, limit)
        return (up + 1) * (gate * mint.sigmoid(gate * alpha))
    return clamped
