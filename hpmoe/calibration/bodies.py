"""Measures tasks of each kind on this CPU while all its cores work: layers and functions run with tracing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import mint
from mindspore.mint.nn import functional

import hpmoe
from hpmoe.calibration.fit import Samples
from hpmoe.calibration.measured_call import measured_call
from hpmoe.calibration.runs import Runs, Yardstick
from hpmoe.costs.footprint import block_heights
from hpmoe.costs.work import Work
from hpmoe.ir.layout import Layout
from hpmoe.support.dtypes import FLOATS, rounded, storage_dtype
from hpmoe.support.known import known
from hpmoe.support.trees import PyTree
from hpmoe.timelines.timeline import Timeline

# Small enough for a round of all to take under a second, and far enough apart in every size to tell what small ones lose.
LAYERS = tuple(
    SimpleNamespace(ep=1, tokens=t, hidden=h, intermediate=i, experts=e, top_k=k, tile_rows=rows, tile_cols=cols, seed=s)
    for s, (t, h, i, e, k, rows, cols) in enumerate((
        (768, 768, 384, 3, 2, 512, 512), (192, 512, 1024, 4, 2, 128, 256), (96, 256, 128, 8, 3, 512, 512),
        (256, 1536, 256, 2, 1, 256, 512), (64, 768, 768, 16, 2, 512, 512),
        (512, 1024, 512, 2, 2, 1024, 1024), (10, 1024, 448, 8, 3, 1024, 1024), (40, 384, 896, 2, 1, 1024, 1024))))
# Unit rate of everything: what a task costs on it is its flops or bytes.
UNIT = hpmoe.cpu(1).replace({"cube.flops_per_us": 1.0, "vector.bytes_per_us": 1.0, "vector.copy_bytes_per_us": 1.0,
                             "memory.bytes_per_us": 1e30})


def one_of_each(x: ms.Tensor, bias: ms.Tensor) -> tuple[ms.Tensor, ...]:
    """Returns results of elementwise functions and reductions that a MoE-FFN lacks, so that their tasks are timed."""
    positive = mint.abs(x) + 1.0
    maps = (mint.exp(x), mint.log(positive), mint.sqrt(positive), mint.rsqrt(positive), mint.sigmoid(x), mint.tanh(x),
            functional.silu(x), functional.relu(x), mint.erf(x), x / positive, mint.maximum(x, positive), x - positive,
            mint.where(x > 0.5, x, positive), mint.pow(positive, 1.5), mint.sin(x), mint.cos(x), x + bias)
    return (*maps, mint.sum(x, dim=-1), mint.amax(x, dim=-1), mint.sum(x, dim=0))


class Subject:
    """A function whose launches are timed: topk_ids of its routes, [1, T, K], and the runs of its call."""

    def __init__(self, make: Callable[[hpmoe.Machine], Callable[[], PyTree]], ids: np.ndarray | None = None):
        self.ids = ids
        self.runs = Runs(make(hpmoe.cpu()))

    def tasks(self, yardstick: Yardstick, machine: hpmoe.Machine) -> Iterator[tuple[str, str, Samples]]:
        """Yields (kind, dtype, samples) of each operation of each launch; `machine` has cache sizes and memory rates."""
        for line, us, _ in self.runs.launches(yardstick):
            yield from samples(line, us, self.ids, machine)


def subjects() -> list[Subject]:
    """Returns all calls that are timed; the first run of each call traces and plans it."""
    out = []
    for dtype in FLOATS:
        for o in LAYERS:
            rng = np.random.default_rng(o.seed)
            ids = rng.random((1, o.tokens, o.experts)).argsort(-1)[..., :o.top_k].astype(np.int32)

            sizes = SimpleNamespace(**vars(o), dtype=dtype, direction="backward")
            out.append(Subject(functools.partial(measured_call, sizes, ids=ids), ids))
        for shape in ((64, 1024), (512, 256)):
            args = [ms.Tensor(rounded(np.random.default_rng(0).random(s), dtype)) for s in (shape, shape[1:])]
            out.append(Subject(functools.partial(_functions, args)))
    return out


def _functions(args: list[ms.Tensor], machine: hpmoe.Machine) -> Callable[[], PyTree]:
    staged = hpmoe.assign_queues(hpmoe.tile_partition(one_of_each, rows=64, cols=512), machine=machine)
    return functools.partial(hpmoe.fuse_persistent(staged), *args)


def samples(line: Timeline, us: np.ndarray, ids: np.ndarray | None,
            machine: hpmoe.Machine) -> Iterator[tuple[str, str, Samples]]:
    """Yields (kind, dtype, Samples) of each operation of a launch on one rank; `us` are its tasks' times, in queue order."""
    flow = line.flow
    layout = Layout(flow, [] if ids is None else [ids] * len(flow.routes), None)
    missed = known(hpmoe.simulate(flow, machine, routing=ids).simulated).missed
    memory_us = missed * machine.host.cores / machine.memory.bytes_per_us
    rows, row_work = layout.task_rows(0)[line.task], Work(flow, UNIT).entries(flow.tasks[line.task])["core_row"]
    for i, op in enumerate(flow.ops):
        if len(op.operands) < 2 or op.operands[1].buffer < 0:
            continue
        buffer = flow.buffers[op.operands[1].buffer]
        mine = (flow.tasks["op"][line.task] == i) & (rows > 0)
        tasks = flow.tasks[line.task[mine]]
        inner = np.where(tasks["row"] % op.domain.blocks == op.domain.blocks - 1, *block_heights(flow, op)[::-1])
        yield op.kind, storage_dtype(buffer.dtype), Samples(*(np.asarray(a, float) for a in (
            (row_work * rows)[mine], rows[mine], np.where(tasks["cols"] > 0, tasks["cols"], buffer.cols),
            np.where(inner > 0, inner, buffer.cols), us[mine], memory_us[mine])))
