"""Names and layouts of the arrays of a mixture-of-experts block in checkpoints of Hugging Face models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """An array of a checkpoint, and the Parameter, or part of one, that it holds.

    `name` has an {e} if every expert has an array of its own, and starts with "^" if the array lies beside the block.
    `part` says which columns of a gated Parameter the array has: "gate" or "up" alone, or both: "both" as the Parameter has
    them, "alternating", or "stacked", the gate first. `rows` says what precedes the axes of the Parameter: "" nothing,
    "one" an axis of size 1; or that the rows of all experts are one axis, "flat"; or that arrays of zero experts, without
    meaning, may follow, "padded".
    """

    name: str
    parameter: str
    part: str = ""
    transposed: bool = False
    rows: str = ""

    @property
    def is_apart(self) -> bool:
        return "{e}" in self.name

    @property
    def of_experts(self) -> bool:
        return self.parameter.startswith("experts.")


Entries = tuple[Entry, ...]

# Where a Parameter has columns of gate and up: along which axis, and whether the one comes after the other.
GATED = {"experts.weight1": (-1, "stacked"), "experts.bias1": (-1, "stacked"),
         "shared_experts.linear_fc1.weight": (0, "alternating")}
SHARED = ("shared_experts.linear_fc1.weight", "shared_experts.linear_fc2.weight")
# Parameters that no checkpoint has.
UNSTORED = ("tokens_per_expert", "counted_tokens", "router.masked", "experts.places")


def apart(gate: str, up: str, down: str, rows: str = "") -> Entries:
    """Returns an Entry for each weight of experts with one array per expert; pass gate="" if the experts have no gate."""
    halves = ((gate, "gate"), (up, "up")) if gate else ((up, ""),)
    return (*(Entry(f"experts.{{e}}.{name}.weight", "experts.weight1", part, True, rows) for name, part in halves),
            Entry(f"experts.{{e}}.{down}.weight", "experts.weight2", "", True))


def fused(first: str = "experts.gate_up_proj", last: str = "experts.down_proj", *, part: str = "both",
          transposed: bool = True, rows: str = "") -> Entries:
    """Returns the entries of the weights of all experts in two arrays."""
    return Entry(first, "experts.weight1", part, transposed, rows), Entry(last, "experts.weight2", "", transposed)


def shared(prefix: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Entries:
    """Returns an Entry for each array of a shared expert, with names such as prefix.gate_proj.weight.

    Pass gate="" if the shared expert has no gate. Pass gate=up if one array holds both, the rows of the gate first.
    """
    first = "shared_experts.linear_fc1.weight"
    halves = ((up, "stacked"),) if gate == up else ((gate, "gate"), (up, "up")) if gate else ((up, ""),)
    return (*(Entry(f"{prefix}.{name}.weight", first, part) for name, part in halves),
            Entry(f"{prefix}.{down}.weight", "shared_experts.linear_fc2.weight"))


def is_gated(entries: Entries) -> bool:
    """Returns True if experts of a format have a gate."""
    return any(entry.part for entry in entries if entry.parameter == "experts.weight1")


def is_alternating(entries: Entries) -> bool:
    """Returns True if columns of gate and up alternate in an array of all experts."""
    return any(entry.part == "alternating" for entry in entries if entry.parameter == "experts.weight1")


def pairs(entry: Entry, parameter: np.ndarray, stored: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns pairs of equal views of a Parameter's array and of a checkpoint's; of one expert, if the entry is of experts.

    Example:
        >>> entry = Entry("experts.{e}.up_proj.weight", "experts.weight1", "up", transposed=True)
        >>> [(mine, theirs)] = pairs(entry, np.zeros((2, 6)), np.ones((3, 2)))
        >>> mine.shape, theirs.shape
        ((2, 3), (2, 3))
    """
    stored = stored.swapaxes(-1, -2) if entry.transposed else stored
    stored = stored[0] if entry.rows == "one" else stored
    if entry.part in ("", "both"):
        return [(parameter, stored)]
    axis, order = GATED[entry.parameter]
    gate, up = _halves(parameter, axis, order)
    if entry.part in ("alternating", "stacked"):
        return list(zip((gate, up), _halves(stored, axis, entry.part), strict=True))
    return [(gate if entry.part == "gate" else up, stored)]


def _halves(array: np.ndarray, axis: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    last = array.swapaxes(axis, -1)
    size = last.shape[-1]
    gate, up = (last[..., :size // 2], last[..., size // 2:]) if order == "stacked" else (last[..., ::2], last[..., 1::2])
    return gate.swapaxes(axis, -1), up.swapaxes(axis, -1)


def expert_shape(entry: Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in a checkpoint of a Parameter's shape; of one expert, if the entry is of experts.

    Example:
        >>> expert_shape(Entry("experts.{e}.up_proj.weight", "experts.weight1", "up", transposed=True), (8, 2, 6))
        (3, 2)
    """
    shape = shape[1:] if entry.of_experts else shape
    if entry.part in ("gate", "up"):
        axis = GATED[entry.parameter][0] % len(shape)
        shape = (*shape[:axis], shape[axis] // 2, *shape[axis + 1:])
    shape = (1, *shape) if entry.rows == "one" else shape
    return (*shape[:-2], shape[-1], shape[-2]) if entry.transposed else shape


def stored_shape(entry: Entry, shape: tuple[int, ...], num_experts: int, num_zero_experts: int = 0) -> tuple[int, ...]:
    """Returns the shape of a checkpoint's array of some number of experts, from that of its Parameter.

    Example:
        >>> stored_shape(Entry("experts.gate_up_proj", "experts.weight1", "both", transposed=True), (8, 2, 6), 8)
        (8, 6, 2)
    """
    one = expert_shape(entry, shape)
    if not entry.of_experts or entry.is_apart:
        return one
    if entry.rows == "flat":
        return num_experts * one[0], *one[1:]
    return num_experts + (num_zero_experts if entry.rows == "padded" else 0), *one
