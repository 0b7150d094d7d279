"""Critical paths, waiting, exposed communication: they add up, and agree with the flow's own waits and signals."""

import mindspore as ms
import numpy as np
import pytest
from mutants import with_deps
from simulated_layers import NPU, plan
from small_timelines import EP, handmade, moe, moe_arguments, two_task_flow

import hpmoe
from hpmoe.ir import taskflow as tf
from hpmoe.routing.workload import balanced_ids, imbalanced_ids
from hpmoe.timelines.over_time import time_inside
from hpmoe.timelines.releases import releases
from hpmoe.timelines.run import RATES, union_length
from hpmoe.timelines.text import after_last


@pytest.fixture(scope="module")
def runs():
    """Simulated and measured runs of both directions."""
    skewed = imbalanced_ids(2, 2048, 2, 8, imbalance=1.6, seed=3)
    simulated = [hpmoe.simulate(plan(T=2048, H=1024, direction=d, signal=s), routing=ids) for d in ("forward", "backward")
                 for s, ids in (("tile", skewed), ("peer", balanced_ids(2, 2048, 2, 8)))]
    f, args = moe(hpmoe.cpu(2)), moe_arguments()
    _, measured = hpmoe.measure(ms.grad(lambda *a: f(*a).sum(), grad_position=(0, 2, 3, 4)), *args)
    return [*simulated, *measured]


def feeds(line, source, row):
    """Returns True if a signal of one row's task may add to an event that the other row's task waits for, by the tables."""
    flow, here, there = line.flow, line.rank[source], line.rank[row]
    deps = flow.deps
    for wait in deps.waits[deps.waits["task"] == line.task[row]]:
        block = deps.blocks[deps.events["block"][wait["event"]]]
        for signal in deps.signals[deps.signals["task"] == line.task[source]]:
            exact = wait["kind"] == tf.STATIC and not block.dynamic
            same = (signal["event"] == wait["event"] if exact
                    else block.first <= signal["event"] < block.first + block.size)
            peer = flow.peer_orders[0, here, flow.tasks["peer"][line.task[source]]]
            arrives = {tf.LOCAL: here, tf.PEER: peer, tf.EVERY_RANK: there}[int(signal["remote"])]
            if same and arrives == there:
                return True
    return False


def test_pieces_follow_each_other_and_add_up_to_the_span(runs):
    for line in runs:
        steps = line.critical_path().steps
        assert steps[0].begin == 0 and steps[-1].end == line.span
        assert all(a.end == b.begin for a, b in zip(steps, steps[1:], strict=False)) and min(s.us for s in steps) > 0
        assert sum(s.us for s in steps) == pytest.approx(line.span)
        assert sum(line.critical_path().shares().values()) == pytest.approx(line.span)


def test_each_piece_began_after_what_it_says(runs):
    """Between tasks the path goes along a signal that the waiting task awaits, or to the task before it in its queue."""
    across = 0
    for line in runs:
        place = {(r, t): i for i, (r, t) in enumerate(zip(line.rank.tolist(), line.task.tolist(), strict=True))}
        steps = line.critical_path().steps
        for step in steps:
            row = place[step.rank, step.task]
            assert line.wait_begin[row] <= step.end <= line.end[row] + 1e-9 or step.kind == "between"
            if step.kind == "body":
                assert step.begin == line.begin[row]
        order = list(dict.fromkeys(place[s.rank, s.task] for s in steps))
        assert order[-1] == np.argmax(line.end)
        for before, after in zip(order, order[1:], strict=False):
            is_same = line.rank[before] == line.rank[after] and line.queue[before] == line.queue[after]
            assert (is_same and after == before + 1) or feeds(line, before, after)
            across += line.rank[before] != line.rank[after]
    assert across > 0


