"""Agreement of this CPU's model with measured runs: layers simulated on it beside measured runs of the same taskflows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.calibration.cpu import Measurement
from hpmoe.calibration.measured_call import measured_call
from hpmoe.calibration.runs import Runs, Yardstick
from hpmoe.support.cached_files import Fields

LIMIT = 0.15
MOST_TIMES = 2  # the time for all is spent
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
    """A shape of SHAPES, its call and the runs of the call."""

    def __init__(self, shape: Fields, seed: int):
        self.shape = shape
        o = SimpleNamespace(**shape, seed=seed, tile_rows=None, tile_cols=None)
        rng = np.random.default_rng(seed)
        self.ids = rng.random((o.ep, o.tokens, o.experts)).argsort(-1)[..., :o.top_k].astype(np.int32)
        self.runs = Runs(measured_call(o, hpmoe.cpu(ep_size=o.ep), self.ids))

    def row(self, fields: Fields, yardstick: Yardstick) -> Fields:
        """The shape, simulated and measured milliseconds, by how much the first is off, on a machine of these fields; the
        standard error of the second as a share of it, its runs, how many of them count, and the slowest as a multiple of the
        quickest.

        Measured are runs of the same kind as those that the machine is measured by.
        """
        line, _, measured_us = self.runs.launches(yardstick)[-1]
        machine = hpmoe.cpu(ep_size=self.shape["ep"]).replace(fields)
        simulated, measured = hpmoe.simulate(line.flow, machine, routing=self.ids).span / 1e3, measured_us / 1e3
        spans = [run.lines[-1].span for run in self.runs.all]
        return {**self.shape, "simulated_ms": simulated, "measured_ms": measured, "error": simulated / measured - 1,
                "uncertainty": self.runs.uncertainty(yardstick), "runs": len(spans),
                "counted": len(self.runs.counted(yardstick)[0]), "spread": max(spans) / min(spans)}


def agreement(budget_s: float, progress: Callable[[str], None]) -> list[Fields]:
    """Returns a row for each shape, run in the rounds in which the machine is measured: its speed changes with the minutes.

    If a shape is off by more than LIMIT, machine and shapes are measured again, and all runs count together.
    """
    cases = []
    for i, shape in enumerate(SHAPES):
        progress(f"planning shape {i + 1} of {len(SHAPES)}")
        cases.append(Case(shape, seed=i))
    measurement = Measurement(progress, [case.runs for case in cases])
    for _ in range(MOST_TIMES):
        measurement.run(budget_s)
        fields, _ = measurement.result()
        rows = [case.row(fields, measurement.yardstick) for case in cases]
        off = sum(abs(row["error"]) > LIMIT for row in rows)
        if not off:
            break
        progress(f"{off} of {len(rows)} off by more than {LIMIT:.0%}: measuring on")
    return rows
