"""A contest between ranks that are processes: each rank runs this, and has all sides in it, which take turns.

The argument is a JSON object: sides, repeats, `folder`, where the problem and its results in float64 are and where rank 0
leaves the report, and `world`, the options of `hpmoe.world` if a cable joins ranks of two hosts.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import mindspore as ms
import numpy as np
from hpmoe_fused import passes_of
from layer_problem import PASSES, RESULTS, LayerProblem

import hpmoe
from hpmoe.kernels.link import Link
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.support.trees import Function
from hpmoe.timelines.measure import measure
from hpmoe.transforms.send_rows import SCHEMES

OWN = {"hpmoe": "direct", **{scheme: scheme for scheme in SCHEMES}}  # hpmoe's sides, each with its scheme of send_rows
TURN_S = 0.1  # a turn is one untimed run, and then as many as fit
ARRAYS = {"x": "hidden_states", "ids": "topk_ids", "weights": "topk_weights", "cotangent": "cotangent",
          "gate_up": "gate_up_weight", "down": "down_weight"}
Passes = Mapping[str, Callable[[], list[ms.Tensor]]]
Sides = Mapping[str, Passes]


def part(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    """A rank's part of what all have one after another, tokens or experts."""
    return np.ascontiguousarray(np.split(array, size)[rank])


def problem_of(problem: LayerProblem, rank: int) -> Fields:
    """The arrays of a rank, float32 holding values of the dtype."""
    return {"dtype": problem.dtype,
            **{name: part(problem.array(array), rank, problem.ep) for name, array in ARRAYS.items()}}


def seconds_of(link: Link, run: Callable[[], object]) -> float:
    """Times one run, from when all ranks begin to when the last has ended."""
    link.meet("a turn", b"")
    began = time.perf_counter()
    run()
    link.meet("the end of a turn", b"")
    return time.perf_counter() - began


def take_turns(link: Link, passes: Sides, repeats: int) -> Fields:
    """Milliseconds of each side's turns at each pass, the mean over the runs of a turn; every round another side begins."""
    turns = {side: {which: [] for which in of_side} for side, of_side in passes.items()}
    for i in range(repeats):
        order = list(passes) if i % 2 == 0 else list(passes)[::-1]
        for which in PASSES:
            for side in [side for side in order if which in passes[side]]:
                first = seconds_of(link, passes[side][which])
                slowest = max(float(data) for data in link.meet("how long a run takes", str(first).encode()))
                times = [seconds_of(link, passes[side][which]) for _ in range(max(1, int(TURN_S / slowest)))]
                turns[side][which].append(1e3 * sum(times) / len(times))
    return turns


def own_shares(link: Link, run: Callable[[], object]) -> tuple[float, float]:
    """Returns the shares of communication and of skew in the launches of a run; see `shares_of`."""
    _, timelines = measure(run)
    computed, span = np.zeros(link.size), 0.0
    for line in timelines:
        moves = np.array([op.primitive.is_remote for op in line.flow.ops], bool)[line.flow.tasks["op"][line.task]]
        span += float(line.end.max() - line.wait_begin.min()) * link.num_threads
        computed += np.bincount(line.rank, (line.end - line.begin) * ~moves, link.size)
    return shares_of(computed, span)


def torch_shares(link: Link, run: Callable[[], object]) -> tuple[float, float]:
    """Returns both shares for PyTorch, where a rank computes when it is in no exchange."""
    module = importlib.import_module("pytorch_ranks")
    link.meet("a turn", b"")
    module.Exchange.seconds, began = 0.0, time.perf_counter()
    run()
    span = time.perf_counter() - began
    told = np.stack([np.frombuffer(data) for data in link.meet("what a rank did", np.array(
        [span, span - module.Exchange.seconds]).tobytes())])
    return shares_of(told[:, 1], float(told[:, 0].max()))


def shares_of(computed: np.ndarray, span: float) -> tuple[float, float]:
    """Communication: what a run takes beyond the work of the rank that computes most; and skew: what others wait for it.

    Example:
        >>> shares_of(np.array([6.0, 8.0]), 10.0)
        (0.2, 0.1)
    """
    longest = float(computed.max())
    return max(0.0, round(1 - longest / span, 4)), max(0.0, round((longest - float(computed.mean())) / span, 4))


