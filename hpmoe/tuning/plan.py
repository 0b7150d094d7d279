"""Plans: the settings of a chain, the Taskflow that they make of a Program, and the plans worth a simulation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from hpmoe.costs.tile_choice import tile_times
from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Machine
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.transform import Curried, Transform
from hpmoe.transforms.assign_queues import assign_queues
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS, overlap_comm
from hpmoe.transforms.prefetch_weights import prefetch_weights
from hpmoe.transforms.send_rows import schemes_by_time, send_rows
from hpmoe.transforms.tile_partition import tile_partition

Setting = str | int | bool | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a chain up to its queues; the defaults are those of the cost model.

    Attributes:
        scheme: option of send_rows.
        rows, cols: options of tile_partition.
        policy: option of assign_queues.
        prefetch: True for a chain with prefetch_weights.
        put_cols: `cols` of overlap_comm.
        returns, signal, order: options of overlap_comm.
    """

    scheme: str
    rows: int
    cols: int
    policy: str = "critical_path"
    prefetch: bool = False
    put_cols: Literal["auto"] | None = "auto"
    returns: int | None = 2
    signal: str = "tile"
    order: str = "ratr"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())

    def steps(self, machine: Machine) -> list[Transform | Curried]:
        """Returns the transforms that a plan stands for; raises ArgumentError for a setting that a transform refuses."""
        early = [prefetch_weights] if self.prefetch else []
        return [send_rows(scheme=self.scheme), tile_partition(rows=self.rows, cols=self.cols, machine=machine),
                overlap_comm(put_cols=self.put_cols, returns=self.returns, signal=self.signal, order=self.order),
                *early, assign_queues(machine=machine, policy=self.policy)]


SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "policy": ("critical_path", "round_robin"), "prefetch": (False, True), "put_cols": ("auto", None), "returns": (2, None),
    "signal": SIGNALS, "order": tuple(ORDERS)}
FEW_TILES = 4  # that are tried first, beside the first tile of each scheme


class Space:
    """The plans of a Program on a machine.

    Attributes:
        fixed: the value of each setting that all plans share.
    """

    def __init__(self, program: Program, machine: Machine, fixed: Mapping[str, Setting]):
        self.program, self.machine, self.fixed = program, machine, fixed
        self._sent = functools.cache(
            lambda scheme: program if scheme == "direct" else send_rows.apply_to(program, scheme=scheme))

    @functools.cached_property
    def default(self) -> Plan:
        """The plan that the cost model chooses, which is that of the options "auto"."""
        scheme = self._schemes[0]
        return dataclasses.replace(Plan(scheme, *next(iter(self._tile_times(scheme)))), **self.fixed)

    def _tile_times(self, scheme: str) -> Mapping[tuple[int, int], float]:
        return tile_times(self._sent(scheme), self.machine, self.fixed.get("rows"), self.fixed.get("cols"))

    def stages(self) -> Iterator[Callable[[Plan], list[Plan]]]:
        """Yields the stages of a search: functions from the best plan so far to plans that differ from it in one setting.

        Sizes are tried before a policy is settled, because the policy that is best with one size is often not with another.
        """
        yield lambda best: [*self._others(best, "policy"), *self._sized(best)[:len(self._schemes) + FEW_TILES]]
        yield lambda best: self._others(best, "policy", "prefetch")
        yield self._sized
        yield lambda best: self._others(best, "put_cols", "returns", "signal", "order")

    def _others(self, plan: Plan, *names: str) -> list[Plan]:
        return [dataclasses.replace(plan, **{name: value}) for name in names if self._matters(name)
                for value in SETTINGS[name]]

    def _matters(self, name: str) -> bool:
        """Returns False for a setting that is fixed, or that has no effect on this program and machine."""
        has_effect = {"policy": True, "prefetch": not self.machine.unified, "order": self.program.ep_size > 1}
        return name not in self.fixed and has_effect.get(name, bool(routes_of(self.program)))

    def _sized(self, plan: Plan) -> list[Plan]:
        return [dataclasses.replace(plan, scheme=scheme, rows=rows, cols=cols) for scheme, rows, cols in self._sizes]

    @functools.cached_property
    def _sizes(self) -> list[tuple[str, int, int]]:
        """Schemes and tiles, the least expected time first, each scheme with its first tile before all other tiles."""
        times = {(scheme, *tile): (n > 0, us) for scheme in self._schemes
                 for n, (tile, us) in enumerate(self._tile_times(scheme).items())}
        return sorted(times, key=times.__getitem__)

    @functools.cached_property
    def _schemes(self) -> list[str]:
        """Schemes of send_rows, the least expected time first."""
        return [str(self.fixed["scheme"])] if "scheme" in self.fixed else schemes_by_time(self.program, self.machine)

    def flow(self, plan: Plan) -> Taskflow:
        """Returns the Taskflow of a plan, with its queues."""
        flow: AnyIR = self._sent(plan.scheme)
        for step in plan.steps(self.machine)[1:]:
            flow = step.apply_to(flow)
        return flow
