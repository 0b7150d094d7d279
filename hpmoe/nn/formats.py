"""How checkpoints of Hugging Face models name and lay out the arrays of a mixture-of-experts block: a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """One array of a checkpoint, and the Parameter, or part of one, that it is.

    `name` has an {e} where every expert has an array of its own. `part` says which columns of a gated Parameter it has:
    "gate" or "up" alone, both as the Parameter has them (""), or both "alternating".
    """

    name: str
    parameter: str
    part: str = ""
    transposed: bool = False

    @property
    def is_apart(self) -> bool:
        return "{e}" in self.name

    @property
    def of_experts(self) -> bool:
        return self.parameter.startswith("experts.")


# Where a Parameter has columns of gate and up: along which axis, and whether the one comes after the other.
GATED = {"experts.weight1": (-1, "stacked"), "experts.bias1": (-1, "stacked"),
         "shared_experts.linear_fc1.weight": (0, "alternating")}
SHARED = ("shared_experts.linear_fc1.weight", "shared_experts.linear_fc2.weight")
# Parameters that no checkpoint has.
UNSTORED = ("tokens_per_expert", "counted_tokens", "router.masked", "experts.places")


def _experts_apart(gate: str, up: str, down: str) -> tuple[Entry, ...]:
    return (Entry(f"experts.{{e}}.{gate}.weight", "experts.weight1", "gate", transposed=True),
            Entry(f"experts.{{e}}.{up}.weight", "experts.weight1", "up", transposed=True),
            Entry(f"experts.{{e}}.{down}.weight", "experts.weight2", transposed=True))


_GATE = (Entry("gate.weight", "router.weight"),)
_BIASED = (*_GATE, Entry("gate.e_score_correction_bias", "expert_bias"))
_PROJECTIONS = _experts_apart("gate_proj", "up_proj", "down_proj")
_FUSED = (Entry("experts.gate_up_proj", "experts.weight1", transposed=True),
          Entry("experts.down_proj", "experts.weight2", transposed=True))
_SHARED = (Entry("shared_experts.gate_proj.weight", "shared_experts.linear_fc1.weight", "gate"),
           Entry("shared_experts.up_proj.weight", "shared_experts.linear_fc1.weight", "up"),
           Entry("shared_experts.down_proj.weight", "shared_experts.linear_fc2.weight"))
_GPT_OSS = (Entry("router.weight", "router.weight"), Entry("router.bias", "router.bias"),
            Entry("experts.gate_up_proj", "experts.weight1", "alternating"),
            Entry("experts.gate_up_proj_bias", "experts.bias1", "alternating"),
            Entry("experts.down_proj", "experts.weight2"), Entry("experts.down_proj_bias", "experts.bias2"))

# By model_type: the entries of its files, and those of what transformers has in memory since version 5.
FORMATS = {
    "deepseek_v3": ((*_BIASED, *_PROJECTIONS, *_SHARED), (*_BIASED, *_FUSED, *_SHARED)),
    "qwen3_moe": ((*_GATE, *_PROJECTIONS), (*_GATE, *_FUSED)),
    "mixtral": ((*_GATE, *_experts_apart("w1", "w3", "w2")), (*_GATE, *_FUSED)),
    "gpt_oss": (_GPT_OSS, _GPT_OSS),
}
FORMATS["glm4_moe"] = FORMATS["kimi_k2"] = FORMATS["deepseek_v3"]


def pairs(entry: Entry, parameter: np.ndarray, stored: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Views of a Parameter's array and of a checkpoint's that are to be equal; of one expert, where the entry is of experts.

    Example:
        >>> entry = Entry("experts.{e}.up_proj.weight", "experts.weight1", "up", transposed=True)
        >>> [(mine, theirs)] = pairs(entry, np.zeros((2, 6)), np.ones((3, 2)))
        >>> mine.shape, theirs.shape
        ((2, 3), (2, 3))
    """
    stored = stored.swapaxes(-1, -2) if entry.transposed else stored
    if not entry.part:
        return [(parameter, stored)]
    axis, order = GATED[entry.parameter]
    gate, up = _halves(parameter, axis, order)
    if entry.part == "alternating":
        return list(zip((gate, up), _halves(stored, axis, "alternating"), strict=True))
    return [(gate if entry.part == "gate" else up, stored)]


def _halves(array: np.ndarray, axis: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    last = array.swapaxes(axis, -1)
    size = last.shape[-1]
    gate, up = (last[..., :size // 2], last[..., size // 2:]) if order == "stacked" else (last[..., ::2], last[..., 1::2])
    return gate.swapaxes(axis, -1), up.swapaxes(axis, -1)


def stored_shape(entry: Entry, shape: tuple[int, ...], num_experts: int) -> tuple[int, ...]:
    """The shape of a checkpoint's array of some number of experts, of that of its Parameter.

    Example:
        >>> stored_shape(Entry("experts.{e}.up_proj.weight", "experts.weight1", "up", transposed=True), (8, 2, 6), 8)
        (3, 2)
    """
    shape = shape[1:] if entry.of_experts else shape
    if entry.part in ("gate", "up"):
        axis = GATED[entry.parameter][0] % len(shape)
        shape = (*shape[:axis], shape[axis] // 2, *shape[axis + 1:])
    shape = (*shape[:-2], shape[-1], shape[-2]) if entry.transposed else shape
    return (num_experts, *shape) if entry.of_experts and not entry.is_apart else shape