def test_the_release_of_a_handmade_run():
    flow = two_task_flow(2)
    flow = with_deps(flow, waits=np.array([(1, 0, tf.STATIC)], tf.WAIT), signals=np.array([(0, 0, 0, 0, 0)], tf.SIGNAL),
                        events=np.zeros(1, tf.EVENT), blocks=(tf.EventBlock("a", "tile", (), 0, 1, False),))
    line = handmade(flow, (0, 1, 5), (0, 7, 9))
    assert releases(line).tolist() == [-1, 0]
    steps = [(s.task, s.kind, s.begin, s.end) for s in line.critical_path().steps]
    assert steps == [(0, "events", 0, 1), (0, "body", 1, 5), (1, "signal", 5, 7), (1, "body", 7, 9)]
    assert line.waiting_for() == {"swiglu -> a": 7.0, "events already counted": 1.0}
    assert after_last(line) == 4
    late = handmade(flow, (0, 1, 5), (6, 7, 9))  # it had been counted when the worker came
    assert [(s.task, s.kind) for s in late.critical_path().steps] == [(1, "between"), (1, "events"), (1, "body")]


def test_waiting_is_accounted_for(runs):
    for line in runs:
        assert sum(line.waiting_for().values()) == pytest.approx(line.waiting)
        shares = line.unit_utilisation()
        machine = line.flow.machine
        assert set(shares) == ({"worker"} if machine.unified else {"aic", "aiv"})
        sizes = {"worker": machine.num_aic, "aic": machine.num_aic, "aiv": machine.num_aiv}
        total = sum(share * sizes[unit] for unit, share in shares.items())
        np.testing.assert_allclose(total, line.utilisation().sum(axis=1))
        busy = total.sum() * line.span
        gaps = len(line.flow.queues) * line.flow.ep_size * line.span - busy - line.waiting - after_last(line)
        assert gaps >= -1e-6 * line.span and (gaps <= 1e-3 * line.span or not line.is_simulated)


def test_exposed_communication_by_stepping_through_time(runs):
    for line in (runs[0], *runs[4:]):
        exposed = line.exposed_communication()
        flow = line.flow
        moves = [flow.ops[o].primitive.is_remote for o in flow.tasks["op"][line.task]]
        peer = flow.tasks["peer"][line.task]
        for rank in range(flow.ep_size):
            bounds = np.unique([line.begin, line.end])
            total = 0.0
            for a, b in zip(bounds, bounds[1:], strict=False):
                on = (line.begin <= a) & (line.end >= b)
                if (on & flow.units()[line.task] & (line.rank == rank)).any():
                    continue
                for row in np.flatnonzero(on & moves):
                    ends = {line.rank[row], flow.peer_orders[0, line.rank[row], peer[row]]}
                    if len(ends) == 2 and rank in ends:
                        total += b - a
                        break
            assert exposed[rank] == pytest.approx(total, abs=1e-6)
        assert (exposed <= line.span).all()


def test_traffic_over_time_is_the_traffic(runs):
    for line in runs[:4]:
        known = line.simulated
        np.testing.assert_allclose(known.served.sum(axis=2), line.traffic[:, :, 0], rtol=1e-9)
        assert known.served.shape[2] * known.bin_us >= line.span
        for name, rate in (("egress", NPU.link.bytes_per_us), ("memory", NPU.memory.bytes_per_us),
                           ("l2", NPU.l2.bytes_per_us)):
            assert known.served[:, RATES.index(name)].max() <= rate * known.bin_us * (1 + 1e-9)


def test_intervals():
    rng = np.random.default_rng(0)
    begin = rng.integers(0, 50, 40).astype(float)
    end = begin + rng.integers(0, 5, 40)
    on = np.array([((begin <= t) & (end > t)).sum() for t in range(60)])
    np.testing.assert_allclose(time_inside(np.arange(61.0), begin, end), on, atol=1e-9)
    assert union_length(begin, end) == (on > 0).sum()
    assert union_length(begin[:0], end[:0]) == 0


def test_report_and_path_say_whether_they_are_simulated(runs):
    for line in runs:
        text = line.report()
        heads = [row for row in text.splitlines() if row[0] not in " " and "at us" not in row]
        assert all(("simulated" in row) == line.is_simulated for row in heads), heads
        assert "exposed communication" in text and "critical path" in text and max(map(len, text.splitlines())) < 400
    assert EP == len(runs[-1].exposed_communication())
    assert handmade(two_task_flow(), (5, 5, 5), (5, 5, 5)).critical_path().shares() == {}
