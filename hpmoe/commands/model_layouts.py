"""hpmoe simulate --model: what the MoE part of a known model takes on a cluster, by EP and TP."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
from absl import flags

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.layer import Layer
from hpmoe.commands.machine import machine_of
from hpmoe.commands.routing_flag import routing_of
from hpmoe.costs.start import start_us
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.machines.perturbed import drawn
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.kinds.sharded import Sharded
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.support.progress import Progress
from hpmoe.tiling.shared_memory import memory_bytes

PASSES = "forward", "backward"
GIB = 2**30
BANDS, RANKS, LAYOUTS, TP = 4, 32, 4, 1  # where they are not given
TAKEN = "model", "ranks", "layouts", "tp", "bands", "tokens", "dtype", "machine", "routing", "seed", "step", "layer", "json"


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of the routed experts of a layer, from the model's published config.json."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int


MODELS = {"deepseek-v3": Model(7168, 2048, 256, 8), "qwen3-235b": Model(4096, 1536, 128, 8),
          "kimi-k2": Model(7168, 2048, 384, 8), "gpt-oss": Model(2880, 2880, 128, 4)}


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "model", None, "whose routed experts, on --ranks, instead", tuple(MODELS))
    options.define_integer(values, "ranks", None, f"with --model, ranks of the cluster; by default {RANKS}")
    options.define_integer(values, "layouts", None, f"with --model, numbers of groups for each TP; by default {LAYOUTS}")
    options.define_integer(values, "tp", None, f"with --model, most ranks that share an expert; by default {TP}")


def check(o: flags.FlagValues) -> None:
    """Raises UsageError for a flag that says nothing with --model, or nothing without it."""
    for name in o if o.model is not None else ():
        options.check_flag(name in TAKEN or not o[name].present, name, o[name].value, "left out with --model")
    for name in ("ranks", "layouts", "tp") if o.model is None else ():
        options.check_flag(o[name].value is None, name, o[name].value, "left out without --model")


def run(o: flags.FlagValues) -> int:
    asked = SimpleNamespace(**{name: getattr(o, name) for name in TAKEN})
    for name, default in (("ranks", RANKS), ("layouts", LAYOUTS), ("tp", TP), ("bands", BANDS)):
        value = getattr(o, name)
        setattr(asked, name, default if value is None else value)
    model = MODELS[asked.model]
    tps = [1 << i for i in range(asked.tp.bit_length())
           if asked.ranks % (1 << i) == 0 and model.intermediate % (1 << i) == 0]
    options.check_flag(asked.tp == tps[-1], "tp", asked.tp,
                       "a power of two that divides --ranks and the model's intermediate size")
    layouts = [(ep, tp) for tp in tps for ep in spreads_of(asked.ranks // tp, model.experts)[:asked.layouts]]
    for ep, tp in layouts:
        options.check_sizes(sizes_of(asked, ep, tp))
    with Progress("hpmoe simulate") as progress:
        table = [row(asked, ep, tp, progress) for ep, tp in layouts]
    result: Fields = {"simulated": True, "model": asked.model, **dataclasses.asdict(model), "ranks": asked.ranks,
                      "tokens": asked.tokens, "dtype": asked.dtype, "machine": asked.machine, "routing": asked.routing,
                      "rows": table}
    return options.report(o, result, text(asked, table))


def spreads_of(ranks: int, experts: int) -> list[int]:
    """Returns numbers of ranks that hold all experts once: those that divide both, the largest first."""
    return [ep for ep in range(ranks, 0, -1) if ranks % ep == 0 and experts % ep == 0]


def sizes_of(o: options.Options, ep: int, tp: int = 1) -> SimpleNamespace:
    return SimpleNamespace(ep=ep, tp=tp, tokens=o.tokens, dtype=o.dtype, **dataclasses.asdict(MODELS[o.model]))


def row(o: options.Options, ep: int, tp: int, progress: Progress) -> Fields:
    """Returns a table row of a layout: milliseconds, exposed communication, GiB of the fullest rank, tokens/s, bands."""
    sizes, ranks = sizes_of(o, ep, tp), ep * tp
    machine = machine_of(SimpleNamespace(machine=o.machine, ep=ranks), is_calibrated())
    ids = routing_of(o, sizes_of(o, ranks))
    lines = []
    for direction in PASSES:
        progress(f"EP {ep}, TP {tp}, {direction}")
        lines.append(Layer(sizes, direction, machine, ids, tuned=True).fused())
    found = [figures(o, lines, ids, None)]
    for i, other in enumerate(drawn(machine, o.bands), 1):
        progress(f"EP {ep}, TP {tp}, machine {i} of {o.bands} in the ranges of its constants")
        found.append(figures(o, lines, ids, other))
    kind = Direct(ranks, ids.shape[1], ids.shape[2], sizes.experts)
    received = Sharded(kind, tp).received(ids)
    return {"ep": ep, "tp": tp, "dp": o.ranks // ranks, **found[0],
            "exposed_ms": sum(float(line.exposed_communication().mean()) for line in lines) / 1e3,
            "memory_gib": max(held(line.flow, received) for line in lines) / GIB,
            "imbalance": max(received) / max(1e-9, float(np.mean(received))),
            "bands": {name: [min(f[name] for f in found), max(f[name] for f in found)] for name in found[0]}
            if found[1:] else {}}


def figures(o: options.Options, lines: list[hpmoe.Timeline], ids: np.ndarray,
            other: hpmoe.Machine | None) -> dict[str, float]:
    """Returns milliseconds of both passes and tokens per second of all ranks, on the planned machine or another one."""
    ms = []
    for line in lines:
        span = line.span if other is None else hpmoe.simulate(line.flow, other, routing=ids).span
        ms.append((span + start_us(line.flow, other or known(line.flow.machine))) / 1e3)
    tokens = o.ranks * np.count_nonzero((ids >= 0).any(axis=-1)) / len(ids)
    return {"forward_ms": ms[0], "backward_ms": ms[1], "tokens_per_second": float(tokens / sum(ms) * 1e3)}


def held(flow: hpmoe.rewriting.Taskflow, received: list[int]) -> int:
    """Returns the bytes of all arrays of a pass on the fullest rank: weights, and backward their gradients and saved values.
    """
    return sum(memory_bytes(flow, [max(received)] * len(flow.routes)).values())


def text(o: options.Options, table: list[Fields]) -> str:
    model = MODELS[o.model]
    sizes = ", ".join(f"{name} {size}" for name, size in dataclasses.asdict(model).items())
    lines = [f"{o.model} ({sizes}), a layer's routed experts, {o.ranks} ranks of {o.machine}, {o.tokens} tokens each, "
             f"{o.dtype}, {o.routing}: simulated",
             f"{'EP':>5}{'TP':>4}{'DP':>5}{'forward, ms':>24}{'backward, ms':>24}{'tokens a second':>28}"
             f"{'exposed, ms':>13}{'GiB a rank':>12}{'imbalance':>11}"]
    for r in table:
        shown = "".join(f"{_banded(r, name, scale):>{width}}" for name, scale, width in (
            ("forward_ms", 1, 24), ("backward_ms", 1, 24), ("tokens_per_second", 1e-6, 26)))
        lines.append(f"{r['ep']:>5}{r['tp']:>4}{r['dp']:>5}{shown} M{r['exposed_ms']:>13.2g}{r['memory_gib']:>12.3g}"
                     f"{r['imbalance']:>11.3g}")
    lines += [f"x to y: on {o.bands} machines drawn from the ranges of the constants"] if o.bands else []
    return "\n".join([*lines, "exposed: communication of both passes with no matrix worker busy, mean of ranks"])


def _banded(r: Fields, name: str, scale: float) -> str:
    if name not in r["bands"]:
        return f"{r[name] * scale:.3g}"
    return " to ".join(f"{end * scale:.2g}" for end in r["bands"][name])
