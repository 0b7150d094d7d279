"""Link: what the processes of a group do together once they have met, over the connections of their meeting."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.rendezvous import Group, failed, has_ended
from hpmoe.support.dtypes import dtype_name, rounded, widen
from hpmoe.support.errors import LaunchError
from hpmoe.support.kept_files import Fields
from hpmoe.support.locks import new_lock

TIMEOUT_S = 300.0  # for the last rank to come to a meeting
GRACE_S = 0.5  # in which what a rank gave before it ended still arrives
LOOK_S = 0.1  # between two looks at who has ended


class Link:
    """Processes of a group; what all of them call, each does, in the same order.

    A call that fails on one rank fails on all that are in it, and the next one begins anew. Only a rank that has ended makes
    every further call fail.

    Attributes:
        rank, size: of this process in the group.
        waits: float64 [size], the seconds that this rank has waited for each one to come to a meeting.
    """

    def __init__(self, group: Group):
        self.rank, self.size, self.waits = group.rank, group.size, np.zeros(group.size)
        self._group, self._lock, self._call, self._depth = group, new_lock(), 0, 0
        self._broken: LaunchError | None = None

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Around all of a call: an error inside, which the others do not know of, is raised by their calls too."""
        with self._lock:
            self._depth += 1
            self._call += self._depth == 1
            try:
                yield
            except BaseException as error:
                if self._depth == 1 and not hasattr(error, "is_told") and self._broken is None:
                    name, text = self._group.members[self.rank].name, str(error).partition("\n")[0]
                    self._tell({"fault": f"{name}, in {what}: {type(error).__name__}: {text}", "rank": self.rank})
                raise
            finally:
                self._depth -= 1

    def meet(self, what: str, data: bytes, key: str = "") -> list[bytes]:
        """What each rank gives, once all have come. `what` says in words what that is; `key` is alike on all ranks.

        Raises:
            LaunchError: a rank has ended, failed, did not come in time, or does something else.
        """
        with self.calling(what):
            if self._broken is not None:
                raise self._broken
            told = {"call": self._call, "what": what, "key": key, "at": time.monotonic()}
            parts, came = self._collect(told, data) if self.rank == 0 else self._ask(told, data)
            self.waits += np.maximum(np.array(came) - told["at"], 0.0)
            return parts

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The sum over ranks of each array: in float32, in the order of ranks, rounded once to its dtype."""
        shapes = " ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        parts = self.meet(f"a sum of {shapes[:200]}", b"".join(array.tobytes() for array in arrays), shapes)
        sums, start = [], 0
        for array in arrays:
            of_ranks = [np.frombuffer(part, array.dtype, array.size, start).reshape(array.shape) for part in parts]
            sums.append(np.array(rounded(np.asarray(sum(map(widen, of_ranks))), dtype_name(array.dtype))))
            start += array.nbytes
        return sums

    def _collect(self, told: Fields, data: bytes) -> tuple[list[bytes], list[float]]:
        """Rank 0 has what each gives, and tells it to all."""
        parts, came = [data], [told["at"]]
        for rank in range(1, self.size):
            words, part = self._receive(rank)
            if (words["what"], words["key"]) != (told["what"], told["key"]):
                self._fail(f"{self._group.members[rank].name} does {words['what']} where {self._group.members[0].name} does "
                           f"{told['what']}", rank)
            parts.append(part)
            came.append(words["at"])
        self._tell({"sizes": list(map(len, parts)), "came": came}, b"".join(parts))
        return parts, came

    def _ask(self, told: Fields, data: bytes) -> tuple[list[bytes], list[float]]:
        try:
            send(self._group.connections[0], told, data)
        except GoneError:
            self._die(0)
        words, together = self._receive(0)
        ends = np.cumsum([0, *words["sizes"]]).tolist()
        return [together[a:b] for a, b in zip(ends, ends[1:], strict=False)], words["came"]

    def _receive(self, rank: int) -> tuple[Fields, bytes]:
        """What a rank says in this call; what is left of earlier ones is passed over."""
        deadline, connection = time.monotonic() + TIMEOUT_S, self._group.connections[max(0, rank - 1)]
        while True:
            self._wait_for(rank, deadline)
            try:
                words, data, _ = receive(connection, deadline)
            except GoneError:
                self._die(rank)
            if words["call"] >= self._call:
                break
        if "fault" in words:
            if words.get("has_died"):
                self._broken = _told(words["fault"], words["rank"])
            elif self.rank == 0:
                self._fail(words["fault"], words["rank"])
            raise _told(words["fault"], words["rank"])
        return words, data

    def _wait_for(self, rank: int, deadline: float) -> None:
        poll, ended_at = select.poll(), None
        poll.register(self._group.connections[max(0, rank - 1)], select.POLLIN)
        while not poll.poll(LOOK_S * 1e3):
            now, dead = time.monotonic(), [r for r, member in enumerate(self._group.members) if has_ended(member)]
            ended_at = ended_at or (now if dead else None)
            if ended_at and now > ended_at + GRACE_S:
                self._die(dead[0])
            if now > deadline:
                self._fail(f"{self._group.members[rank].name} did not come within {TIMEOUT_S:g} s", rank)

    def _die(self, rank: int) -> None:
        """A rank has ended, and nothing goes on without it."""
        self._broken = _told(f"{self._group.members[rank].name} has ended", rank)
        self._tell({"fault": str(self._broken), "rank": rank, "has_died": True})
        raise self._broken

    def _fail(self, text: str, rank: int) -> None:
        self._tell({"fault": text, "rank": rank})
        raise _told(text, rank)

    def _tell(self, words: Fields, data: bytes = b"") -> None:
        for connection in self._group.connections:
            with contextlib.suppress(GoneError):
                send(connection, {"call": self._call, **words}, data)


def _told(text: str, rank: int) -> LaunchError:
    """An error that every rank knows of."""
    error = failed(text, rank)
    setattr(error, "is_told", True)  # noqa: B010, pyright knows no such attribute
    return error
