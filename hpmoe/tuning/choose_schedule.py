"""choose_schedule: the policy and the tile with which a layer ends first on a model of the machine, chosen by simulation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from hpmoe.costs.start import start_us
from hpmoe.costs.tile_choice import choose_tile, likely_tiles, tiles_of
from hpmoe.ir.program import Program
from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels import simulate
from hpmoe.kernels.simulated_inputs import given_ids
from hpmoe.machines.machine import Machine
from hpmoe.machines.presets import cpu
from hpmoe.routing.capacity import PerRank
from hpmoe.runtime.plan_key import plan_key
from hpmoe.runtime.staged import Step
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.host import cache_folder
from hpmoe.support.kept_files import read_object, write_object
from hpmoe.tuning.sample_routings import has_samples, sample_routings, with_room
from hpmoe.tuning.search import Settings
from hpmoe.tuning.settings import Planned

MOST_TASKS = 2**15  # of all ranks
POLICIES = "critical_path", "round_robin"  # the default first
TILES = 7  # tried if the routing is not known, those with the least expected time
EARLY = 4  # that play with prefetch_weights, too, on a routing that is known
PLAY = 4, 3, 2, 2, 2, 2, 2  # how many schedules are simulated on each routing after the first


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The size of a tile, how tasks get into queues, and whether weights are read while rows come."""

    rows: int
    cols: int
    policy: str
    prefetch: bool = False

    def settings(self, program: Program, machine: Machine) -> Settings:
        """Returns the settings as `tune` names them; the tile with the least expected time is "auto"."""
        is_auto = (self.rows, self.cols) == choose_tile(program, machine, None, None)
        size = "auto" if is_auto else None
        return {"rows": size or self.rows, "cols": size or self.cols, "policy": self.policy,
                **({"prefetch": True} if self.prefetch else {})}

    def __str__(self) -> str:
        return f"{self.policy} {self.rows} x {self.cols}{', prefetch' if self.prefetch else ''}"


