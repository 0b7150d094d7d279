"""Advice on expert placement: simulated gains of relocated experts and of expert replicas on a routing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from hpmoe.balance.relocation import relocated
from hpmoe.commands.layer import Layer
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

REPLICAS = 0, 1, 2, 4  # slots of a rank


def advice(layer: Layer, fused_ms: Callable[[Layer], float], progress: Progress) -> list[Fields]:
    """Returns milliseconds of the fused layer with experts in their order and relocated, each with numbers of replicas."""
    places = np.argsort(relocated(np.arange(layer.o.experts), layer.loads.astype(float), layer.o.ep)).astype(np.int32)
    moved = np.where(layer.ids >= 0, places[layer.ids], layer.ids)
    out: list[Fields] = []
    for is_moved, ids in ((False, layer.ids), (True, moved)):
        for replicas in REPLICAS:
            progress(f"{replicas} replicas, experts {'relocated' if is_moved else 'in order'}")
            other = dataclasses.replace(layer, ids=ids, replicas=replicas)
            out.append({"relocated": is_moved, "replicas": replicas, "imbalance": other.imbalance,
                        "fused_ms": fused_ms(other)})
    return out


def advice_text(rows: list[Fields]) -> str:
    """Returns a line for each row of `advice`, and the best one."""
    first = rows[0]["fused_ms"]
    lines = ["", "simulated with other placements of experts", f"  {'experts':12}{'replicas':>9}{'fused ms':>10}{'gain':>8}"]
    for row in rows:
        name = "relocated" if row["relocated"] else "in order"
        lines.append(f"  {name:12}{row['replicas']:>9}{row['fused_ms']:>10.3f}{100 * (1 - row['fused_ms'] / first):>6.1f} %")
    best = min(rows, key=lambda row: row["fused_ms"])
    return "\n".join([*lines, f"  fastest: {'relocated' if best['relocated'] else 'in order'}, {best['replicas']} replicas"])
