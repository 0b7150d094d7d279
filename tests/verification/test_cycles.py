"""The error of a schedule that cannot run lists a shortest cycle: task by task, each with its queue and what leads on."""

import collections
import re

import numpy as np
import pytest
from helpers import SMALL_NPU, Layer, avals_of, stages

import hpmoe
from hpmoe import TransformError, VerifyError
from hpmoe.rewriting import rebuild, requeue

LINE = re.compile(r"^    t(\d+) +\S.*# (?:rank (\d+) )?(\S+), then t(\d+)( of a peer| of rank \d+)?: "
                  r"(queue order|event (\S+))$")


def listed(error):
    """(task, rank, queue, next task, whose, event) of each line of a cycle."""
    first, *lines = str(error.value).split("\n")
    assert "can never run: a cycle leads through what it waits for" in first
    steps = [LINE.match(line).groups() for line in lines]
    assert re.search(r"task t(\d+) ", first)[1] == steps[0][0]
    assert [step[3] for step in steps] == [step[0] for step in (*steps[1:], steps[0])]
    return steps


def leads_of(flow):
    """For each task those that it leads to by queue order or a static event: of a taskflow of one rank without a route."""
    waiting, leads = collections.defaultdict(set), [set() for _ in range(flow.num_tasks)]
    for wait in flow.deps.waits:
        waiting[int(wait["event"])].add(int(wait["task"]))
    for signal in flow.deps.signals:
        leads[signal["task"]] |= waiting[int(signal["event"])]
    for queue in flow.queues:
        for i, task in enumerate(queue):
            leads[task].update(map(int, queue[i + 1:]))
    return leads


def girth(leads):
    """Tasks of a shortest cycle, 0 where there is none: by powers of the matrix."""
    step = np.zeros((len(leads),) * 2, bool)
    for task, after in enumerate(leads):
        step[task, list(after)] = True
    power = step
    for length in range(1, len(leads) + 1):
        if power.diagonal().any():
            return length
        power = power @ step
    return 0


def dense(x, up, down):
    y = hpmoe.swiglu(x @ up)
    return ((y * 2.0) @ down).sum(-1) + y.sum(-1)


def test_the_cycle_is_a_shortest_one_and_each_step_is_there():
    args = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in ((5, 4), (4, 4), (2, 4))]
    flow = hpmoe.tile_partition(dense, rows=2, cols=2).lower(*args)
    found, rng = collections.Counter(), np.random.default_rng(0)
    for _ in range(150):
        order, num_queues = np.arange(flow.num_tasks), int(rng.integers(1, 5))
        for _ in range(rng.integers(0, 12)):  # tasks that change places, or go to another queue
            i, j = rng.integers(flow.num_tasks, size=2)
            order[i], order[j] = order[j], order[i]
        queue_of = rng.integers(num_queues, size=flow.num_tasks)
        queues = [order[queue_of == q] for q in range(num_queues)]
        machine = hpmoe.cpu(num_queues)
        leads = leads_of(rebuild(flow, flow.ops).replace(queues=tuple(queues)))
        length = girth(leads)
        found[length] += 1
        if not length:
            requeue(flow, queues, machine=machine)
            continue
        with pytest.raises(VerifyError) as error:
            requeue(flow, queues, machine=machine)
        steps = listed(error)
        assert len(steps) == length
        for task, _, queue, then, whose, by, _ in steps:
            here = queues[int(queue.removeprefix("worker."))].tolist()
            assert int(task) in here and int(then) in leads[int(task)] and whose is None
            assert by != "queue order" or int(then) in here[here.index(int(task)):]
    assert found[0] and found[2] and sum(found[n] for n in found if n > 2)


def lowered(order, ep, machine=None):
    return stages(rows=2, order=order, machine=machine or hpmoe.cpu(1))["queues"](hpmoe.moe_ffn).lower(
        *avals_of(Layer(ep=ep, E=ep).arguments()), mesh=hpmoe.Mesh(ep))


def late_puts(flow, peer):
    """The queue of one worker with what it sends to a peer behind the first task that waits for received rows."""
    queue = np.sort(flow.queues[0])
    codes = np.array([op.opcode for op in flow.ops])[flow.tasks["op"][queue]]
    late = (codes == "PUT") & (flow.tasks["peer"][queue] == peer)
    first = np.flatnonzero(codes == "GMM")[0]
    return [np.concatenate([queue[:first][~late[:first]], queue[first:first + 1], queue[late], queue[first + 1:]])]


def test_across_ranks_that_do_all_alike():
    flow = lowered("ratr", 3)
    with pytest.raises(VerifyError) as error:
        requeue(flow, late_puts(flow, 0))
    (put, _, _, gmm, whose, _, event), (_, _, queue, _, _, by, _) = listed(error)
    assert whose == " of a peer" and event == "!a.0" and (queue, by) == ("worker.0", "queue order")
    assert flow.ops[flow.tasks["op"][int(put)]].opcode == "PUT" and flow.ops[flow.tasks["op"][int(gmm)]].opcode == "GMM"


def test_across_ranks_of_which_one_alone_is_stuck():
    """In the sequential order the first put goes to rank 0, and no other rank waits for it."""
    flow = lowered("sequential", 3)
    with pytest.raises(VerifyError) as error:
        requeue(flow, late_puts(flow, 2))
    steps = listed(error)
    assert len(steps) == 2 and {rank for _, rank, *_ in steps} == {"2"} and steps[0][4] == " of rank 2"


def test_of_a_policy_and_with_two_units():
    def backwards(flow, machine):
        units = flow.units()
        queues = [[] for _ in range(machine.num_queues)]
        queues[0], queues[-1] = np.flatnonzero(units)[::-1], np.flatnonzero(~units)[::-1]
        return queues

    layer = stages(rows=2, machine=SMALL_NPU, policy=backwards)["queues"](hpmoe.moe_ffn)
    with pytest.raises(TransformError, match="policy backwards made no legal schedule: verify: task ") as error:
        layer.lower(*avals_of(Layer().arguments()), mesh=hpmoe.Mesh(2))
    assert {step[2] for step in listed(error)} <= {"aic.0", "aiv.2"}


def test_of_a_cycle_that_no_short_way_closes():
    """Two queues of many tasks, with a cycle at their ends alone."""
    n = 200
    flow = hpmoe.tile_partition(lambda x: (x * 2.0) + 1.0, rows=1).lower(hpmoe.ShapeDtypeStruct((n, 2), "float32"))
    first, second = list(range(n)), list(range(n, 2 * n))
    queues = [[*first[:-2], second[-1], first[-2]], [*second[:-2], second[-2], first[-1]]]
    with pytest.raises(VerifyError) as error:
        requeue(flow, queues, machine=hpmoe.cpu(2))
    steps = listed(error)
    assert {int(step[0]) for step in steps} == {first[-2], second[-2], first[-1], second[-1]}
