"""SharedExperts: the expert that takes every token, laid out as MindFormers' SharedExpertMLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mindspore import Tensor, mint, nn

from hpmoe.nn.parameters import normal, zeros
from hpmoe.primitives.in_float32 import weight_beside
from hpmoe.primitives.matmul import matmul


def run_shared(hidden_states: Tensor, shared: Mapping[str, Tensor], activation: Callable[[Tensor], Tensor],
               gated: bool) -> Tensor:
    """Returns the shared expert's output [T, H]; columns of gate and up alternate after the first layer."""
    hidden = _linear(hidden_states, shared, "linear_fc1")
    hidden = activation(mint.cat((hidden[:, ::2], hidden[:, 1::2]), -1) if gated else hidden)
    out = _linear(hidden, shared, "linear_fc2")
    return out * mint.sigmoid(_linear(hidden_states, shared, GATE)) if f"{GATE}_weight" in shared else out


GATE = "shared_experts_gate"


def _linear(x: Tensor, shared: Mapping[str, Tensor], name: str) -> Tensor:
    out, bias = matmul(x, weight_beside(x, shared[f"{name}_weight"]), transpose=True), shared.get(f"{name}_bias")
    return out if bias is None else out + weight_beside(x, bias)


class Weights(nn.Cell):
    """Parameters of a linear layer: weight [out, in], and optionally a bias [out]."""

    def __init__(self, shape: tuple[int, int], std: float, dtype: object, has_bias: bool = False):
        super().__init__()
        self.weight = normal("weight", shape, std, dtype)
        if has_bias:
            self.bias = zeros("bias", shape[:1], dtype)


class SharedExperts(nn.Cell):
    """Parameters of the shared expert, which `MoELayer` runs beside the others.

    Parameters:
        linear_fc1.weight [2S, H], where rows of gate and up alternate, or [S, H] without a gate; linear_fc2.weight [H, S];
        linear_fc1.bias and linear_fc2.bias if biases are added; shared_experts_gate.weight [1, H] if the output is gated.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, gated: bool, gate: bool, has_bias: bool, std: float,
                 dtype: object):
        super().__init__()
        self.has_bias, self.has_gate = has_bias, gate
        wide = intermediate_size * (2 if gated else 1)
        self.linear_fc1 = Weights((wide, hidden_size), std, dtype, has_bias)
        self.linear_fc2 = Weights((hidden_size, intermediate_size), std, dtype, has_bias)
        if gate:
            self.shared_experts_gate = Weights((1, hidden_size), std, dtype)

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns the tensors that the shared expert reads, by name."""
        found = {"linear_fc1_weight": self.linear_fc1.weight, "linear_fc2_weight": self.linear_fc2.weight}
        if self.has_bias:
            found["linear_fc1_bias"] = self.linear_fc1.bias
            found["linear_fc2_bias"] = self.linear_fc2.bias
        if self.has_gate:
            found["shared_experts_gate_weight"] = self.shared_experts_gate.weight
        return found
