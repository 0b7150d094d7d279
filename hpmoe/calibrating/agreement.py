"""How well the model of this CPU predicts: layers simulated on it beside measured runs of the same taskflows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import hpmoe
from hpmoe.calibrating.cpu import measure_cpu
from hpmoe.calibrating.runs import Runs
from hpmoe.commands.layer import measured_call

LIMIT = 0.15
# Ten that differ in every size, in routing from even to all tokens to few experts, dtype, ranks and direction.
SHAPES = tuple(
    {"dtype": dtype, "ep": ep, "tokens": t, "hidden": h, "intermediate": i, "experts": e, "top_k": k, "direction": d}
    for dtype, d, ep, t, h, i, e, k in (
        ("float32", "forward", 1, 1024, 1024, 512, 8, 4), ("float32", "backward", 1, 768, 512, 768, 8, 2),
        ("float32", "forward", 2, 384, 768, 384, 4, 2), ("float32", "backward", 4, 128, 512, 512, 8, 2),
        ("float32", "forward", 1, 64, 1024, 512, 16, 4), ("bfloat16", "forward", 1, 2048, 1024, 512, 16, 4),
        ("bfloat16", "backward", 1, 1024, 768, 1024, 4, 2), ("bfloat16", "forward", 4, 512, 1024, 512, 16, 4),
        ("bfloat16", "backward", 2, 512, 512, 256, 8, 4), ("float16", "forward", 1, 256, 640, 320, 4, 2)))


class Case:
    """A shape, its call and what its runs took.

    Attributes:
        shape: as in SHAPES.
        runs: those of its call.
    """

    def __init__(self, shape: dict[str, Any], seed: int):
        self.shape = shape
        o = SimpleNamespace(**shape, seed=seed, tile_rows=None, tile_cols=None)
        rng = np.random.default_rng(seed)
        self.ids = rng.random((o.ep, o.tokens, o.experts)).argsort(-1)[..., :o.top_k].astype(np.int32)
        self.runs = Runs(measured_call(o, hpmoe.cpu(ep_size=o.ep), self.ids))

    def row(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The shape, simulated and measured milliseconds, by how much the first is off, on a machine of these fields, and
        the slowest run as a multiple of the quickest.

        Measured is the mean of the quieter quarter of the runs, as for what the machine is measured by.
        """
        line, _, measured_us = self.runs.launches()[-1]
        machine = hpmoe.cpu(ep_size=self.shape["ep"]).replace(**fields)
        simulated, measured = hpmoe.simulate(line.flow, machine, routing=self.ids).span / 1e3, measured_us / 1e3
        spans = [lines[-1].span for lines in self.runs.timelines]
        return {**self.shape, "simulated_ms": simulated, "measured_ms": measured, "error": simulated / measured - 1,
                "spread": max(spans) / min(spans)}


def agreement(budget_s: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each shape, run in the very rounds in which the machine is measured: speed changes with the minutes."""
    cases = []
    for i, shape in enumerate(SHAPES):
        progress(f"planning shape {i + 1} of {len(SHAPES)}")
        cases.append(Case(shape, seed=i))
    fields, _ = measure_cpu(budget_s, progress, [case.runs for case in cases])
    return [case.row(fields) for case in cases]
