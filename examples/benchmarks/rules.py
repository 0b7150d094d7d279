"""ablation.py --rules: what each rule of the default schedule is worth, on seventeen layers of different shapes."""

from __future__ import annotations

from types import SimpleNamespace

import hpmoe
from hpmoe.commands.layer import Layer, ids_of
from hpmoe.machines.presets import ascend_a2, ascend_a3
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.rules import RULES, without
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress


def layers() -> dict[str, Layer]:
    """The seventeen, by name."""
    return {
        "8x4096": _layer(8, 4096), "8x512": _layer(8, 512),
        "long": _layer(8, 4096, hidden=8192, intermediate=512, top_k=2, machine=ascend_a2),
        "thin": _layer(16, 2048, hidden=2048, intermediate=1024, routing="uniform"),
        "64x64": _layer(64, 64, local=4, routing="uniform"),
        "skew b": _layer(16, 1024, routing="dirichlet", direction="backward"),
        "one b": _layer(8, 4096, hidden=2048, intermediate=768, local=1, top_k=6, routing="dirichlet", direction="backward"),
        "even b": _layer(8, 1024, hidden=4096, intermediate=1536, local=4, routing="uniform", direction="backward"),
        "hot b": _layer(16, 2048, hidden=2048, intermediate=1024, local=1, top_k=4, routing="hot", direction="backward"),
        "hot": _layer(32, 256, hidden=5120, intermediate=1536, local=1, routing="hot"),
        "room all": _layer(8, 512, room="all"),
        "nodes b": _layer(16, 1024, direction="backward", machine=ascend_a2),
        "fast b": _layer(3, 256, hidden=5120, intermediate=1536, local=1, top_k=3, direction="backward",
                         machine=ascend_a3.replace({"link.node_size": 1}, num_aiv=4 * ascend_a3.num_aiv)),
        "wide": _layer(4, 2048, hidden=6144, intermediate=16384, top_k=2, local=1),
        "copies": _layer(4, 4096, imbalance=2.0, replicas=1),
        "once": _layer(16, 1024, intermediate=1024, routing="uniform", scheme="rank",
                       machine=ascend_a3.replace({"link.node_size": 8})),
        "relays": _layer(16, 2048, routing="uniform", machine=ascend_a2, scheme="node"),
    }


def _layer(ep: int, tokens: int, *, hidden: int = 7168, intermediate: int = 2048, local: int = 8, top_k: int = 8,
           routing: str = "balanced", imbalance: float = 1.0, direction: str = "forward",
           machine: hpmoe.Machine = ascend_a3, replicas: int = 0, scheme: str = "direct", room: str = "received") -> Layer:
    o = SimpleNamespace(ep=ep, tokens=tokens, hidden=hidden, intermediate=intermediate, experts=local * ep, top_k=top_k,
                        dtype="bfloat16")
    ids = ids_of(o, imbalance) if routing == "balanced" else skewed_ids(routing, ep, tokens, top_k, o.experts)
    return Layer(o, direction, machine, ids, replicas, tuned=True, scheme=scheme, room=room)


def rows(progress: Progress, of: dict[str, Layer] | None = None) -> list[Fields]:
    """Of each layer its time, its bound, and how much longer it takes without each rule."""
    out, chosen = [], of or layers()
    for i, (name, layer) in enumerate(chosen.items()):
        progress(f"{i + 1} of {len(chosen)}: {name}")
        line = layer.fused()
        span, slower = layer.span_us(line), {}
        for rule in RULES:
            with without(rule):
                slower[rule] = layer.span_us(layer.fused()) / span - 1
        out.append({"layer": name, "makespan_us": span, "makespan_over_bound": span / layer.bound_us(line),
                    "without": slower})
    return out


def text(table: list[Fields]) -> str:
    """A column for each layer, a line for each rule."""
    lines = ["time without a rule against that with all: simulated", f"{'':18}" + "".join(f"{r['layer']:>9}" for r in table),
             f"{'over the bound':18}" + "".join(f"{r['makespan_over_bound']:9.3f}" for r in table)]
    lines += [f"{rule:18}" + "".join(f"{r['without'][rule]:+9.1%}" for r in table) for rule in RULES]
    return "\n".join([*lines, *(f"{rule}: {what}" for rule, what in RULES.items())])
