"""SharedExperts: the expert that takes every token, as MindFormers' SharedExpertMLP lays it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import mint, nn

from hpmoe.nn.on_ranks import on_all
from hpmoe.nn.parameters import normal, zeros
from hpmoe.primitives.in_float32 import weight_beside
from hpmoe.primitives.matmul import matmul


def run_shared(hidden_states: Any, shared: dict[str, Any], activation: Callable[[Any], Any], gated: bool) -> Any:
    """[T, H] of [T, H]; in fc1 columns of gate and up alternate."""
    hidden = _linear(hidden_states, shared, "fc1")
    hidden = activation(mint.cat((hidden[:, ::2], hidden[:, 1::2]), -1) if gated else hidden)
    out = _linear(hidden, shared, "fc2")
    if "gate" in shared:
        out = out * mint.sigmoid(matmul(hidden_states, weight_beside(hidden_states, shared["gate"]), transpose=True))
    return out


def _linear(x: Any, shared: dict[str, Any], name: str) -> Any:
    out = matmul(x, weight_beside(x, shared[name]), transpose=True)
    bias = shared.get(f"{name}_bias")
    return out if bias is None else out + weight_beside(x, bias)


class Weights(nn.Cell):
    """Parameters of a linear layer: weight [out, in], and a bias [out] where asked for."""

    def __init__(self, shape: tuple[int, int], std: float, dtype: Any, has_bias: bool = False):
        super().__init__()
        self.weight = normal("weight", shape, std, dtype)
        if has_bias:
            self.bias = zeros("bias", shape[:1], dtype)


class SharedExperts(nn.Cell):
    """Parameters of the shared expert, which `MoELayer` runs beside the others.

    Parameters:
        linear_fc1.weight [2I, H], where rows of gate and up alternate, or [I, H] without a gate; linear_fc2.weight [H, I];
        biases where asked for; shared_experts_gate.weight [1, H] of a gate in front of it.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, gated: bool, gate: bool, has_bias: bool, std: float,
                 dtype: Any):
        super().__init__()
        self.has_bias, self.has_gate = has_bias, gate
        wide = intermediate_size * (2 if gated else 1)
        self.linear_fc1 = Weights((wide, hidden_size), std, dtype, has_bias)
        self.linear_fc2 = Weights((hidden_size, intermediate_size), std, dtype, has_bias)
        if gate:
            self.shared_experts_gate = Weights((1, hidden_size), std, dtype)

    def tensors(self, ep_size):
        """What it reads, by name."""
        found = {"fc1": on_all(self.linear_fc1.weight, ep_size), "fc2": on_all(self.linear_fc2.weight, ep_size)}
        if self.has_bias:
            found["fc1_bias"] = on_all(self.linear_fc1.bias, ep_size)
            found["fc2_bias"] = on_all(self.linear_fc2.bias, ep_size)
        if self.has_gate:
            found["gate"] = on_all(self.shared_experts_gate.weight, ep_size)
        return found
