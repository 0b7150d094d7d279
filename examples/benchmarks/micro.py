"""The micro-benchmarks that HyperParallel-MoE publishes of SwiGLU + Add, beside the model of an Ascend A3."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from mindspore import Tensor

import hpmoe
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.timelines.run import RATES

COLS = 2048
# arXiv 2605.23764, microseconds: (rows, what): measured. At 8192 rows it only says that interleaving is slightly slower.
PAPER = {(2048, "static"): 54, (2048, "dynamic"): 413, (8192, "in stages"): None, (8192, "interleaved"): None,
         (32768, "static"): 588, (32768, "dynamic"): 863, (32768, "in stages"): 723, (32768, "interleaved"): 588}
NOTES = """\
Interleaving gains where the result of SwiGLU no longer fits in L2 before Add comes to it, and memory is the limit: 32,768
rows. At 8,192 all of it fits, and pairs of tasks are dealt out less evenly than tasks: slightly slower.
Dynamic: workers take their tasks, and find that none are left, by adding to one counter in memory, one after another. By
the model's costs of a signal, a look and a task that is 1.4 us each: at 32,768 rows the counter is the limit and explains
what was measured; at 2,048 rows it explains a third. The paper's dynamic queue is 359 us slower than the static one at 2,048
rows and 275 at 32,768, whereas claims grow from 80 to 560: most of that is there once per launch, whatever a claim costs; no
source says what it is, and it is not modelled."""


def stage(x: Tensor, y: Tensor) -> Tensor:
    return hpmoe.swiglu(x) + y


def interleaved(flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
    """SwiGLU of a tile, then Add of it, by the same worker; tiles dealt out in turn."""
    pairs = np.arange(flow.num_tasks).reshape(2, -1).T
    workers = machine.queues_of("aiv")
    queues = [np.zeros(0, np.int64)] * machine.num_queues
    for i, q in enumerate(workers):
        queues[q] = pairs[i::len(workers)].reshape(-1)
    return queues


def shared_queue_us(bodies: Iterable[float], machine: hpmoe.Machine) -> float:
    """Until all vector workers have found a queue in memory empty that each takes its next task from.

    Example:
        >>> round(shared_queue_us([10.0] * 4, hpmoe.machines.ascend_a3.replace(num_aiv=2)), 1)
        25.6
    """
    sync = machine.sync
    take = sync.signal_us + sync.poll_us + sync.task_us  # add to the counter, see what it was, read the task
    workers, counter_is_free = [0.0] * len(machine.queues_of("aiv")), 0.0
    for body in (*bodies, *[np.inf] * len(workers)):
        counter_is_free = max(heapq.heappop(workers), counter_is_free) + take
        heapq.heappush(workers, counter_is_free + body)
    return counter_is_free


def rows() -> list[Fields]:
    """A row for each measurement, microseconds with the launch."""
    out = []
    for (num_rows, what), measured in PAPER.items():
        machine = hpmoe.machines.ascend_a3
        avals = hpmoe.ShapeDtypeStruct((num_rows, 2 * COLS), "bfloat16"), hpmoe.ShapeDtypeStruct((num_rows, COLS),
                                                                                                 "bfloat16")
        flow = hpmoe.tile_partition.apply_to(hpmoe.trace(stage, *avals), rows=machine.tile_rows, cols=COLS)
        policy = "round_robin" if what in ("in stages", "dynamic") else interleaved
        line = hpmoe.simulate(hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy))
        in_order = np.argsort(line.begin, kind="stable")
        us = shared_queue_us((line.end - line.begin)[in_order], machine) if what == "dynamic" else line.span
        out.append({"rows": num_rows, "what": what, "paper_us": measured, "simulated_us": machine.host.launch_us + us,
                    "memory_mb": float(known(line.traffic)[0, RATES.index("memory"), 0]) / 1e6})
    return out


def text(table: list[Fields]) -> str:
    lines = [f"SwiGLU + Add, {COLS} columns, us", f"{'rows':>7} {'':12}{'paper':>8}{'simulated':>11}{'from memory, MB':>17}"]
    for row in table:
        paper = "-" if row["paper_us"] is None else row["paper_us"]
        lines.append(f"{row['rows']:>7} {row['what']:12}{paper:>8}{row['simulated_us']:11.0f}{row['memory_mb']:17.0f}")
    return "\n".join([*lines, NOTES])
