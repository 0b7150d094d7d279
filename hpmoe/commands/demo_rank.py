"""A rank of `hpmoe demo --processes`, which starts this module as several processes.

What it is given is a JSON object: sizes, dtype, seed, repeats, and `folder`, where rank 0 leaves the report.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.commands import demo
from hpmoe.kernels.link import Link
from hpmoe.ranks.world import World
from hpmoe.routing.workload import layer_inputs
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.support.progress import Progress
from hpmoe.support.trees import Function, PyTree
from hpmoe.timelines.chrome import chrome_json
from hpmoe.timelines.timeline import Timeline


def main() -> None:
    given, mesh = SimpleNamespace(**json.loads(sys.argv[1])), hpmoe.world()
    link, folder = cast(Link, known(mesh.link)), Path(given.folder)
    ms.runtime.launch_blocking()
    if mesh.rank > 0:
        take_part(given, mesh, link, lambda what: None)
        return
    with Progress("hpmoe demo, rank 0") as progress:
        found, results, timelines = take_part(given, mesh, link, progress)
        found["same_as_virtual"], found["errors"] = checked(given, results, progress)
    (folder / "timeline.json").write_text(chrome_json(timelines), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(found), encoding="utf-8")


def staged() -> Function:
    return hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)(hpmoe.moe_ffn)


def take_part(given: SimpleNamespace, mesh: World, link: Link,
              progress: Callable[[str], None]) -> tuple[Fields, list[np.ndarray], tuple[Timeline, ...]]:
    """Runs the joint part of all ranks: returns the report, the output and gradients with a rank axis, and the timelines."""
    progress("making inputs")
    args, cotangent = layer_inputs(given)  # every rank draws those of all, and takes its own
    calls = demo.passes(hpmoe.spmd(staged(), mesh), tuple(a[mesh.rank] for a in args), cotangent[mesh.rank])
    progress("warming up")
    own = demo.arrays_of(calls)
    results = [np.stack(gathered(link, array)) for array in own]
    latency = {which: turns(link, run, given.repeats) for which, run in calls.items()}
    progress("recording the timeline")
    _, timelines = hpmoe.measure(calls["forward + backward"])
    mine = {"rank": mesh.rank, "process": os.getpid(), "cores": sorted(os.sched_getaffinity(0)),
            "rows": int(np.sum(args[1].asnumpy() // (given.experts // mesh.ep) == mesh.rank)),
            **{d: did(line, mesh.rank, link.num_threads) for d, line in zip(demo.DIRECTIONS, timelines, strict=True)}}
    ranks = [json.loads(data) for data in link.meet("what each rank did", json.dumps(mine).encode())]
    schedules = {d: demo.schedule(line) for d, line in zip(demo.DIRECTIONS, timelines, strict=True)}
    return ({"ranks": ranks, "waits": mesh.report(), "latency_ms": latency, "schedule": schedules}, results, timelines)


def gathered(link: Link, array: np.ndarray) -> list[np.ndarray]:
    told = link.meet("results", np.ascontiguousarray(array).tobytes(), str(array.shape).encode())
    return [np.frombuffer(data, array.dtype).reshape(array.shape) for data in told]


def turns(link: Link, run: Callable[[], PyTree], repeats: int) -> float:
    """Returns median milliseconds from the moment all ranks begin until the last rank has ended."""
    times = []
    for _ in range(repeats):
        link.meet("a turn", b"")
        begin = time.perf_counter()
        run()
        link.meet("the end of a turn", b"")
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def did(line: Timeline, rank: int, num_threads: int) -> Fields:
    """Returns a rank's work in a launch, in milliseconds of its threads, and the bytes that it sent to others."""
    mine = line.rank == rank
    moves = np.array([op.primitive.is_remote for op in line.flow.ops], bool)[line.flow.tasks["op"][line.task]][mine]
    took, span = (line.end - line.begin)[mine] / 1e3, float(line.end[mine].max() - line.wait_begin[mine].min()) / 1e3
    computing, moving, moved = float(took[~moves].sum()), float(took[moves].sum()), known(line.moved)[rank]
    return {"ms": span, "computing_ms": computing, "moving_ms": moving, "sent_bytes": int(moved.sum() - moved[rank]),
            "waiting_ms": max(0.0, span * num_threads - computing - moving)}


def checked(given: SimpleNamespace, results: list[np.ndarray],
            progress: Callable[[str], None]) -> tuple[bool, dict[str, float]]:
    """Returns True if virtual ranks give bitwise equal results, and each result's error against MindSpore op by op."""
    args, cotangent = layer_inputs(given)
    progress("computing on virtual ranks")
    virtual = demo.arrays_of(demo.passes(hpmoe.spmd(staged(), hpmoe.Mesh(given.ep)), args, cotangent))
    progress("computing op by op")
    args = args if given.dtype == "float32" else demo.in_float32(args)
    right = demo.arrays_of(demo.passes(demo.moe_ffn_op_by_op, args, cotangent))
    errors = map(demo.relative_error, results, right)
    return (all(map(np.array_equal, results, virtual)),
            dict(zip(("output", *demo.GRADIENTS), errors, strict=True)))


if __name__ == "__main__":
    main()
