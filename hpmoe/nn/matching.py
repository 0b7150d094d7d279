"""Which Parameter each array of a checkpoint belongs to, and what does not match."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hpmoe.nn.formats import FORMATS, Entry, stored_shape
from hpmoe.nn.safetensors import Stored
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument

SHOWN = 20  # names of a kind in an error
# Dtypes whose values a Parameter's dtype holds exactly, and dtypes whose range it holds.
EXACT = {"float32": FLOATS, "bfloat16": ("bfloat16",), "float16": ("float16",)}
IN_RANGE = EXACT | {"bfloat16": FLOATS}


class Place(NamedTuple):
    """Where an array of a checkpoint belongs: its entry of the format, and the experts it has, where it is of experts."""

    entry: Entry
    experts: range


def places_of(entries: Collection[Entry], parameters: Collection[str], num_experts: int) -> dict[str, Place]:
    """The places of all arrays of a format that are of the Parameters, by the arrays' names."""
    found = {}
    for entry in entries:
        if entry.parameter not in parameters:
            continue
        if not entry.is_apart:
            found[entry.name] = Place(entry, range(num_experts if entry.of_experts else 0))
        for e in range(num_experts if entry.is_apart else 0):
            found[entry.name.format(e=e)] = Place(entry, range(e, e + 1))
    return found


class Match(NamedTuple):
    """The names of a checkpoint beside those of one format."""

    places: dict[str, Place]  # of what is to be read
    missing: list[str]
    unknown: list[str]
    homeless: list[str]  # Parameters that the format has no array for


def closest_match(parameters: Collection[str], names: Mapping[str, Stored], held: range, num_experts: int) -> Match:
    """The names of a checkpoint beside those of the format that fits best; of arrays of one expert, of `held` ones."""
    formats = dict.fromkeys(entries for both in FORMATS.values() for entries in both)
    return min((_match(entries, parameters, names, held, num_experts) for entries in formats),
               key=lambda match: sum(map(len, match[1:])))


def _match(entries: Collection[Entry], parameters: Collection[str], names: Mapping[str, Stored], held: range,
           num_experts: int) -> Match:
    known = places_of(entries, parameters, num_experts)
    wanted = {name: place for name, place in known.items() if not place.entry.is_apart or place.experts.start in held}
    return Match(wanted, [name for name in wanted if name not in names],
                 [name for name in names if name not in known and not _is_empty(names[name])],
                 homeless_of(entries, parameters))


def _is_empty(stored: Stored) -> bool:
    """Whether an array has no elements, as those of no shared expert have."""
    return 0 in stored.shape


def homeless_of(entries: Collection[Entry], parameters: Collection[str]) -> list[str]:
    """The Parameters that a format has no array for."""
    covered = {entry.parameter for entry in entries}
    return [name for name in parameters if name not in covered]


def check_match(who: str, match: Match, arrays: Mapping[str, Stored], kinds: Mapping[str, tuple[str, tuple[int, ...]]],
                num_experts: int, allow_rounding: bool) -> None:
    """ArgumentError with a list of all that differs, unless a checkpoint is of a layer's names, shapes and dtypes.

    `kinds` are (dtype, shape) of the Parameters, by name.
    """
    shapes, coded, rounded = [], [], []
    for name in match.places.keys() - set(match.missing):
        entry, stored = match.places[name].entry, arrays[name]
        dtype, shape = kinds[entry.parameter]
        expected = stored_shape(entry, shape, num_experts)
        if stored.shape != expected:
            shapes.append(f"{name} {stored.shape} for {expected}")
        if stored.dtype not in (*FLOATS, "float64"):
            coded.append(f"{name} of {stored.dtype}")
        elif not allow_rounding and stored.dtype not in EXACT[dtype]:
            rounded.append(f"{name} of {stored.dtype} to {dtype}")
    faults = {"missing": match.missing, "without a Parameter": match.unknown, "without an array": match.homeless,
              "of another shape": sorted(shapes), "of a dtype to be converted first": sorted(coded),
              "to be rounded, with allow_rounding=True": sorted(rounded)}
    told = "".join(f"\n  {what}: {_listed(names)}" for what, names in faults.items() if names)
    check_argument(not told, who, "folder_or_state", "one of other arrays than the layer's Parameters",
                   "one of these and no others", f"What differs is{told}")


def _listed(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")
