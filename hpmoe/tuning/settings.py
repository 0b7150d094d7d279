"""The settings of a chain of transforms: what may be tried for a program on a machine, and the chain they stand for."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from hpmoe.costs.start import start_us
from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.simulate import simulate
from hpmoe.machines.machine import Machine
from hpmoe.primitives.dispatch import dispatch_rows
from hpmoe.runtime.transform import Curried, Transform
from hpmoe.transforms.assign_queues import POLICIES, assign_queues
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS, overlap_comm
from hpmoe.transforms.prefetch_weights import prefetch_weights
from hpmoe.transforms.quantize_rows import quantize_rows
from hpmoe.transforms.send_rows import SCHEMES, schemes_of
from hpmoe.transforms.tile_partition import tile_partition
from hpmoe.tuning.search import Settings, Space, Value

Step = tuple[Transform, tuple[tuple[str, object], ...]]  # and its options

# Of which transform's option each is: scheme is that of send_rows, put_cols overlap_comm's cols, prefetch whether there is
# prefetch_weights, quantize_rows the dtype of that, which changes what is computed and is therefore tried only where it is
# given.
NAMES = ("scheme", "quantize_rows", "policy", "signal", "order", "rows", "cols", "put_cols", "returns", "prefetch")


def space_of(program: Program, machine: Machine, ep_size: int, given: Space) -> dict[str, list[Value]]:
    """The settings that make a difference and their values, the default first; those that are given instead of others."""
    rows, cols = machine.tile_rows, machine.tile_cols
    values: dict[str, list[Value]] = {
        "policy": list(POLICIES), "rows": [rows, "auto", rows // 2, rows // 4, rows // 8, 2 * rows],
        "cols": [cols, "auto", cols // 2, cols // 4, 2 * cols, 4 * cols]}
    if any(isinstance(e.outputs[0].aval, RouteAval) for e in program.equations):
        values["signal"], values["put_cols"], values["returns"] = list(SIGNALS), [None, "auto"], [None, 2]
        if ep_size > 1:
            values["order"] = list(ORDERS)
        if not machine.unified:
            values["prefetch"] = [None, True]
    if "quantize_rows" in given and any(e.primitive is dispatch_rows for e in program.equations):
        values["quantize_rows"] = [None]
    if len(schemes := schemes_of(program)) > 1:
        values["scheme"] = list(schemes)
    return {name: list(dict.fromkeys(given.get(name, [v for v in values[name] if v != 0])))
            for name in NAMES if name in values}


def starts_of(space: Space, others: Iterable[Settings]) -> list[Settings]:
    """From where to search: the default of all settings, all sizes chosen by the machine together, and this with each of the
    other settings that are in the space."""
    default = {name: values[0] for name, values in space.items()}
    by_machine = {name: "auto" if "auto" in values else values[0] for name, values in space.items()}
    known = [settings for settings in others if all(value in space[name] for name, value in settings.items())]
    return [default, by_machine, *({**by_machine, **settings} for settings in known)]


def transforms_of(settings: Settings, machine: Machine) -> list[Curried]:
    """The transforms of a chain up to its queues."""
    sent: list[Curried] = [step() for step in SCHEMES[str(settings.get("scheme", "direct"))]]
    sent += [quantize_rows(dtype=settings["quantize_rows"])] if settings.get("quantize_rows") else []
    tiles = tile_partition(rows=settings["rows"], cols=settings["cols"], machine=machine)
    comm = {option: settings[name] for name, option in (("order", "order"), ("signal", "signal"), ("put_cols", "cols"),
                                                        ("returns", "returns")) if name in settings}
    overlap = [overlap_comm(**comm)] if comm else []
    early = [prefetch_weights()] if settings.get("prefetch") else []
    return [*sent, tiles, *overlap, *early, assign_queues(machine=machine, policy=settings["policy"])]


class Planned:
    """Taskflows of a program by settings; stages that they have in common are made once."""

    def __init__(self, program: Program, machine: Machine):
        self._program, self._machine = program, machine
        self._apply = functools.lru_cache(maxsize=32)(self._applied)

    def __call__(self, settings: Settings) -> Taskflow:
        *shared, queues = transforms_of(settings, self._machine)
        return queues.apply_to(self._apply(tuple((s.transform, tuple(s.options.items())) for s in shared)))

    def _applied(self, steps: tuple[Step, ...]) -> AnyIR:
        if not steps:
            return self._program
        transform, options = steps[-1]
        return transform.apply_to(self._apply(steps[:-1]), **dict(options))


class Simulations:
    """Simulated microseconds of settings, launches included."""

    def __init__(self, programs: dict[str, Program], machine: Machine, ids: np.ndarray | None, weights: np.ndarray | None):
        self._planned = [Planned(program, machine) for program in programs.values()]
        self._machine, self._ids, self._weights = machine, ids, weights

    def __call__(self, settings: Settings) -> float:
        total = 0.0
        for planned in self._planned:
            flow = planned(settings)
            weights = self._weights if flow.routes else None
            timeline = simulate(flow, routing=self._ids if flow.routes else None,
                                topk_weights=None if weights is None else list(weights))
            total += start_us(flow, self._machine) + timeline.span
        return total
