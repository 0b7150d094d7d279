"""Which Parameter each array of a checkpoint belongs to, and what does not match."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from hpmoe.nn.formats import FORMATS, Entry, stored_shape
from hpmoe.nn.safetensors import CODES, Stored
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument

SHOWN = 12


class Place(NamedTuple):
    """Where an array of a checkpoint belongs: its entry of the format, and the experts that it has, none where it is no
    expert's."""

    entry: Entry
    experts: range


def places_of(entries: Collection[Entry], parameters: Collection[str], num_experts: int) -> dict[str, Place]:
    """The places of all arrays of a format that Parameters are made of, by name."""
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
    """A checkpoint's names beside those of one format."""

    places: dict[str, Place]  # of what is to be read
    missing: list[str]
    unknown: list[str]
    homeless: list[str]  # Parameters

    @property
    def num_faults(self) -> int:
        return len(self.missing) + len(self.unknown) + len(self.homeless)


def closest_match(parameters: Collection[str], names: Collection[str], experts: range, num_experts: int) -> Match:
    """The names of a checkpoint in the format that fits best; of arrays of one expert those of `experts` are to be read."""
    formats = dict.fromkeys(entries for both in FORMATS.values() for entries in both)
    return min((_match(entries, parameters, names, experts, num_experts) for entries in formats),
               key=lambda match: match.num_faults)


def _match(entries: Collection[Entry], parameters: Collection[str], names: Collection[str], experts: range,
           num_experts: int) -> Match:
    known = places_of(entries, parameters, num_experts)
    wanted = {name: place for name, place in known.items()
              if not place.entry.is_apart or place.experts.start in experts}
    covered = {entry.parameter for entry in entries}
    return Match(wanted, [name for name in wanted if name not in names], [name for name in names if name not in known],
                 [name for name in parameters if name not in covered])


def listed(names: Collection[str]) -> str:
    """Names as a text shows them, all where they are few."""
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_names(who: str, match: Match) -> None:
    """ArgumentError unless the arrays of a checkpoint are those of the Parameters, with a list of what is not."""
    faults = [f"without {listed(match.missing)}"] if match.missing else []
    faults += [f"with {listed(match.unknown)}, for which the layer has no Parameter"] if match.unknown else []
    faults += [f"of a format without the layer's {listed(match.homeless)}"] if match.homeless else []
    check_argument(not faults, who, "folder_or_state", ", ".join(faults),
                   "a checkpoint of the layer's Parameters and no others")


def check_arrays(who: str, match: Match, arrays: Mapping[str, Stored], parameters: Mapping[str, tuple[str, tuple]],
                 num_experts: int, allow_rounding: bool) -> None:
    """ArgumentError unless arrays have the shapes and dtypes that Parameters ask for, with a list of those that have not.

    Parameters are (dtype, shape) by name.
    """
    shapes, unread, narrowed = [], [], []
    for name, place in match.places.items():
        dtype, shape = parameters[place.entry.parameter]
        expected = stored_shape(place.entry, shape, num_experts)
        if arrays[name].shape != expected:
            shapes.append(f"{name} of shape {arrays[name].shape} for {expected}")
        if arrays[name].dtype not in FLOATS:
            unread.append(f"{name} of {arrays[name].dtype}")
        elif arrays[name].dtype != dtype and dtype != "float32":
            narrowed.append(f"{name} of {arrays[name].dtype} for {dtype}")
    check_argument(not shapes, who, "folder_or_state", f"with {listed(shapes)}", "a checkpoint of the layer's shapes")
    check_argument(not unread, who, "folder_or_state", f"with {listed(unread)}", f"of {', '.join(CODES)}",
                   "Dequantize the checkpoint first.")
    check_argument(not narrowed or allow_rounding, who, "folder_or_state", f"with {listed(narrowed)}",
                   "of dtypes that Parameters hold exactly", "Or pass allow_rounding=True.")


def check_homes(who: str, model_type: str, entries: Collection[Entry], parameters: Collection[Any]) -> None:
    """ArgumentError unless a format has an array for each Parameter."""
    covered = {entry.parameter for entry in entries}
    homeless = [name for name in parameters if name not in covered]
    check_argument(not homeless, who, "layer", f"one with {listed(homeless)}", f"one whose Parameters {model_type} has too")
