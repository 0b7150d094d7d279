"""schedule_grid.py --recorded: the time of a DeepSeek-V3 layer under recorded loads, by several plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.recorded_loads import ids_of_file
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

DATA = Path(__file__).with_name("data")
DECODE, PREFILL = (DATA / f"expert_load_{name}.json" for name in ("decode_in2000out100", "prefill_in4096"))
RANKS, TOKENS = (8, 16, 32, 64), {128: DECODE, 1024: PREFILL, 4096: PREFILL}
LAYER = 30  # of the 61 that are recorded
COLUMNS = "round_robin", "autotune", "replicas", "deduplicated"


def rows(dtype: str, machine: hpmoe.Machine, seed: int, progress: Progress) -> list[Fields]:
    """Returns for each number of tokens and ranks the default's time, its bound, and the times of the other columns."""
    out = []
    for (tokens, path), ep in ((item, ep) for item in TOKENS.items() for ep in RANKS):
        progress(f"{path.stem}, EP {ep}, {tokens} tokens")
        o = SimpleNamespace(ep=ep, tokens=tokens, hidden=7168, intermediate=2048, experts=256, top_k=8, dtype=dtype)
        ids = ids_of_file(path, ep, tokens, o.top_k, o.experts, seed=seed, layer=LAYER)
        layer = Layer(o, "forward", machine, ids, tuned=True)
        flow = layer.fused_flow()
        others = {"replicas": dataclasses.replace(layer, replicas=1),
                  "deduplicated": dataclasses.replace(layer, scheme="deduplicated")}
        us = {name: other.launch_us(other.fused_flow()) for name, other in others.items()}
        us["round_robin"] = layer.launch_us(layer.fused_flow("round_robin"))
        us["autotune"] = layer.launch_us(layer.autotuned_flow(is_known=True))
        span = layer.launch_us(flow)
        out.append({"loads": path.stem.split("_")[2], "tokens": tokens, "ep": ep, "imbalance": layer.imbalance,
                    "makespan_us": span, "makespan_over_bound": span / layer.least_us(flow),
                    "over_makespan": {name: time / span for name, time in us.items()}})
    return out


def text(table: list[Fields], machine: hpmoe.Machine) -> str:
    """Formats a line for each number of tokens and ranks."""
    lines = [f"{machine.name}, DeepSeek-V3, layer {LAYER}, forward: the default's time, other plans over it; simulated",
             "loads    tokens   EP imbalance       ms  bound" + "".join(f"{name:>{len(name) + 2}}" for name in COLUMNS)]
    for r in table:
        over = r["over_makespan"]
        cells = (f"{over[name]:{len(name) + 2}.3f}" for name in COLUMNS)
        lines.append(f"{r['loads']:8}{r['tokens']:7}{r['ep']:5}{r['imbalance']:10.1f}{r['makespan_us'] / 1e3:9.2f}"
                     f"{r['makespan_over_bound']:7.3f}" + "".join(cells))
    return "\n".join(lines)
