"""autotune: the tiles, puts, queues and scheme of sending rows with which a Program is fastest on a model of a machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.costs.start import start_us
from hpmoe.ir.program import Program
from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.simulate import outline
from hpmoe.kernels.simulated_inputs import given_ids
from hpmoe.machines.machine import Machine
from hpmoe.machines.this_cpu import cpu
from hpmoe.routing.capacity import PerRank
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import ArgumentError, LaunchError, TransformError, check_argument, is_int
from hpmoe.support.progress import Progress
from hpmoe.tiling.tile_program import tile_operations
from hpmoe.tuning import cached_trials
from hpmoe.tuning.plan import Plan, Setting, Space
from hpmoe.tuning.sample_routings import sample_routings, with_capacity
from hpmoe.tuning.trials import Trial, Trials, best_of, search

BUDGET = 12


def _check(machine: Machine | None = None, topk_ids: PerRank | None = None, budget: int = BUDGET) -> None:
    check_argument(machine is None or isinstance(machine, Machine), "autotune", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3 or hpmoe.load_machine(name), or None")
    check_argument(topk_ids is None or isinstance(topk_ids, (Sequence, np.ndarray, Tensor)), "autotune", "topk_ids",
                   repr(topk_ids), "topk_ids [T, K] of each rank, or None")
    check_argument(is_int(budget, least=0), "autotune", "budget", repr(budget),
                   "an int in 0..2**30, the most plans that are simulated")


@transform(requires="program", makes="queues", once=True, check=_check)
def autotune(program: Program, *, machine: Machine | None = None, topk_ids: PerRank | None = None,
             budget: int = BUDGET) -> Taskflow:
    """Applies send_rows, tile_partition, overlap_comm, prefetch_weights and assign_queues with the fastest options it finds.

    A plan is one choice of all these options. With budget=0 the cost model chooses the plan without a simulation, as the
    option "auto" of send_rows, tile_partition and overlap_comm does. A larger budget simulates the plan of the cost model,
    the same plan with the policy "round_robin", then plans with other schemes, tiles and settings, and takes the fastest.
    The forward pass and the backward pass have separate plans. Plans are made at the first call, or by `lower`.

    Rewrite:
        a Program
        ->
        [send_rows(scheme=) |] tile_partition(rows=, cols=) | overlap_comm(order=, signal=, put_cols=, returns=)
        [| prefetch_weights] | assign_queues(policy=)

    Requires: a plain function, or one under Program transforms.
    Ensures: the same function; the provenance of its IR names the options that were taken. A plan depends only on shapes,
        the mesh, the expected number of received rows and the arguments of autotune, so all ranks take one plan.

    Args:
        f: the function. Without it, autotune(...) returns a transform, as `hpmoe.chain` takes it.
        machine: the machine that the simulator models; this CPU if None.
        topk_ids: the routing to simulate, if it is known in advance: a sequence with the topk_ids [T, K] of each rank, or
            one array [ep, T, K]. Every dispatch of f uses it. If None, the simulator samples routings with the expected
            number of received rows.
        budget: the most plans that are simulated for each pass. Simulated times are cached in $XDG_CACHE_HOME/hpmoe, or
            ~/.cache/hpmoe, and are not simulated again.

    Returns:
        A staged function with queues: fuse_persistent makes a kernel of it, and `lower(*avals)` returns its Taskflow.

    Raises:
        ArgumentError: an option is out of range, or topk_ids do not fit the function.
        TransformError: applied twice or out of order, or f cannot be tiled, as for tile_partition.

    Example:
        >>> import hpmoe
        >>> shapes = [(64, 2048), (64, 8), (64, 8), (4, 2048, 2048), (4, 1024, 2048)]
        >>> dtypes = "bfloat16", "int32", "float32", "bfloat16", "bfloat16"
        >>> avals = [hpmoe.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes)]
        >>> tuned = hpmoe.autotune(hpmoe.moe_ffn, machine=hpmoe.machines.ascend_a3, budget=0)
        >>> tuned.lower(*avals, mesh=hpmoe.Mesh(4)).provenance[-1]
        'assign_queues(ascend_a3, critical_path)'
        >>> to_kernel = hpmoe.chain(hpmoe.autotune(machine=hpmoe.machines.ascend_a3), hpmoe.fuse_persistent)
    """
    space = Space(program, machine or cpu(ep_size=program.ep_size), {})
    with Progress("hpmoe.autotune") if sys.stderr.isatty() else contextlib.nullcontext(lambda text: None) as report:
        found = _compared(space, topk_ids, budget, report)
    flow = space.flow(found.chosen)
    if found.trials and found.trials[0].us is None:
        warnings.warn(f"autotune: the cost model's choice is taken for {program.name}: {found.trials[0].error}. budget=0 "
                      "simulates nothing", stacklevel=5)
    return flow


def compare_plans(program: Program, *, machine: Machine | None = None, topk_ids: PerRank | None = None,
                  budget: int = BUDGET, fixed: Mapping[str, Setting] | None = None,
                  report: Callable[[str], None] = lambda text: None) -> Trials:
    """Returns the plans that `autotune` compares for a program, with their simulated times; prints as a table.

    Args:
        program: of one pass, as `hpmoe.trace`, `hpmoe.vjp` or `lower` of a function returns it.
        machine, topk_ids, budget: as for `autotune`.
        fixed: settings that are not tuned, such as {"policy": "round_robin"}.
        report: called with each plan before its simulation.

    Raises:
        ArgumentError: as autotune; or fixed has another setting than a plan has.
        TransformError: as autotune.

    Example:
        >>> import hpmoe
        >>> program = hpmoe.trace(hpmoe.swiglu, hpmoe.ShapeDtypeStruct((512, 4096), "bfloat16"))
        >>> found = hpmoe.tuning.compare_plans(program, machine=hpmoe.machines.ascend_a3, budget=4)
        >>> len(found.trials), found.trials[1].plan.policy, found.chosen.policy
        (4, 'round_robin', 'critical_path')
    """
    _check(machine, topk_ids, budget)
    fixed, names = fixed or {}, [field.name for field in dataclasses.fields(Plan)]
    check_argument(set(fixed) <= set(names), "compare_plans", "fixed", repr(fixed), f"a dict of some of {', '.join(names)}")
    for name, value in fixed.items():
        is_ok = is_int(value) if name in ("rows", "cols") else value is None or isinstance(value, (str, int))
        check_argument(is_ok, "compare_plans", f"fixed[{name!r}]", repr(value),
                       "an int in 1..2**30" if name in ("rows", "cols") else "a str, an int or None")
    machine = machine or cpu(ep_size=program.ep_size)
    dataclasses.replace(Plan("direct", 1, 1), **fixed).steps(machine)  # which checks each setting
    return _compared(Space(program, machine, fixed), topk_ids, budget, report)


def _compared(space: Space, topk_ids: PerRank | None, budget: int, report: Callable[[str], None]) -> Trials:
    program, ids = space.program, _checked_ids(space.program, topk_ids)
    found, why_ended, count = [], "", 0
    if budget:
        simulated = _Simulated(space, ids, report)
        try:
            found, why_ended = search(space, simulated, budget)
        finally:
            count = simulated.keep()
    best = best_of(found)
    return Trials(program.name, program.direction, program.ep_size, space.machine.name, tuple(found),
                  best.plan if best else space.default, why_ended, count)


def _checked_ids(program: Program, topk_ids: PerRank | None) -> np.ndarray | None:
    """Returns topk_ids of all ranks, [ep, T, K] int32; None if they are not known, or if the program routes no rows."""
    if topk_ids is None or not routes_of(program):
        return None
    aval = routes_of(program)[0].aval
    return np.stack(given_ids("autotune", topk_ids, aval.ep_size, aval.num_tokens, aval.num_choices, aval.num_model_experts,
                              name="topk_ids"))


class _Simulated:
    """Makes a trial of a plan: from the times that are kept, or by simulation."""

    def __init__(self, space: Space, ids: np.ndarray | None, report: Callable[[str], None]):
        self._space, self._ids, self._report = space, ids, report
        self._key = cached_trials.key_of(space.program, space.machine, ids, autotune)
        self._times = cached_trials.load(self._key, space.machine)
        self._count = 0

    def __call__(self, plan: Plan) -> Trial:
        if str(plan) not in self._times:
            self._count += 1
            self._report(f"plan {self._count}: {plan}")
            try:
                self._times[str(plan)] = self._us(plan), ""
            except (ArgumentError, LaunchError, TransformError) as error:
                self._times[str(plan)] = None, str(error).partition("\n")[0].rstrip(".")
        return Trial(plan, *self._times[str(plan)])

    def keep(self) -> int:
        """Keeps the times of simulated plans; returns how many plans were simulated."""
        if self._count:
            cached_trials.store(self._key, self._times)
        return self._count

    def _us(self, plan: Plan) -> float:
        """Returns simulated microseconds of a launch, the geometric mean of the routings."""
        flow, machine = self._space.flow(plan), self._space.machine
        spans = [outline(flow, routing=ids, topk_weights=_weights(flow, ids)).span for ids in self._routings]
        return float(np.exp(np.log(np.maximum(start_us(flow, machine) + np.array(spans), 1e-9)).mean()))

    @functools.cached_property
    def _routings(self) -> Sequence[np.ndarray | None]:
        """topk_ids of all ranks [ep, T, K] to compare plans on; None for a balanced routing."""
        default, program = self._space.default, self._space.program
        flow = tile_operations(program, default.rows, default.cols, self._space.machine)
        if self._ids is not None:
            return with_capacity(self._ids, flow) or [self._ids]
        return [ids for _, ids in sample_routings(flow)] or [None]


def _weights(flow: Taskflow, ids: np.ndarray | None) -> list[np.ndarray] | None:
    """Returns equal weights, if they decide which of given entries are dropped."""
    if ids is None or all(plan.weights < 0 for plan in flow.routes):
        return None
    return list(np.zeros(ids.shape, np.float32))
