"""tune: the chain of transforms that a machine's model finds fastest for a function."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Mapping

import numpy as np

from hpmoe.ir.avals import RouteAval, as_route, fixed
from hpmoe.ir.limits import MOST_ROWS
from hpmoe.ir.program import Program
from hpmoe.ir.stages import cut_at_routes
from hpmoe.kernels.simulated_inputs import given_ids
from hpmoe.machines.kept_calibration import is_calibrated
from hpmoe.machines.machine import Machine, Mesh
from hpmoe.machines.presets import cpu
from hpmoe.routing.capacity import PerRank
from hpmoe.routing.workload import balanced_ids
from hpmoe.runtime.one_call import Traced
from hpmoe.runtime.planned_rows import routes_of, rows_of_received, with_planned_rows
from hpmoe.runtime.rank_arrays import Arrays
from hpmoe.runtime.running import Runner
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged_function import staged_of
from hpmoe.support.errors import check_argument, check_flags, is_int, is_name, is_number
from hpmoe.support.progress import Progress
from hpmoe.support.trees import Function, PyTree
from hpmoe.transforms.send_rows import SCHEMES
from hpmoe.tuning import kept
from hpmoe.tuning.choose_schedule import chosen
from hpmoe.tuning.search import Settings, Space, Trial, search
from hpmoe.tuning.settings import NAMES, Simulations, space_of, starts_of
from hpmoe.tuning.tuned import Tuned

DIRECTIONS = {"forward": ("forward",), "backward": ("backward",), "both": ("forward", "backward")}


def tune(f: Function, *args: PyTree, machine: Machine | None = None, mesh: Mesh | None = None,
         direction: str = "both", routing: PerRank | None = None, space: Space | None = None, budget_s: float = 10.0,
         max_trials: int | None = None, verbose: bool = False, cache: bool = True, **kwargs: PyTree) -> Tuned:
    """Searches tiles, signals, peer order, policies and schemes of sending rows with the simulator; nothing is computed.

    The first trial is the default chain, so the choice is never slower than that on the model; the second one takes all
    sizes with the least expected time, and the next ones what `choose_schedule` takes of each pass. Every chain
    computes the same function, but for rows that the space has rounded; where tiles have other sizes, or tokens go to a rank
    or node once, float32 sums may round otherwise. A trial that fails is noted and not chosen.

    Args:
        f: a plain function, or one under Program transforms, or spmd of it.
        *args, **kwargs: as for a call; an array may also be an hpmoe.Aval.
        machine: what to be fast on; this CPU where None, as `hpmoe calibrate` measured it if it has.
        mesh: the ranks of a function that is not under spmd; one by default.
        direction: the pass whose time counts: "forward", "backward" or "both".
        routing: topk_ids [T, K] of each rank, the same for every route; those in `args` where all arrays are given and no
            ids are computed, else perfectly balanced. Weights that decide what is dropped are those in `args` or, where not
            all arrays are given or they are computed, all equal.
        space: other values to try of some settings, the first one as default: "rows", "cols" of tile_partition, "order",
            "signal", "put_cols", "returns" of overlap_comm, "policy" of assign_queues, "scheme" of send_rows, those that
            differ on the ranks and nodes of the mesh; "prefetch", whether there is prefetch_weights, None or True.
            "quantize_rows", None or a dtype, changes what is computed and is tried only where it is given.
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
    _check(f, machine, mesh, direction, space, budget_s, max_trials, verbose=verbose, cache=cache)
    is_spmd = isinstance(f, Spmd)
    staged, mesh = (staged_of(f.function), f.mesh) if is_spmd else (staged_of(f), mesh or Mesh())
    machine = machine or cpu(ep_size=mesh.num_ranks, calibrated=is_calibrated())
    traced, inputs, _ = Runner(staged, mesh, is_spmd, f.in_axes if isinstance(f, Spmd) else 0).planned(args, kwargs)
    ids, weights = _ids(traced.program, routing, inputs, mesh.num_ranks), _weights(traced.program, inputs, mesh.num_ranks)
    programs = {d: staged.apply(_sized(p, ids)) for d, p in _launches(_programs(traced, direction)).items()}
    values = space_of(staged.apply(traced.program), machine, mesh.num_ranks, space or {})
    taken = {d: chosen(p, machine, cache=cache)[0] for d, p in programs.items()}
    key = kept.key_of(programs, machine, values, [ids, weights], max_trials) if cache else None
    found = kept.load(key, budget_s, values, least_us=len(programs) * machine.host.launch_us)
    is_cached = found is not None
    if found is None:
        starts = starts_of(values, [taken[d].settings(p, machine) for d, p in programs.items()])
        found = _searched(values, Simulations(programs, machine, ids, weights), budget_s, max_trials, verbose, starts)
        kept.store(key, budget_s, *found)
    return Tuned(traced.program.name, machine, mesh.num_ranks, direction, tuple(found[0]), found[1], is_cached, taken)


def _searched(space: Space, run: Simulations, budget_s: float, max_trials: int | None, verbose: bool,
              starts: list[Settings]) -> tuple[list[Trial], str]:
    shown = Progress("hpmoe.tune") if verbose or sys.stderr.isatty() else contextlib.nullcontext(lambda what: None)
    with shown as report:
        return search(space, run, budget_s, max_trials, report, starts)