def _check(machine: Machine | None = None, most_tasks: int | None = MOST_TASKS, routing: PerRank | None = None) -> None:
    check_argument(machine is None or isinstance(machine, Machine), "choose_schedule", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.ascend_a3 or hpmoe.load_machine(name), or None")
    check_argument(most_tasks is None or is_int(most_tasks, least=0), "choose_schedule", "most_tasks", repr(most_tasks),
                   "an int in 0..2**30, or None")
    check_argument(routing is None or isinstance(routing, (Sequence, np.ndarray)), "choose_schedule", "routing",
                   repr(routing), "topk_ids [T, K] of each rank, or None")


@transform(requires="program", makes="queues", once=True, check=_check)
def choose_schedule(program: Program, *, machine: Machine | None = None, most_tasks: int | None = MOST_TASKS,
                    routing: PerRank | None = None) -> Taskflow:
    """Tiles, puts and queues in one step, by the policy and the tile with which a program simulates as fastest.

    Beside the default, "critical_path" with the tile with the least expected time, it tries
    "round_robin", other tiles, and, of the fastest of all these, prefetch_weights.

    With the routing known all tiles play on that, and what is taken is the fastest of all that was tried. Without, those
    tiles play with the least expected times. They are judged on eight routings drawn for this, of experts
    alike, by Dirichlet(0.3), with one hot expert or with half of the ranks empty: those whose fullest rank gets most nearly
    the rows that the plan has room for. All play on the first of these, and the fastest till then on the others.

    Rewrite:
        a program
        ->
        tile_partition(rows=, cols=) | overlap_comm(cols="auto", returns=2) [| prefetch_weights] | assign_queues(policy=)

    Requires: a plain function, or one under Program transforms.
    Ensures: the same function; the provenance of its IR names what was taken, of the forward and the backward pass each its
        own. Shapes, ranks, room for rows, machine and the given routing alone decide, so that all ranks take the same.

    Args:
        f: the function.
        machine: what to be fast on; this CPU where None.
        most_tasks: of all ranks, above which without a routing the default is taken without any simulation; None for as many
            as can be simulated. What was chosen is kept in $XDG_CACHE_HOME/hpmoe. The default is taken, too, where there is
            nothing to choose by: on a CPU, without a route, where weights decide what is dropped, and where rows take other
            ways than straight to their experts.
        routing: of calls, as far as it is known before: topk_ids [T, K] of each rank, the same on all ranks and for every
            route. Entries for which a plan has no room are left out.

    Raises:
        ArgumentError: an option is none of these.
        TransformError: applied out of order or twice, or as of tile_partition.

    Example:
        >>> import hpmoe
        >>> shapes = [(64, 2048), (64, 8), (64, 8), (4, 2048, 2048), (4, 1024, 2048)]
        >>> avals = [hpmoe.Aval(s, d) for s, d in zip(shapes, ("bfloat16", "int32", "float32", "bfloat16", "bfloat16"))]
        >>> staged = hpmoe.choose_schedule(hpmoe.moe_ffn, machine=hpmoe.ascend_a3)
        >>> staged.lower(*avals, mesh=hpmoe.Mesh(4)).provenance[-1]
        'assign_queues(ascend_a3, critical_path)'
    """
    machine = machine or cpu(ep_size=program.ep_size)
    return chosen(program, machine, most_tasks, routing=routing)[1]


def chosen(program: Program, machine: Machine, most_tasks: int | None = MOST_TASKS, cache: bool = True,
           routing: PerRank | None = None) -> tuple[Schedule, Taskflow]:
    """The schedule that choose_schedule takes, and what that makes of the program."""
    most = min(simulate.MOST_TASKS, simulate.MOST_TASKS if most_tasks is None or routing is not None else most_tasks)
    default, planned = Schedule(*choose_tile(program, machine, None, None), POLICIES[0]), _planned(program, machine)
    given = None if routing is None else _given(planned(default), routing)
    key = _key(program, machine, most, given) if cache else None
    found = _kept(key, default, machine)
    if found is None:
        flow, found = planned(default), default
        if not machine.unified and has_samples(flow) and _size(flow) <= most:
            found = _fastest(program, planned, default, machine, most, given)
            _keep(key, found)
    return found, planned(found)


def _given(flow: Taskflow, routing: PerRank) -> np.ndarray | None:
    """topk_ids of all ranks that were told, [ep, T, K], checked; None where there is nothing to choose by."""
    if not has_samples(flow):
        return None
    plan = flow.routes[0]
    return np.stack(given_ids("choose_schedule", routing, plan.ep_size, plan.num_tokens, plan.num_choices,
                              plan.num_model_experts))


def _planned(program: Program, machine: Machine) -> Callable[[Schedule], Taskflow]:
    """What each schedule makes of a program, made once."""
    of_settings = Planned(program, machine)
    return functools.cache(lambda schedule: of_settings({**dataclasses.asdict(schedule), "put_cols": "auto", "returns": 2}))


def _size(flow: Taskflow) -> int:
    return flow.ep_size * flow.num_tasks


def _fastest(program: Program, planned: Callable[[Schedule], Taskflow], default: Schedule, machine: Machine, most: int,
             given: np.ndarray | None) -> Schedule:
    """The one that takes the least time on the routing that is given, or in the mean of drawn ones, of equals the default.

    On the first routing plays the default tile by every policy, and every tile by the default policy, then the fastest of
    these tiles by the fastest policy. The fastest ones till then play on the others, and the fastest of all with
    prefetch_weights, too.
    """
    if given is None:
        routings, tiles = [ids for _, ids in sample_routings(planned(default), 1 + len(PLAY))], TILES
    else:
        routings, tiles = with_room(given, planned(default)), None
    by_policy = [dataclasses.replace(default, policy=policy) for policy in POLICIES]
    by_tile = [default, *(Schedule(*tile, default.policy) for tile in likely_tiles(program, machine, tiles))]

    @functools.cache
    def log_us(schedule: Schedule, sample: int) -> float:
        flow = planned(schedule)
        return float(np.log(start_us(flow, machine) + simulate.outline(flow, routing=routings[sample]).span))

    def ranked(schedules: Iterable[Schedule], samples: int) -> list[Schedule]:
        """The fastest first, of those that take the same time only the first."""
        by_us: dict[float, Schedule] = {}
        for schedule in schedules:
            if _size(planned(schedule)) <= most:
                by_us.setdefault(sum(log_us(schedule, i) for i in range(samples)), schedule)
        return [by_us[us] for us in sorted(by_us)]

    if not routings:
        return default
    both = dataclasses.replace(ranked(by_tile, 1)[0], policy=ranked(by_policy, 1)[0].policy)
    left = ranked([*by_policy, *by_tile, both], 1)
    for samples in range(2, len(routings) + 1):
        left = ranked(left[:PLAY[samples - 2]], samples)
    early = [dataclasses.replace(schedule, prefetch=True) for schedule in left[:EARLY if given is not None else 1]]
    return ranked([*left, *early], len(routings))[0]


def _key(program: Program, machine: Machine, most: int, given: np.ndarray | None) -> str | None:
    """Of all that decides; None where code that is not hpmoe's own has a part in it."""
    ids = None if given is None else hashlib.sha256(given.tobytes()).hexdigest()
    try:
        return plan_key(program, [Step(choose_schedule, {"machine": machine, "most_tasks": most, "routing": ids})])
    except TypeError:
        return None


def _path(key: str) -> Path:
    return cache_folder() / f"schedule-{key[:32]}.json"


def _kept(key: str | None, default: Schedule, machine: Machine) -> Schedule | None:
    """What was chosen before; None where a file is of something else."""
    if key is None:
        return None
    try:
        kept = read_object(_path(key))
        found, tiles = Schedule(*(kept[field.name] for field in dataclasses.fields(Schedule))), tiles_of(machine)
        known = [Schedule(*tile, policy, prefetch) for tile in [(default.rows, default.cols), *tiles]
                 for policy in POLICIES for prefetch in (False, True)]
        return known[known.index(found)] if kept["key"] == key else None  # 128.0 is 128, and no number of rows
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(key: str | None, found: Schedule) -> None:
    if key is None:
        return
    try:
        write_object(_path(key), {"key": key, **dataclasses.asdict(found)})
    except OSError as error:
        warnings.warn(f"choose_schedule: what was found cannot be kept: {error}", stacklevel=4)
