"""World: the ranks of the launcher as processes; a Mesh of which each process is one rank."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from hpmoe.machines.machine import Mesh
from hpmoe.ranks.gathered import is_mindspore_up, meet_in_mindspore
from hpmoe.ranks.hosts import Place, connect, meet_all
from hpmoe.ranks.launchers import (
    LAUNCHER,
    LEAST_SECRET,
    SECRET,
    Launched,
    find_fault,
    find_launched,
    has_store_ended,
    is_scheduler,
)
from hpmoe.ranks.link import ENGINES, Link, Traffic, make_link
from hpmoe.ranks.reports import has_launcher_ended, report
from hpmoe.ranks.scheduler import serve_scheduler
from hpmoe.support.errors import LaunchError, check_argument, is_int, is_name, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.locks import new_lock

TIMEOUT_S = 300.0  # for the last rank to come


@dataclasses.dataclass(frozen=True)
class World(Mesh):
    """The ranks of the launcher as processes, this one among them; see `world`.

    Attributes:
        ep, tp, nodes: shape of the mesh of ranks that launch together, see `hpmoe.Mesh`.
        rank, size: rank of this process among all that were started, and their number.
        link: Link to the ranks that launch with this one; None for a single rank.
        everyone: Link to all ranks.
        same_experts: Link to the ranks that hold the same experts, or shards; one of each group that launches together.
        shards: Link to the ranks that hold the shards of the same experts and launch together.
    """

    rank: int = 0
    size: int = 1
    link: Link | None = dataclasses.field(default=None, compare=False, repr=False)
    everyone: Link | None = dataclasses.field(default=None, compare=False, repr=False)
    same_experts: Link | None = dataclasses.field(default=None, compare=False, repr=False)
    shards: Link | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def ep_rank(self) -> int:
        """Index of this process's group among those that share experts."""
        return self.rank % self.num_ranks // self.tp

    @property
    def tp_rank(self) -> int:
        """Index of this process in its group, which is the shard of its experts."""
        return self.rank % self.tp

    def report(self) -> str:
        """Returns a table of how long each rank has waited for each other rank, in ms, and of its traffic to other hosts.

        All ranks call it together.
        """
        if self.everyone is None:
            return "1 rank"
        waits, sent = np.zeros(self.size), np.zeros(len(Traffic._fields), np.int64)
        for link, ranks in self._links():
            waits[ranks] += link.waits * 1e3
            sent += link.traffic
        with self.everyone.calling("the report of waits"):
            told = self.everyone.meet("waits", waits.tobytes() + sent.tobytes())
        end = waits.nbytes
        return _matrix([np.frombuffer(data[:end]) for data in told]) + _sent([np.frombuffer(data[end:], np.int64)
                                                                              for data in told])

    def _links(self) -> list[tuple[Link, list[int]]]:
        """Returns each link once, with the ranks at its ends."""
        ends = [(self.link, _together(self.rank, self.num_ranks)), (self.everyone, range(self.size)),
                (self.same_experts, range(self.rank % self.num_ranks, self.size, self.num_ranks)),
                (self.shards, _together(self.rank, self.tp))]
        found = {id(link): (link, list(ranks)) for link, ranks in ends if link is not None}
        return list(found.values())

    def __deepcopy__(self, memo: object) -> World:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(world, nodes=self.nodes), (self.ep, self.tp)


def _together(rank: int, num_ranks: int) -> range:
    """Returns the group of `num_ranks` ranks that launch together with `rank`."""
    return range(rank - rank % num_ranks, rank - rank % num_ranks + num_ranks)


def _matrix(rows: Sequence[np.ndarray]) -> str:
    lines = ["ms that a rank (row) has waited for another (column)",
             "        " + "".join(f"{f'rank {r}':>10}" for r in range(len(rows)))]
    return "\n".join(lines + [f"rank {r:<3}" + "".join(f"{x:>10.1f}" for x in row) for r, row in enumerate(rows)])


def _sent(rows: Sequence[np.ndarray]) -> str:
    """Returns a text on traffic between hosts; "" if all ranks are on one host."""
    if not any(map(np.any, rows)):
        return ""
    names = [name.replace("_", " ") for name in Traffic._fields]
    lines = ["sent to other hosts", "        " + "".join(f"{name:>14}" for name in names),
             *(f"rank {r:<3}" + "".join(f"{x:>14}" for x in row) for r, row in enumerate(rows))]
    return "\n" + "\n".join(lines)


class _Process:
    """State of this process in its run: its rank, its links, and its worlds."""

    def __init__(self) -> None:
        self.pid, self.lock = os.getpid(), new_lock()
        self.everyone: tuple[Place, Link] | None = None
        self.engine = ENGINES[0]
        self.worlds: dict[Mesh, World] = {}
        self.failure: LaunchError | None = None

    def find(self, launched: Launched, mesh: Mesh, timeout: float, engine: str) -> World:
        if self.failure is not None:
            raise self.failure
        try:
            if self.everyone is None:
                self.engine = engine
                names = [f"rank {r}" for r in range(launched.size)]
                by_mindspore = not launched.rendezvous and is_mindspore_up(launched)
                place, group = (meet_in_mindspore if by_mindspore else meet_all)(launched, names, timeout)
                self.everyone = place, make_link(group, self.engine)
            if mesh not in self.worlds:
                self.worlds[mesh] = self._make(launched, mesh, timeout)
        except LaunchError as error:
            self.failure = error
            blamed = (error.status or {}).get("rank")
            report(launched.rank, blamed if isinstance(blamed, int) else launched.rank, str(error))
            raise
        return self.worlds[mesh]

    def _make(self, launched: Launched, mesh: Mesh, timeout: float) -> World:
        rank, size, ranks = launched.rank, launched.size, mesh.num_ranks
        together = self._link(launched, _together(rank, ranks), timeout)
        shards = together if mesh.ep == 1 else self._link(launched, _together(rank, mesh.tp), timeout)
        return World(mesh.ep, rank, size, together, self._everyone(),
                     self._link(launched, range(rank % ranks, size, ranks), timeout), shards, tp=mesh.tp)

    def _everyone(self) -> Link:
        assert self.everyone is not None
        return self.everyone[1]

    def _link(self, launched: Launched, ranks: range, timeout: float) -> Link | None:
        """Returns the link to some ranks, including this one."""
        if len(ranks) in (1, launched.size):
            return self._everyone() if len(ranks) == launched.size else None
        assert self.everyone is not None
        place, link = self.everyone
        names = [f"rank {r}" for r in ranks]

        def gather(what: str, data: bytes) -> list[bytes]:
            told = link.meet(what, data)
            return [told[r] for r in ranks]

        group = connect(place, " ".join(names), gather, ranks.index(launched.rank), names, timeout)
        return make_link(group, self.engine)


