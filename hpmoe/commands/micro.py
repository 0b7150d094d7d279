"""The micro-benchmarks that HyperParallel-MoE publishes of SwiGLU + Add, beside the model of an Ascend A3."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor

import hpmoe

COLS = 2048
STATIC_US, DYNAMIC_US = 0.1, 2.36  # of a task, as published
# arXiv 2605.23764, microseconds: (rows, what): measured. At 8192 rows it only says that interleaving is slightly slower.
PAPER = {(2048, "static"): 54, (2048, "dynamic"): 413, (8192, "in stages"): None, (8192, "interleaved"): None,
         (32768, "static"): 588, (32768, "dynamic"): 863, (32768, "in stages"): 723, (32768, "interleaved"): 588}
NOTES = """\
Interleaving gains where the result of SwiGLU no longer fits in L2 before Add comes to it, and memory is the limit: 32,768
rows. At 8,192 all of it fits, and pairs of tasks are dealt out less evenly than tasks: slightly slower.
Not reproduced: the published dynamic times. 2.26 us more for each task of a worker is what the model adds; what was measured
is 359 us more at 2,048 rows and 275 us more at 32,768, which does not grow with the tasks and is something else."""


def stage(x: Tensor, y: Tensor) -> Tensor:
    return hpmoe.swiglu(x) + y


def interleaved(flow: hpmoe.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
    """SwiGLU of a tile, then Add of it, by the same worker; tiles dealt out in turn."""
    pairs = np.arange(flow.num_tasks).reshape(2, -1).T
    workers = machine.queues_of("aiv")
    queues = [np.zeros(0, np.int64)] * machine.num_queues
    for i, q in enumerate(workers):
        queues[q] = pairs[i::len(workers)].reshape(-1)
    return queues


def rows() -> list[dict[str, Any]]:
    """A row for each measurement, microseconds with the launch."""
    out = []
    for (num_rows, what), measured in PAPER.items():
        machine = hpmoe.ascend_a3.replace(task_us=DYNAMIC_US if what == "dynamic" else STATIC_US)
        avals = hpmoe.Aval((num_rows, 2 * COLS), "bfloat16"), hpmoe.Aval((num_rows, COLS), "bfloat16")
        flow = hpmoe.tile_partition.apply_to(hpmoe.trace(stage, *avals), rows=machine.tile_rows, cols=COLS)
        policy = "round_robin" if what == "in stages" else interleaved
        line = hpmoe.simulate(hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy))
        out.append({"rows": num_rows, "what": what, "paper_us": measured, "simulated_us": machine.launch_us + line.span,
                    "memory_mb": float(line.traffic[0, hpmoe.timeline.RATES.index("memory"), 0]) / 1e6})
    return out


def text(table: list[dict[str, Any]]) -> str:
    lines = [f"SwiGLU + Add, {COLS} columns, us", f"{'rows':>7} {'':12}{'paper':>8}{'simulated':>11}{'from memory, MB':>17}"]
    for row in table:
        paper = "-" if row["paper_us"] is None else row["paper_us"]
        lines.append(f"{row['rows']:>7} {row['what']:12}{paper:>8}{row['simulated_us']:11.0f}{row['memory_mb']:17.0f}")
    return "\n".join([*lines, NOTES])
