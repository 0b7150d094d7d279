"""Timelines of measured runs: numbers, text and the Chrome trace."""

import json

import mindspore as ms
import numpy as np
import pytest
from small_timelines import EP, check_chrome_trace, handmade, moe, moe_arguments, two_task_flow

import hpmoe
from hpmoe.timelines.chrome import chrome_json

WORKERS = 2


@pytest.fixture(scope="module")
def measured():
    """The forward and backward Timeline of one differentiated call."""
    f, args = moe(hpmoe.cpu(WORKERS)), moe_arguments()
    _, timelines = hpmoe.measure(ms.grad(lambda *a: f(*a).sum(), grad_position=(0, 2, 3, 4)), *args)
    return timelines


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


def test_measures_nest_and_a_failed_one_leaves_nothing():
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
        "timeline swiglu  ranks=1 workers=1 tasks=2  8.0 us, 38 % busy, 2.0 us waiting summed over 1 worker",
        "  rank 0 worker.0 |..SS   S|  38 %",
        "  S SwiGLU   . waiting",
    ]


def test_a_run_without_time_or_tasks_has_a_text():
    assert "0.0 us, 0 % busy" in handmade(two_task_flow(), (5, 5, 5), (5, 5, 5)).text(width=4)


def test_chrome_trace_of_one_direction(measured):
    slices = check_chrome_trace(measured[0].chrome_json(), measured[:1])
    waits = [e for e in slices if e["cat"] == "wait"]
    assert sum(e["dur"] for e in waits) == pytest.approx(measured[0].waiting, abs=1e-2 * len(waits))
    named = [name for e in waits for name in e["args"]["for"]]
    assert named and all(name.startswith("!") for name in named)


def test_chrome_trace_puts_backward_after_forward(measured):
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
