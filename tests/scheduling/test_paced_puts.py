"""Puts wait for their turn on the link of the rank that gets their rows, if many ranks have rows of a slot."""

import pytest
from test_terms import NODES, layer

import hpmoe
from hpmoe.tile_ops.params import Paced


def hot(routing="hot", machine=hpmoe.machines.ascend_a3, tokens=8, ep=64, top_k=6):
    return layer(routing, "forward", ep, tokens, 2048, 1024, 1, top_k, machine)


def paces(flow):
    return {op.params.row_ps for op in flow.ops if isinstance(op.params, Paced)}


def test_no_put_begins_before_its_turn():
    """Rows of earlier slots fill whole tiles if a rank has one expert, and no row of a slot is put
    before a link could have moved these; rows that stay on the rank do not wait."""
    full = hot(tokens=64, ep=16)
    line = full.fused()
    flow, (pace,) = line.flow, paces(line.flow)
    (put,) = (i for i, op in enumerate(flow.ops) if isinstance(op.params, Paced))
    assert pace == round(1e6 * 2 * full.o.hidden / hpmoe.machines.ascend_a3.link.rate(full.o.ep))
    tasks, rank = flow.tasks[line.task], line.rank
    to = flow.peer_orders[0, rank, tasks["peer"]]  # of other tasks than puts any rank
    is_long = line.end - line.begin > hpmoe.machines.ascend_a3.sync.task_us + 0.1
    has_rows = (tasks["row"] * flow.tile_rows < full.loads[to]) & is_long
    mine = (tasks["op"] == put) & has_rows & (rank != to)
    assert flow.ops[put].num_peers == full.o.ep
    due = tasks["row"] * flow.tile_rows * pace * 1e-6
    assert mine.sum() > 50 and due[mine].max() > 3
    assert (line.begin[mine] >= due[mine] - 1e-3).all() and (line.begin[mine] < due[mine] + 1e-3).any()


@pytest.mark.parametrize("of", [
    pytest.param(lambda: hot(machine=NODES), id="over nodes"),
    pytest.param(lambda: hot(machine=hpmoe.cpu(num_workers=4), ep=4, top_k=2), id="threads of a host"),
    pytest.param(lambda: hot(tokens=512, ep=16), id="sources fill slots")])
def test_puts_are_not_paced(of):
    assert paces(of().fused_flow()) == {0}


def test_rows_that_no_task_multiplies_are_not_paced():
    def dispatched(x, ids):
        return hpmoe.dispatch(x, ids, num_local_experts=1)[0]
    puts = hpmoe.overlap_comm(hpmoe.tile_partition(dispatched, rows=4))
    flow = hpmoe.assign_queues(puts, machine=hpmoe.machines.ascend_a3).lower(
        hpmoe.ShapeDtypeStruct((6, 16), "float32"), hpmoe.ShapeDtypeStruct((6, 2), "int32"), mesh=hpmoe.Mesh(16))
    assert paces(flow) == {0}


def test_a_taskflow_shows_its_pace():
    full = hot()
    (pace,) = paces(full.fused_flow())
    assert f"  turns: rows of a are put at {pace / 1e3:.3g} ns each\n" in str(full.fused_flow())
    assert paces(full.fused_flow("round_robin")) == {0} and "turns:" not in str(full.fused_flow("round_robin"))