def worst_error(results: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest error of any result, as a share of its largest value; infinite where one is no number."""
    errors = [float(np.abs(x.astype(np.float64) - y).max(initial=0.0) / max(np.abs(y).max(initial=0.0), 1e-30))
              for x, y in zip(results, right, strict=False)]
    return max((e if e == e else float("inf") for e in errors), default=0.0)


def sides_of(problem: Fields, mesh: hpmoe.Mesh, link: Link, folder: Path,
             names: list[str]) -> dict[str, tuple[Passes, Function]]:
    """The passes of each side, and how its results become arrays."""
    x, weights, gate_up, down, cotangent = (ms.Tensor(problem[name]).astype(getattr(ms, problem["dtype"]))
                                            for name in ("x", "weights", "gate_up", "down", "cotangent"))
    sides: dict[str, tuple[Passes, Function]] = {
        name: passes_of(mesh, ms.Tensor(problem["ids"]), (x, weights, gate_up, down), cotangent, OWN[name])
        for name in names if name in OWN}
    if "torch" in names:
        module = importlib.import_module("pytorch_ranks")
        sides["torch"] = module.layer(problem, link.rank, link.size, str(folder / "meeting"))
    if "mindspore" in names:
        os.environ["MS_NODE_ID"] = str(link.rank)
        sides["mindspore"] = importlib.import_module("mindspore_ranks").layer(problem, link.rank, link.size)
    return sides


def contest(link: Link, mesh: hpmoe.Mesh, given: Fields) -> tuple[Fields, Sides]:
    """Errors and turns of each side on this rank, and the passes of each."""
    folder = Path(given["folder"])
    whole = LayerProblem.read(folder)
    sides = sides_of(problem_of(whole, link.rank), mesh, link, folder, given["sides"])
    right = [part(np.load(folder / f"right_{name}.npy", mmap_mode="r"), link.rank, link.size) for name in RESULTS]
    report: Fields = {"errors": {}}
    for side, (passes, to_array) in sides.items():
        results = [to_array(t) if not isinstance(t, (tuple, list)) else np.stack([to_array(e) for e in t])
                   for t in list(passes.values())[-1]()]
        report["errors"][side] = worst_error(results, right)
    passes_of_sides = {side: passes for side, (passes, _) in sides.items()}
    report["turns_ms"] = take_turns(link, passes_of_sides, given["repeats"])
    return report, passes_of_sides


def shares(link: Link, sides: Sides) -> Fields:
    """Communication and skew of the sides of which they are known, in each pass."""
    found = {"hpmoe": own_shares, "torch": torch_shares}
    return {side: {which: np.median([found[side](link, run) for _ in range(3)], 0).tolist()
                   for which, run in passes.items()} for side, passes in sides.items() if side in found}


def carried(link: Link, run: Callable[[], object]) -> Fields:
    """Returns what crosses to other hosts during a run of all ranks: bytes and messages of rows of this rank, and bytes of
    the cable of this host."""
    link.meet("before a count", b"")
    then, cable = link.traffic, cable_bytes()
    run()
    link.meet("after a count", b"")  # by then other hosts have what was sent in the run
    sent = link.traffic
    return {"row_bytes": sent.row_bytes - then.row_bytes, "messages": sent.row_messages - then.row_messages,
            "cable_bytes": cable_bytes() - cable}


def cable_bytes() -> int:
    """Returns the bytes that this host has sent over all interfaces but its own loopback."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    counts = {name.strip(): fields.split() for name, _, fields in (line.partition(":") for line in lines)}
    return sum(int(fields[8]) for name, fields in counts.items() if name != "lo")


def main() -> None:
    given = json.loads(sys.argv[1])
    mesh = hpmoe.world(**given["world"])
    link = cast(Link, known(mesh.link))
    report, sides = contest(link, mesh, given)
    if given["world"]:
        report["carried"] = {side: {which: carried(link, run) for which, run in passes.items()}
                             for side, passes in sides.items()}
    else:
        report["shares"] = shares(link, sides)
    reports = [json.loads(data) for data in link.meet("a report", json.dumps(report).encode())]
    if link.rank == 0:
        (Path(given["folder"]) / "report.json").write_text(json.dumps(reports))
    if "mindspore" in sides:
        link.close()
        os._exit(0)  # MindSpore's collectives now and then crash in a process that ends


if __name__ == "__main__":
    main()
