"""The Parameter of each array of a checkpoint, and an error that lists what does not match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hpmoe.nn.formats import Entries, Entry, is_gated, stored_shape
from hpmoe.nn.safetensors import Stored
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument

SHOWN = 20  # names of a kind in an error
# Dtypes whose values a Parameter's dtype holds exactly, and dtypes whose range it holds.
EXACT = {"float32": FLOATS, "bfloat16": ("bfloat16",), "float16": ("float16",)}
IN_RANGE = EXACT | {"bfloat16": FLOATS}


class Block(NamedTuple):
    """The Parameters and experts that a layer needs of a checkpoint."""

    kinds: Mapping[str, tuple[str, tuple[int, ...]]]  # (dtype, shape) of the Parameters, of whole experts
    num_experts: int  # of the model
    num_zero_experts: int
    held: range  # the experts that the layer holds
    shard: int = 0  # which of `num_shards` shards of each of them
    num_shards: int = 1

    @property
    def is_gated(self) -> bool:
        return self.kinds["experts.weight1"][1][-1] == 2 * self.kinds["experts.weight2"][1][1]

    def stored_shape(self, entry: Entry) -> tuple[int, ...]:
        return stored_shape(entry, self.kinds[entry.parameter][1], self.num_experts, self.num_zero_experts)


class Place(NamedTuple):
    """The format's Entry for an array of a checkpoint, and the range of experts that the array holds, if any."""

    entry: Entry
    experts: range


def places_of(entries: Iterable[Entry], parameters: Collection[str], num_experts: int,
              num_zero_experts: int = 0) -> dict[str, Place]:
    """Returns the places of a format's arrays that belong to the Parameters, by name; of zero experts with no experts."""
    found = {}
    for entry in entries:
        if entry.parameter not in parameters:
            continue
        if not entry.is_apart:
            found[entry.name] = Place(entry, range(num_experts if entry.of_experts else 0))
        num_arrays = num_experts + (num_zero_experts if entry.rows == "padded" else 0)
        for e in range(num_arrays if entry.is_apart else 0):
            found[entry.name.format(e=e)] = Place(entry, range(e, min(e + 1, num_experts)))
    return found


class Match(NamedTuple):
    """Differences between the array names of a checkpoint and those that a format expects for a layer's Parameters.

    The format with the fewest differences reads the checkpoint; `check_match` lists them in an error.
    """

    places: dict[str, Place]  # the arrays to read, by name
    missing: list[str]  # arrays of `places` that the checkpoint lacks
    unknown: list[str]  # arrays of the checkpoint that the format lacks
    homeless: list[str]  # Parameters that the format has no array for
    lacking: list[str]  # arrays that the format always has, whose Parameters the layer lacks


def find_match(who: str, block: Block, arrays: Mapping[str, Stored], formats: Iterable[Entries]) -> Match:
    """Returns the Match of a checkpoint with the format that fits best, even if arrays are missing or unknown."""
    found = [(_match(entries, block, arrays), entries) for entries in dict.fromkeys(formats)]
    match, entries = min(found, key=lambda pair: _faults(*pair, block, arrays))
    fitting = {_layout(other) for other, entries in found if not any(_faults(other, entries, block, arrays))}
    check_argument(len(fitting) < 2, who, "model_type", "None, and types of different layouts have these names and shapes",
                   "given", "Write model_type=, the type in the model's config.json.")
    said = {True: "a gate", False: "no gate"}
    check_argument(is_gated(entries) == block.is_gated, who, "folder_or_state",
                   f"one whose experts have {said[not block.is_gated]}",
                   f"one whose experts have {said[block.is_gated]}, as the layer's")
    return match


def _faults(match: Match, entries: Entries, block: Block, arrays: Mapping[str, Stored]) -> tuple[int, int]:
    """Returns (number of names that differ, number of shapes that differ), of which the best format has the least."""
    shapes = sum(arrays[name].shape != block.stored_shape(place.entry)
                 for name, place in match.places.items() if name in arrays)
    return sum(map(len, match[1:])), shapes + (is_gated(entries) != block.is_gated)


def _layout(match: Match) -> frozenset[tuple[str, Entry]]:
    return frozenset((name, place.entry._replace(name="")) for name, place in match.places.items())


def _match(entries: Entries, block: Block, names: Mapping[str, Stored]) -> Match:
    parameters = block.kinds
    known = places_of(entries, parameters, block.num_experts, block.num_zero_experts)
    wanted = {name: place for name, place in known.items()
              if not place.entry.is_apart or place.experts.start in block.held}
    unknown = [name for name, array in names.items()
               if name not in known and 0 not in array.shape and not name.startswith("^")]
    lacking = [entry.name for entry in entries
               if entry.parameter not in parameters and not entry.parameter.startswith("shared_experts.")]
    return Match(wanted, [name for name in wanted if name not in names], unknown, homeless_of(entries, parameters), lacking)


def homeless_of(entries: Iterable[Entry], parameters: Collection[str]) -> list[str]:
    """Returns the Parameters that a format has no array for."""
    covered = {entry.parameter for entry in entries}
    return [name for name in parameters if name not in covered]


def check_match(who: str, match: Match, arrays: Mapping[str, Stored], block: Block, allow_rounding: bool) -> None:
    """Raises ArgumentError with a list of all differences, unless a checkpoint has a layer's names, shapes and dtypes."""
    shapes, coded, rounded = [], [], []
    for name in match.places.keys() - set(match.missing):
        entry, stored = match.places[name].entry, arrays[name]
        dtype, expected = block.kinds[entry.parameter][0], block.stored_shape(entry)
        if stored.shape != expected:
            shapes.append(f"{name} {stored.shape} for {expected}")
        if stored.dtype not in (*FLOATS, "float64"):
            coded.append(f"{name} of {stored.dtype}")
        elif not allow_rounding and stored.dtype not in EXACT[dtype]:
            rounded.append(f"{name} of {stored.dtype} to {dtype}")
    faults = {"missing": match.missing, "without a Parameter": [*match.unknown, *match.lacking],
              "without an array": match.homeless, "of another shape": sorted(shapes),
              "of a dtype to be converted first": sorted(coded),
              "to be rounded, with allow_rounding=True": sorted(rounded)}
    told = "".join(f"\n  {what}: {_listed(names)}" for what, names in faults.items() if names)
    check_argument(not told, who, "folder_or_state", "one with other arrays than the layer's Parameters",
                   "one with an array for each Parameter and no others", f"The differences are:{told}")


def _listed(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")