_process = _Process()


def _check_launcher(launched: Launched | None) -> None:
    """Raises LaunchError if the variables of launchers contradict each other, or are of a launcher that has ended."""
    if _process.everyone is not None:
        return
    by_mindspore = launched is not None and is_mindspore_up(launched)
    if not by_mindspore and (fault := find_fault()):
        raise LaunchError(f"hpmoe.world: {fault}.")
    for variable, has_ended in (LAUNCHER, has_launcher_ended), ("MASTER_ADDR", has_store_ended):
        if launched is not None and has_ended():
            raise LaunchError(f"hpmoe.world: RANK, WORLD_SIZE and {variable} are those of a run of {launched.launcher} that "
                              "has ended: unset them, or start the script again.")


@suggests_keywords
def world(ep: int | None = None, tp: int = 1, *, nodes: int | None = None, timeout: float = TIMEOUT_S,
          engine: str = ENGINES[0]) -> World:
    """Returns the ranks of the launcher as a Mesh: every process is one rank, and brings its own tensors, without a rank
    axis.

    Start the script with `hpmoe launch -n N`, `msrun --worker_num=N`, `mpirun -n N` or `srun -n N`. Not launched, it is one
    rank. All ranks call this, and there is nothing to close. In the process of MindSpore's scheduler, where msrun runs the
    script too, it does not return: it serves the scheduler and ends the process.

    Args:
        ep: number of parts that the experts are split into; the processes divided by tp if None. ep * tp divides the number
            of processes; if it is smaller, each ep * tp consecutive processes have their own tokens and copies of the same
            experts.
        tp: number of tensor-parallel ranks of a group, each with a shard of each of the group's experts; see `hpmoe.Mesh`.
        nodes: number of nodes of the ep * tp ranks, see `hpmoe.Mesh`.
        timeout: seconds to wait for all ranks to connect.
        engine: what carries messages to ranks of other hosts. "tcp" needs no package. "ucx" takes the fastest network that
            UCX finds, such as InfiniBand, and needs `pip install 'hpmoe[hosts]'`. All ranks pass the same engine; the first
            call decides.

    Raises:
        ArgumentError: ep * tp does not divide the number of processes, or nodes does not divide ep * tp.
        LaunchError: a rank does not connect in time, ends first, belongs to another user, has another version of hpmoe,
            world size or engine, or lacks UCX; the port of rank 0 is in use; or the launcher's environment variables are
            those of a finished run, or of more ranks than were started.

    Example:
        >>> import hpmoe
        >>> mesh = hpmoe.world()
        >>> mesh.rank, mesh.size, mesh.ep
        (0, 1, 1)
    """
    check_argument(ep is None or is_int(ep), "hpmoe.world", "ep", repr(ep), "a positive int, or None")
    check_argument(is_int(tp), "hpmoe.world", "tp", repr(tp), "a positive int")
    is_time = is_number(timeout) and timeout > 0
    check_argument(is_time, "hpmoe.world", "timeout", repr(timeout), "a number of seconds above 0")
    check_argument(is_name(engine, ENGINES), "hpmoe.world", "engine", repr(engine), f"one of {', '.join(ENGINES)}")
    if is_scheduler():
        serve_scheduler()
    launched = find_launched()
    size = 1 if launched is None else launched.size
    how = "no launcher started others: hpmoe launch -n N does" if launched is None else f"{launched.launcher} started {size}"
    name, ranks = ("ep", ep or 1) if tp == 1 else ("ep * tp", (ep or 1) * tp)
    check_argument(size % ranks == 0, "hpmoe.world", name, ranks, f"a divisor of {size}, the number of processes",
                   f"Here {how}.")
    mesh = Mesh(ep or size // tp, tp=tp)
    dataclasses.replace(mesh, nodes=nodes)  # refuses what is no part of it
    _check_launcher(launched)
    if launched is None:
        return World(1, nodes=nodes)
    check_argument(os.getpid() == _process.pid, "hpmoe.world", "this process", "forked from a rank",
                   "the one that the launcher started")
    has_secret = not launched.rendezvous or len(os.environ.get(SECRET, "")) >= LEAST_SECRET
    check_argument(has_secret, "hpmoe.world", SECRET, "missing in the environment, or too short",
                   f"{LEAST_SECRET} characters or more, the same on all ranks, which are on several hosts",
                   f"As of openssl rand -hex 32; rank 0 listens at {launched.rendezvous}.")
    with _process.lock:
        found = _process.find(launched, mesh, float(timeout), engine)
        return dataclasses.replace(found, nodes=nodes)
