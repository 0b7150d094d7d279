"""Puts into words why a call of ranks that are processes failed: which rank it was, and how."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Failure, Status
from hpmoe.kernels.protocol import Code
from hpmoe.ranks.rendezvous import failed
from hpmoe.ranks.starting import ended
from hpmoe.support.errors import LaunchError


class At(NamedTuple):
    """The call that a rank makes: its name and number, this rank, the names of all ranks, and the image of a launch."""

    what: str
    number: int
    rank: int
    names: Sequence[str]
    image: np.ndarray | None


def failed_call(status: Status, failure: Failure, at: At) -> LaunchError:
    """Returns the LaunchError of a call that ended with `status`; `failure` holds the text and the first cause."""
    text = failure.text.decode(errors="replace")
    name, what = at.names[status.rank if 0 <= status.rank < len(at.names) else at.rank], at.what
    match status.code:
        case Code.PEER_DIED:
            said = f"{name} {_how_it_ended(status.value)} during {what}, or before it."
        case Code.PEER_LEFT:
            said = f"{name} has ended its program{text and ' with ' + text}, and this rank is at {what}."
        case Code.PEER_LOST if status.rank == at.rank:
            return failed(f"{at.names[failure.origin]} has not heard of this rank, {name}, for {status.value / 1e3:.1f} s "
                          f"during {what}, or before it: this process was stopped, or what connects them is cut.",
                          failure.origin)
        case Code.PEER_LOST:
            said = (f"{name} was not heard of for {status.value / 1e3:.1f} s during {what}, or before it: its host is "
                    "gone, or what connects it.")
        case Code.PEER_LATE:
            said = f"{name} has not come to {what} in time."
        case Code.OTHER_CALL:
            said = _other_call(name, text, at)
        case Code.PEER_FAILED if text and failure.status.code == Code.PEER_FAILED:
            said = f"{name} failed: {text}"
        case Code.PEER_FAILED if failure.status.code in (Code.PEER_LATE, Code.OTHER_CALL):
            said = f"{name} gave up {what}: {failed_call(failure.status, failure, at)}"
        case Code.PEER_FAILED:
            said = f"{name} failed: {make_error(failure.status, at.image)}"
        case _:
            return make_error(status, at.image)
    return failed(said, status.rank)


def _other_call(name: str, text: str, at: At) -> str:
    theirs, mark, number = text.rpartition("#")
    if not mark or number == str(at.number):
        theirs = theirs or text or "another call"
        if theirs == at.what:
            return f"{name} calls {at.what} with other shapes than this rank, or only one of them takes its gradient."
        return f"{name} is at {theirs} where this rank is at {at.what}."
    return (f"{name} is at {theirs}, its call {number}, where this rank is at {at.what}, its call {at.number}: one has "
            "called once more than the other, and both must be started anew.")


def _how_it_ended(status: int) -> str:
    return "died" if status < 0 else ended(os.waitstatus_to_exitcode(status))
