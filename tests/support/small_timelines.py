"""Small runs, measured or made by hand, and what a Chrome trace of any run must be."""

import json

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.timelines.timeline import Timeline

EP, NUM_TOKENS, HIDDEN, INTERMEDIATE, NUM_EXPERTS, TOP_K = 2, 6, 8, 4, 4, 2


def moe_arguments():
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((EP, NUM_TOKENS, NUM_EXPERTS)), axis=-1)[..., :TOP_K].astype(np.int32)
    local = NUM_EXPERTS // EP
    shapes = [(EP, NUM_TOKENS, HIDDEN), (EP, NUM_TOKENS, TOP_K), (EP, local, HIDDEN, 2 * INTERMEDIATE),
              (EP, local, INTERMEDIATE, HIDDEN)]
    x, w, up, down = (ms.Tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes)
    return x, ms.Tensor(ids), w, up, down


def moe(machine):
    staged = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=4, cols=4))
    return hpmoe.spmd(hpmoe.fuse_persistent(hpmoe.assign_queues(staged, machine=machine)), hpmoe.Mesh(EP))


def handmade(flow, *times):
    return Timeline.from_trace(flow, np.array([times], np.int64) * 1000)


def two_task_flow(workers=1):
    staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=4), machine=hpmoe.cpu(workers))
    return staged.lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))


def check_chrome_trace(text, timelines):
    """Every task once, waits before it, one process a rank, one thread a worker, nothing before its predecessor."""
    flow = timelines[0].flow
    events = json.loads(text)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    workers = range(len(flow.queues))
    assert processes == {r: f"rank {r}" for r in range(flow.ep_size)}
    assert names == {(r, q): flow.machine.queue_name(q) for r in range(flow.ep_size) for q in workers}
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} <= set("XMCsf")
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)
    assert [e["ts"] for e in slices] == sorted(e["ts"] for e in slices)
    bodies = [(e["pid"], e["args"]["flow"], e["args"]["task"]) for e in slices if e["cat"] != "wait"]
    wanted = [(r, t.flow.name, f"t{i}") for t in timelines for r in range(EP) for i in range(t.flow.num_tasks)]
    assert sorted(bodies) == sorted(wanted)
    assert {e["cat"] for e in slices} <= {"wait", "aic", "aiv"}
    for worker in names:
        mine = [e for e in slices if (e["pid"], e["tid"]) == worker]
        for before, after in zip(mine, mine[1:], strict=False):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    return slices