def _programs(traced: Traced, direction: str) -> dict[str, Program]:
    """Of each pass whose time counts its program; the forward pass saves what a backward one reads where that counts too."""
    if direction == "forward":
        return {direction: traced.program}
    lin = traced.linearized
    return {d: {"forward": lin.forward, "backward": lin.backward}[d] for d in DIRECTIONS[direction]}


def _launches(programs: dict[str, Program]) -> dict[str, Program]:
    """The program of each launch: those of a pass that computes ids are several."""
    launches = {}
    for name, program in programs.items():
        first, *later = cut_at_routes(program)
        launches[name] = first.program
        launches.update({f"{name} {i}": part.program for i, part in enumerate(later, 1)})
    return launches


def _check(f: Function, machine: Machine | None, mesh: Mesh | None, direction: str, space: Space | None, budget_s: float,
           max_trials: int | None, **switches: bool) -> None:
    check_flags("hpmoe.tune", **switches)
    inner = f.function if isinstance(f, Spmd) else f
    is_plain = callable(inner) and staged_of(inner).level == "program"
    check_argument(is_plain, "hpmoe.tune", "f", str(staged_of(inner)) if callable(inner) else repr(f),
                   "a function before tile_partition, which is what is tuned")
    check_argument(machine is None or isinstance(machine, Machine), "hpmoe.tune", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.ascend_a3 or hpmoe.load_machine(name), or None")
    check_argument(mesh is None or (isinstance(mesh, Mesh) and not isinstance(f, Spmd)), "hpmoe.tune", "mesh", repr(mesh),
                   "None where f is under spmd, else an hpmoe.Mesh")
    check_argument(is_name(direction, DIRECTIONS), "hpmoe.tune", "direction", repr(direction),
                   f"one of {', '.join(DIRECTIONS)}")
    check_argument(is_number(budget_s) and budget_s >= 0, "hpmoe.tune", "budget_s", repr(budget_s),
                   "a number of seconds")
    check_argument(max_trials is None or is_int(max_trials, most=2**63), "hpmoe.tune", "max_trials",
                   repr(max_trials), "a positive int or None")
    is_known = space is None or (isinstance(space, Mapping) and set(space) <= set(NAMES)
                                 and all(isinstance(v, (list, tuple)) and v for v in space.values()))
    check_argument(is_known, "hpmoe.tune", "space", repr(space),
                   f"a dict from some of {', '.join(NAMES)} to lists of values")
    for name, values in (space or {}).items():
        is_value = (lambda v: is_name(v, SCHEMES)) if name == "scheme" else (lambda v: isinstance(v, Hashable))
        wrong = [v for v in values if not is_value(v)]
        check_argument(not wrong, "hpmoe.tune", f"space[{name!r}]", repr(values),
                       f"a list of some of {', '.join(SCHEMES)}" if name == "scheme" else f"a list of values of {name}")


def _ids(program: Program, routing: PerRank | None, inputs: Arrays | None, ep_size: int) -> np.ndarray | None:
    """topk_ids of all ranks, [ep, T, K]: those given, those among the arguments, or balanced ones; None without a route."""
    routes = [e for e in program.equations if isinstance(e.outputs[0].aval, RouteAval)]
    if not routes:
        return None
    aval, (num_tokens, top_k) = as_route(routes[0].outputs[0].aval), fixed(routes[0].inputs[0].aval.shape)
    if routing is not None:
        return np.stack(given_ids("hpmoe.tune", routing, ep_size, num_tokens, top_k, aval.num_model_experts))
    position = routes_of(program)[0].ids
    if inputs is not None and position is not None:
        return np.stack([rank[position].reshape(-1, aval.num_choices) for rank in inputs])
    entries = ep_size * aval.num_tokens * aval.num_choices
    check_argument(entries <= MOST_ROWS, "hpmoe.tune", "the number of ids of all ranks", f"{entries:,}",
                   f"at most {MOST_ROWS:,}")
    return balanced_ids(ep_size, num_tokens, top_k, aval.num_model_experts)


def _weights(program: Program, inputs: Arrays | None, ep_size: int) -> np.ndarray | None:
    """Of all ranks, [ep, T, K], the weights that decide what is dropped: those among the arguments, else all equal; None
    where none do."""
    for route in routes_of(program):
        if route.aval.capacity is None or route.aval.capacity.policy != "probs":
            continue
        if inputs is not None and route.weights is not None:
            return np.stack([rank[route.weights].reshape(-1, route.aval.num_choices) for rank in inputs])
        return np.zeros((ep_size, route.aval.num_tokens, route.aval.num_choices), np.float32)
    return None


def _sized(program: Program, ids: np.ndarray | None) -> Program:
    """The program planned for as many received rows as a call with these ids would be."""
    if ids is None:
        return program
    rows = []
    for aval in (route.aval for route in routes_of(program)):
        rows.append(rows_of_received(max(aval.kind.by_ids.received(ids)), aval))
    return with_planned_rows(program, rows)
