"""Activations of experts beside `hpmoe.swiglu`: from rows [R, 2I], the gate's columns first, to rows [R, I]."""

from __future__ import annotations

import dataclasses

from mindspore import Tensor, mint
from mindspore.mint.nn import functional

from hpmoe.support.errors import check_argument, is_number
from hpmoe.support.keywords import suggests_keywords


@dataclasses.dataclass(frozen=True)
class ClampedSwiglu:
    """The activation that `clamped_swiglu` returns."""

    limit: float

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = mint.split(x, x.shape[-1] // 2, dim=-1)
        return functional.silu(mint.clamp(gate, max=self.limit)) * mint.clamp(up, -self.limit, self.limit)


@dataclasses.dataclass(frozen=True)
class GptOssSwiglu:
    """The activation that `gpt_oss_swiglu` returns."""

    limit: float
    alpha: float

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = mint.split(x, x.shape[-1] // 2, dim=-1)
        gate, up = mint.clamp(gate, max=self.limit), mint.clamp(up, -self.limit, self.limit)
        return (up + 1) * (gate * mint.sigmoid(gate * self.alpha))


@suggests_keywords
def clamped_swiglu(limit: float) -> ClampedSwiglu:
    """Returns DeepSeek-V4's SwiGLU of clamped columns: silu(min(g, limit)) * clamp(u, -limit, limit).

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
    return ClampedSwiglu(limit)


@suggests_keywords
def gpt_oss_swiglu(limit: float = 7.0, alpha: float = 1.702) -> GptOssSwiglu:
    """Returns gpt-oss' activation: (u + 1) * g * sigmoid(alpha * g), of g clamped to at most limit and u to -limit..limit.

    Args:
        limit: a positive number, `swiglu_limit` of a model's config.
        alpha: a number, `swiglu_alpha` of a model's config.

    Returns:
        A function of [R, 2I] to [R, I]. Columns 0..I-1 are g and columns I..2I-1 are u. Checkpoints of gpt-oss, in which g
        and u alternate, are sorted when they are loaded.

    Raises:
        ArgumentError: limit is not a positive number, or alpha is not a number.

    Example:
        >>> import mindspore as ms
        >>> gpt_oss_swiglu()(ms.Tensor([[30.0, 1.0]])).asnumpy().round(2).tolist()
        [[14.0]]
    """
    who = "hpmoe.nn.gpt_oss_swiglu"
    check_argument(is_number(limit) and limit > 0, who, "limit", repr(limit), "a positive float32 number")
    check_argument(is_number(alpha), who, "alpha", repr(alpha), "a finite float32 number")
    return GptOssSwiglu(limit, alpha)


def relu2(x: Tensor) -> Tensor:
    """Returns relu(x)^2, the activation of Nemotron's experts, which have no gate.

    Example:
        >>> import mindspore as ms
        >>> relu2(ms.Tensor([[3.0, -1.0]])).asnumpy().tolist()
        [[9.0, 0.0]]
    """
    return mint.square(functional.relu(x))
