"""Timelines of measured runs: numbers, text and the Chrome trace."""

import json

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.timelines.chrome import chrome_json
from hpmoe.timelines.timeline import Timeline, format_us

EP, NUM_TOKENS, HIDDEN, INTERMEDIATE, NUM_EXPERTS, TOP_K = 2, 6, 8, 4, 4, 2
WORKERS = 2


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


@pytest.fixture(scope="module")
def measured():
    """The forward and backward Timeline of one differentiated call."""
    f, args = moe(hpmoe.cpu(WORKERS)), moe_arguments()
    _, timelines = hpmoe.measure(ms.grad(lambda *a: f(*a).sum(), grad_position=(0, 2, 3, 4)), *args)
    return timelines


def handmade(flow, *times):
    return Timeline.from_trace(flow, np.array([times], np.int64) * 1000)


def two_task_flow(workers=1):
    staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=4), machine=hpmoe.cpu(workers))
    return staged.lower(hpmoe.Aval((8, 6), "float32"))


def test_measure_records_each_launch_of_the_call(measured):
    assert [t.flow.name for t in measured] == ["moe_ffn", "moe_ffn_vjp"]
    assert measured[1].origin >= measured[0].origin + measured[0].span


def test_measure_returns_the_result_and_stops_with_the_call():
    f, args = moe(hpmoe.cpu(WORKERS)), moe_arguments()
    result, timelines = hpmoe.measure(f, *args)
    np.testing.assert_array_equal(result.asnumpy(), f(*args).asnumpy())
    assert len(timelines) == 1


def test_measure_of_what_launches_nothing():
    result, timelines = hpmoe.measure(hpmoe.swiglu, ms.Tensor([[0.0, 5.0]], ms.float32))
    assert (result.asnumpy().tolist(), timelines) == ([[0.0]], ())


def test_an_inner_measure_keeps_its_launches_and_a_failed_one_leaves_nothing():
    f, args = moe(hpmoe.cpu(WORKERS)), moe_arguments()
    (_, (_, inner)), outer = hpmoe.measure(lambda: (f(*args), hpmoe.measure(f, *args)))
    assert (len(inner), len(outer)) == (1, 1) and outer[0].origin < inner[0].origin
    with pytest.raises(ZeroDivisionError):
        hpmoe.measure(lambda: 1 // 0)
    assert hpmoe.measure(lambda: f(*args))[1][0].flow.name == "moe_ffn"


def test_rows_are_every_task_of_every_rank_in_queue_order(measured):
    for line in measured:
        assert len(line.task) == EP * line.flow.num_tasks
        for rank in range(EP):
            mine = line.rank == rank
            assert sorted(line.task[mine]) == list(range(line.flow.num_tasks))
            for q, queue in enumerate(line.flow.queues):
                np.testing.assert_array_equal(line.task[mine & (line.queue == q)], queue)
        assert (line.wait_begin >= 0).all() and line.wait_begin.min() == 0
        assert (line.begin >= line.wait_begin).all() and (line.end >= line.begin).all()


def test_utilisation_and_waiting():
    line = handmade(two_task_flow(2), (10, 13, 20), (10, 10, 15))
    assert line.span == 10
    assert line.waiting == 3
    np.testing.assert_allclose(line.utilisation(), [[0.7, 0.5]])


def test_text_shows_what_a_worker_did_most_of():
    line = handmade(two_task_flow(), (0, 2, 4), (7, 7, 8))
    assert line.text(width=8).splitlines()[1:] == [
        "timeline swiglu  ranks=1 workers=1 tasks=2  8.0 us, 38 % busy, 2.0 us waiting",
        "  rank 0 worker.0 |..AA   A|  38 %",
        "  A swiglu -> a   . waiting",
    ]


def test_text_has_a_row_of_the_width_for_each_worker(measured):
    for line in measured:
        rows = [row for row in line.text(width=30).splitlines() if "|" in row and row.startswith("  rank")]
        assert len(rows) == EP * WORKERS
        assert {len(row.split("|")[1]) for row in rows} == {30}


def test_a_run_without_time_or_tasks_has_a_text():
    assert "0.0 us, 0 % busy" in handmade(two_task_flow(), (5, 5, 5), (5, 5, 5)).text(width=4)


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


def test_chrome_trace_of_one_direction(measured):
    slices = check_chrome_trace(measured[0].chrome_json(), measured[:1])
    waits = [e for e in slices if e["cat"] == "wait"]
    assert sum(e["dur"] for e in waits) == pytest.approx(measured[0].waiting, abs=1e-2 * len(waits))
    named = [name for e in waits for name in e["args"]["for"]]
    assert named and all(name.startswith("!") for name in named)


def test_chrome_trace_of_forward_and_backward_is_one_after_the_other(measured):
    slices = check_chrome_trace(chrome_json(measured), measured)
    first_backward = min(e["ts"] for e in slices if e["args"].get("flow") == "moe_ffn_vjp")
    last_forward = max(e["ts"] + e["dur"] for e in slices if e["args"].get("flow") == "moe_ffn")
    assert first_backward >= last_forward - 1e-3


def test_runs_on_clocks_of_their_own_do_not_overlap():
    line = handmade(two_task_flow(), (0, 1, 2), (2, 2, 4))
    slices = [e for e in json.loads(chrome_json([line, line]))["traceEvents"] if e["ph"] == "X"]
    assert [e["ts"] for e in slices if e["cat"] != "wait"] == [1, 2, 5, 6]


def test_a_put_names_its_slot_and_a_tile_none(measured):
    slices = [e for e in json.loads(measured[0].chrome_json())["traceEvents"] if e["ph"] == "X"]
    puts = [e for e in slices if e["name"].startswith("put[slot 0")]
    assert puts and all(e["args"]["slot"] == 0 and e["cat"] == "aiv" for e in puts)


@pytest.mark.parametrize("flow, shape", [
    (two_task_flow().replace(queues=()), (1, 2, 3)),
    (two_task_flow(), (1, 3, 3)),
])
def test_from_trace_refuses_what_does_not_fit(flow, shape):
    with pytest.raises(hpmoe.ArgumentError, match="Timeline.from_trace: (flow|trace) is "):
        Timeline.from_trace(flow, np.zeros(shape, np.int64))


def test_format_us_keeps_three_digits():
    times = [format_us(t) for t in (0, 999.94, 1e3, 99_900, 1e6)]
    assert times == ["0.0 us", "999.9 us", "1.00 ms", "99.9 ms", "1.00 s"]
