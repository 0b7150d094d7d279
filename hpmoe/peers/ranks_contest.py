"""A contest between ranks that are processes: each rank runs this, and has all sides in it, which take turns.

What it is given is a JSON object: sizes, dtype, repeats, whether PyTorch takes part, and `folder`, where rank 0 leaves
the report.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.kernels.link import Link
from hpmoe.peers.hpmoe_fused import passes_of
from hpmoe.routing.workload import drawn_ids
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.kept_files import Fields
from hpmoe.support.known import known
from hpmoe.timelines.measure import measure

EXCHANGES = 500  # in a turn
TURN_S = 0.1  # a turn is one untimed run, and then as many as fit
SIZES = ("tokens", "hidden", "intermediate", "experts", "top_k")
Passes = Mapping[str, Callable[[], list[ms.Tensor]]]
NAMES = ("out", "d_x", "d_weights", "d_gate_up", "d_down")


def problem_of(rank: int, size: int, given: Fields) -> Fields:
    """The arrays of a rank, float32 holding values of the dtype."""
    rng = np.random.default_rng([given["seed"], rank])
    tokens, hidden, inner, experts, top_k = (given[name] for name in SIZES)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        array = rng.standard_normal(shape, np.float32) * np.float32(scale)
        return array.astype(numpy_dtype(given["dtype"])).astype(np.float32)

    return {"dtype": given["dtype"], "x": normal(tokens, hidden), "weights": normal(tokens, top_k),
            "cotangent": normal(tokens, hidden), "ids": drawn_ids(1, tokens, top_k, experts, seed=rng)[0],
            "gate_up": normal(experts // size, hidden, 2 * inner, scale=hidden ** -0.5),
            "down": normal(experts // size, inner, hidden, scale=inner ** -0.5)}


def seconds_of(link: Link, run: Callable[[], object]) -> float:
    """Of one run, from when all ranks begin to when the last has ended."""
    link.meet("a turn", b"")
    began = time.perf_counter()
    run()
    link.meet("the end of a turn", b"")
    return time.perf_counter() - began


def take_turns(link: Link, passes: Mapping[str, Passes], repeats: int) -> Fields:
    """Milliseconds of each side's turns at each pass, the mean over the runs of a turn; every round another side begins."""
    turns = {side: {which: [] for which in of_side} for side, of_side in passes.items()}
    for i in range(repeats):
        order = list(passes) if i % 2 == 0 else list(passes)[::-1]
        for which in turns[order[0]]:
            for side in order:
                first = seconds_of(link, passes[side][which])
                slowest = max(float(data) for data in link.meet("how long a run takes", str(first).encode()))
                times = [seconds_of(link, passes[side][which]) for _ in range(max(1, int(TURN_S / slowest)))]
                turns[side][which].append(1e3 * sum(times) / len(times))
    return turns


def own_share(link: Link, run: Callable[[], object]) -> float:
    """The share of launches in which this rank runs no task that computes: copies to others, and waits."""
    (_, timelines), me, spans, computed = measure(run), link.rank, 0.0, 0.0
    for line in timelines:
        moves = np.array([op.primitive.is_remote for op in line.flow.ops], bool)[line.flow.tasks["op"][line.task]]
        mine = line.rank == me
        spans += float(line.end[mine].max() - line.wait_begin[mine].min())
        computed += float((line.end - line.begin)[mine & ~moves].sum())
    return max(0.0, 1 - computed / (spans * link.num_threads))


def torch_share(module: ModuleType, run: Callable[[], object]) -> float:
    """The share of a run that this rank spends in exchanges, waits included."""
    module.Exchange.seconds, began = 0.0, time.perf_counter()
    run()
    return module.Exchange.seconds / (time.perf_counter() - began)


def worst_difference(a: list[np.ndarray], b: list[np.ndarray]) -> dict[str, float]:
    """Of results, the largest difference as a share of the largest value."""
    return {name: float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for name, x, y in zip(NAMES, a, b, strict=False)}


def contest(link: Link, mesh: hpmoe.Mesh, given: Fields) -> Fields:
    """What this rank has to report."""
    problem = problem_of(link.rank, link.size, given)
    x, weights, gate_up, down, cotangent = (ms.Tensor(problem[name]).astype(getattr(ms, given["dtype"]))
                                            for name in ("x", "weights", "gate_up", "down", "cotangent"))
    own, to_numpy = passes_of(mesh, ms.Tensor(problem["ids"]), (x, weights, gate_up, down), cotangent)
    passes: dict[str, Passes] = {"hpmoe": own}
    shares: dict[str, Callable[[Callable[[], object]], float]] = {"hpmoe": lambda run: own_share(link, run)}
    report: Fields = {"exchange_us": exchange_us(link)}
    if given["torch"]:
        module = importlib.import_module("hpmoe.peers.pytorch_ranks")
        meeting = str(Path(given["folder"]) / "meeting")
        passes["torch"], to_array = module.layer(problem, link.rank, link.size, meeting)
        shares["torch"] = lambda run: torch_share(module, run)
        found = [[convert(t) for t in passes[side]["forward + backward"]()]
                 for side, convert in (("hpmoe", to_numpy), ("torch", to_array))]
        report["differences"] = worst_difference(*found)
    report["turns_ms"] = take_turns(link, passes, given["repeats"])
    report["shares"] = {side: {which: statistics.median(shares[side](run) for _ in range(3))
                               for which, run in of_side.items()} for side, of_side in passes.items()}
    return report


def exchange_us(link: Link) -> dict[str, float]:
    """Microseconds of an exchange of 64 bytes with every peer: a meeting, and stores and loads of shared memory alone.

    Medians of turns: in a short one that the system interrupts, nearly all is that.
    """
    turns = [(link.time_exchange(EXCHANGES, False), link.time_exchange(EXCHANGES, True)) for _ in range(31)]
    meeting, bare = (1e6 * statistics.median(each) for each in zip(*turns, strict=True))
    return {"meeting": meeting, "bare": bare}


def main() -> None:
    given, mesh = json.loads(sys.argv[1]), hpmoe.world()
    link = cast(Link, known(mesh.link))
    report = contest(link, mesh, given)
    reports = [json.loads(data) for data in link.meet("a report", json.dumps(report).encode())]
    if link.rank == 0:
        (Path(given["folder"]) / "report.json").write_text(json.dumps(reports))


if __name__ == "__main__":
    main()
