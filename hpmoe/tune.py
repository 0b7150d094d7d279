"""tune: the chain of transforms that a machine's model finds fastest for a function."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from hpmoe.calibration import is_calibrated
from hpmoe.calling.planned_rows import row_bucket, with_max_rows
from hpmoe.calling.running import Runner
from hpmoe.calling.spmd import Spmd
from hpmoe.calling.staging import Staged, chain, describe, level_of
from hpmoe.commands.progress import Progress
from hpmoe.errors import check_argument, is_int, is_name, is_number
from hpmoe.host import cache_folder, write_whole
from hpmoe.kernels.simulate import simulate
from hpmoe.machine import Machine, Mesh, cpu
from hpmoe.program import Program, RouteAval
from hpmoe.search import EXHAUSTED, Trial, best_of, search
from hpmoe.timelines.timeline import format_us
from hpmoe.transforms.assign_queues import POLICIES, assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS, overlap_comm
from hpmoe.transforms.tile_partition import tile_partition
from hpmoe.workload import balanced_ids

DIRECTIONS = {"forward": ("forward",), "backward": ("backward",), "both": ("forward", "backward")}
_kept: dict[str, dict[str, Any]] = {}  # searches of this process by their key


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A chain of transforms, and what was tried before it was chosen: called with a function it fuses it.

    Attributes:
        name: what was tuned.
        machine: for which.
        ep_size: on how many ranks.
        direction: "forward", "backward" or "both", whose simulated times are added.
        trials: in the order in which they were made; the first one is the default.
        why_ended: why there are no more.
        is_cached: whether they were made before, by this process or another.
    """

    name: str
    machine: Machine
    ep_size: int
    direction: str
    trials: tuple[Trial, ...]
    why_ended: str
    is_cached: bool = False

    @property
    def best(self) -> Trial:
        return best_of(self.trials)

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen rows and cols of tile_partition, order and signal of overlap_comm and policy of assign_queues."""
        return dict(self.best.settings)

    @property
    def reason(self) -> str:
        """Why these settings."""
        default, best = self.trials[0].us, self.best.us
        gain = f"{default / best:.2f} times as fast as" if best < default else "nothing tried is faster than"
        return f"{self.best}: {gain} the default; {len(self.trials)} tried, {self.why_ended}"

    def __call__(self, f: Callable[..., Any]) -> Staged:
        """The function under the chosen chain, ready to be called, or put under spmd for several ranks."""
        return chain(*_transforms(self.settings, self.machine), fuse_persistent)(f)

    def __str__(self) -> str:
        names = [name for name, _ in self.trials[0].settings]
        rows = [["", "simulated", "", *names]]
        for t in self.trials:
            mark = "*" if t is self.best else ""
            times = ["failed", ""] if t.us is None else [format_us(t.us), f"{self.trials[0].us / t.us:.2f}x"]
            rows.append([mark, *times, *(str(getattr(v, "__name__", v)) for _, v in t.settings)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        errors = ["", *(t.error for t in self.trials)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=True)), error]).rstrip()
                 for row, error in zip(rows, errors, strict=True)]
        ranks = f"{self.ep_size} ranks" if self.ep_size > 1 else "1 rank"
        passes = "forward + backward" if self.direction == "both" else self.direction
        cached = ", tried before" if self.is_cached else ""
        return "\n".join([f"{self.name} on {self.machine.name}, {ranks}, {passes}: simulated{cached}", *lines,
                          f"chosen: {self.reason}"])

    __repr__ = __str__


def tune(f: Callable[..., Any], *args: Any, machine: Machine | None = None, mesh: Mesh | None = None,
         direction: str = "both", routing: Sequence[np.ndarray] | None = None,
         space: Mapping[str, Sequence[Any]] | None = None, budget_s: float = 10.0, max_trials: int | None = None,
         verbose: bool = False, cache: bool = True, **kwargs: Any) -> Tuned:
    """Searches tile sizes, peer order, signal granularity and queue policy with the simulator; nothing is computed.

    The first trial is the default chain, so the choice is never slower than that on the model. Every chain computes the same
    function; where tiles have other sizes, float32 sums may round otherwise. A trial that fails, by a user's policy or else,
    is noted and not chosen.

    Args:
        f: a plain function, or one under Program transforms, or spmd of it.
        *args, **kwargs: as for a call; an array may also be an hpmoe.Aval.
        machine: what to be fast on; this CPU where None, as `hpmoe calibrate` measured it if it has.
        mesh: the ranks of a function that is not under spmd; one by default.
        direction: the pass whose time counts: "forward", "backward" or "both".
        routing: topk_ids [T, K] of each rank, the same for every route; those in `args` where all arrays are given, else
            perfectly balanced.
        space: other values to try of some settings, the first one as default: "rows", "cols", "order", "signal", "policy".
        budget_s: seconds after which no other trial begins; the first is always made.
        max_trials: most trials; with it, and time enough, the choice does not depend on how fast this computer is.
        verbose: say on stderr what is tried, also where that is no terminal.
        cache: take what was found before for the same program, machine, ranks, routing and space, in this process or in
            $XDG_CACHE_HOME/hpmoe, and keep what is found. Searches with functions in their space are not kept.

    Returns:
        A Tuned: a transform, whose text is the table of all trials, the choice and the reason.

    Raises:
        ArgumentError: an argument is none of these.
        TransformError: the default chain does not apply.

    Example:
        >>> import hpmoe
        >>> x, w = hpmoe.Aval((4096, 2048), "bfloat16"), hpmoe.Aval((2048, 2048), "bfloat16")
        >>> tuned = hpmoe.tune(lambda x, w: hpmoe.swiglu(x @ w), x, w, machine=hpmoe.ascend_a3, max_trials=4, cache=False)
        >>> len(tuned.trials), tuned.best.us <= tuned.trials[0].us, sorted(tuned.settings)
        (4, True, ['cols', 'policy', 'rows'])
    """
    _check(f, machine, mesh, direction, space, budget_s, max_trials)
    is_spmd = isinstance(f, Spmd)
    function, mesh = (f.function, f.mesh) if is_spmd else (f, mesh or Mesh())
    machine = machine or cpu(ep_size=mesh.ep_size, calibrated=is_calibrated())
    traced, inputs, _ = Runner(function, mesh, batched=is_spmd).planned(args, kwargs)
    lin = traced.linearized if direction != "forward" else None
    programs = {"forward": lin.forward if lin else traced.program, "backward": lin.backward if lin else None}
    ids = _ids(traced.program, routing, inputs, mesh.ep_size)
    programs = {d: _sized(programs[d], ids, mesh.ep_size) for d in DIRECTIONS[direction]}
    values = _space(traced.program, machine, mesh.ep_size, space or {})
    key = _key(programs, machine, values, ids, max_trials) if cache else None
    found = _load(key, budget_s)
    if found is None:
        run = Simulations(function, programs, machine, ids)
        shown = Progress("hpmoe.tune") if verbose or sys.stderr.isatty() else contextlib.nullcontext(lambda what: None)
        with shown as report:
            found = search(values, run, budget_s, max_trials, report)
        _store(key, budget_s, *found)
        is_cached = False
    else:
        is_cached = True
    return Tuned(traced.program.name, machine, mesh.ep_size, direction, tuple(found[0]), found[1], is_cached)


def _check(f: Any, machine: Any, mesh: Any, direction: Any, space: Any, budget_s: Any, max_trials: Any) -> None:
    inner = f.function if isinstance(f, Spmd) else f
    is_plain = callable(inner) and level_of(inner) == "program"
    check_argument(is_plain, "hpmoe.tune", "f", describe(inner) if callable(inner) else repr(f),
                   "a function before tile_partition, which is what is tuned")
    check_argument(machine is None or isinstance(machine, Machine), "hpmoe.tune", "machine", repr(machine),
                   "an hpmoe.Machine or None")
    check_argument(mesh is None or (isinstance(mesh, Mesh) and not isinstance(f, Spmd)), "hpmoe.tune", "mesh", repr(mesh),
                   "None where f is under spmd, else an hpmoe.Mesh")
    check_argument(is_name(direction, DIRECTIONS), "hpmoe.tune", "direction", repr(direction),
                   f"one of {', '.join(DIRECTIONS)}")
    check_argument(is_number(budget_s) and budget_s >= 0, "hpmoe.tune", "budget_s", repr(budget_s),
                   "a number of seconds")
    check_argument(max_trials is None or is_int(max_trials, most=2**63), "hpmoe.tune", "max_trials",
                   repr(max_trials), "a positive int or None")
    is_known = space is None or (isinstance(space, Mapping) and set(space) <= {"rows", "cols", "order", "signal", "policy"}
                                 and all(isinstance(v, (list, tuple)) and v for v in space.values()))
    check_argument(is_known, "hpmoe.tune", "space", repr(space),
                   "a dict from some of rows, cols, order, signal, policy to lists of values")


class Simulations:
    """Simulated microseconds of settings, launches included; stages that trials have in common are made once."""

    def __init__(self, f: Callable[..., Any], programs: dict[str, Program], machine: Machine, ids: np.ndarray | None):
        self._f, self._programs, self._machine, self._ids = f, programs, machine, ids
        self._apply = functools.lru_cache(maxsize=32)(self._applied)

    def __call__(self, settings: dict[str, Any]) -> float:
        *shared, queues = _transforms(settings, self._machine)
        steps = tuple((s.func, tuple(s.keywords.items())) for s in shared)
        total = 0.0
        for direction in self._programs:
            flow = queues.func.apply_to(self._apply(direction, steps), **queues.keywords)
            total += self._machine.launch_us + simulate(flow, routing=self._ids if flow.routes else None).span
        return total

    def _applied(self, direction: str, steps: tuple[Any, ...]) -> Any:
        if not steps:
            program = self._programs[direction]
            return self._f.apply(program) if isinstance(self._f, Staged) else program
        transform, options = steps[-1]
        return transform.apply_to(self._apply(direction, steps[:-1]), **dict(options))


def _transforms(settings: dict[str, Any], machine: Machine) -> list[functools.partial[Any]]:
    """The transforms of a chain up to its queues."""
    tiles = functools.partial(tile_partition, rows=settings["rows"], cols=settings["cols"])
    comm = {name: settings[name] for name in ("order", "signal") if name in settings}
    overlap = [functools.partial(overlap_comm, **comm)] if comm else []
    return [tiles, *overlap, functools.partial(assign_queues, machine=machine, policy=settings["policy"])]


def _space(program: Program, machine: Machine, ep_size: int, given: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The settings that make a difference and their values, the default first."""
    rows, cols = machine.tile_rows, machine.tile_cols
    out: dict[str, list[Any]] = {"policy": list(POLICIES), "rows": [rows, rows // 2, rows // 4, rows // 8, 2 * rows],
                                 "cols": [cols, cols // 2, cols // 4, 2 * cols]}
    if any(isinstance(e.outputs[0].aval, RouteAval) for e in program.equations):
        out["signal"] = list(SIGNALS)
        if ep_size > 1:
            out["order"] = list(ORDERS)
    return {name: list(dict.fromkeys(given.get(name, [v for v in values if v != 0]))) for name, values in out.items()}


def _ids(program: Program, routing: Sequence[np.ndarray] | None, inputs: Any, ep_size: int) -> np.ndarray | None:
    """topk_ids of all ranks, [ep, T, K]: those given, those among the arguments, or balanced ones; None without a route."""
    routes = [e for e in program.equations if isinstance(e.outputs[0].aval, RouteAval)]
    if not routes:
        return None
    aval = routes[0].outputs[0].aval
    if routing is not None:
        shape = (ep_size, *routes[0].inputs[0].aval.shape)
        check_argument(np.shape(routing) == shape, "hpmoe.tune", "routing", f"of shape {np.shape(routing)}",
                       f"of shape {shape}")
        return np.asarray(routing, np.int32)
    if inputs is not None:
        position = program.inputs.index(routes[0].inputs[0])
        return np.stack([rank[position] for rank in inputs])
    return balanced_ids(ep_size, *routes[0].inputs[0].aval.shape, aval.num_experts)


def _sized(program: Program, ids: np.ndarray | None, ep_size: int) -> Program:
    """The program planned for as many received rows as a call with these ids would be."""
    routes = [e.outputs[0].aval for e in program.equations if isinstance(e.outputs[0].aval, RouteAval)]
    if ids is None or not routes:
        return program
    counts = np.bincount(ids.reshape(-1), minlength=routes[0].num_experts).reshape(ep_size, -1).sum(axis=1)
    return with_max_rows(program, [row_bucket(int(counts.max()), aval.max_rows) for aval in routes])


# What was found before.


def _key(programs: dict[str, Program], machine: Machine, space: dict[str, list[Any]], ids: np.ndarray | None,
         max_trials: int | None) -> str | None:
    """The same for the same search; None where functions are in the space, which say nothing that could be compared."""
    if any(callable(v) for values in space.values() for v in values):
        return None
    what = [metadata.version("hpmoe"), {d: str(p) for d, p in programs.items()}, repr(machine), space, max_trials,
            None if ids is None else [list(ids.shape), hashlib.sha256(np.ascontiguousarray(ids).tobytes()).hexdigest()]]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _load(key: str | None, budget_s: float) -> tuple[list[Trial], str] | None:
    """The trials kept under a key; None where there are none, or where they ended for a smaller budget."""
    if key is None:
        return None
    try:
        kept = _kept.get(key) or json.loads((cache_folder() / f"tune-{key[:32]}.json").read_text(encoding="utf-8"))
        if kept["key"] != key or (kept["why_ended"] != EXHAUSTED and kept["budget_s"] < budget_s):
            return None
        trials = [Trial(tuple(map(tuple, settings)), us, error) for settings, us, error in kept["trials"]]
        return (trials, kept["why_ended"]) if trials and trials[0].us else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of something else is written anew


def _store(key: str | None, budget_s: float, trials: list[Trial], why_ended: str) -> None:
    if key is None:
        return
    kept = {"key": key, "budget_s": budget_s, "why_ended": why_ended,
            "trials": [[[list(s) for s in t.settings], t.us, t.error] for t in trials]}
    _kept[key] = kept
    path = cache_folder() / f"tune-{key[:32]}.json"
    try:
        write_whole(path, json.dumps(kept) + "\n")
    except OSError as error:
        warnings.warn(f"hpmoe.tune: what was found cannot be kept in {path.parent}: {error}", stacklevel=3)
