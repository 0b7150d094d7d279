"""Puts wait for their turn on the link of the rank that gets their rows, where many ranks have rows of a slot."""

from types import SimpleNamespace

import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.rules import without
from hpmoe.tile_ops.params import Paced


def layer(routing="hot", machine=hpmoe.ascend_a3, direction="forward", tokens=8, ep=64, top_k=6):
    o = SimpleNamespace(ep=ep, tokens=tokens, hidden=2048, intermediate=1024, experts=ep, top_k=top_k, dtype="bfloat16")
    return Layer(o, direction, machine, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts), tuned=True)


def paces(flow):
    return {op.params.row_ps for op in flow.ops if isinstance(op.params, Paced)}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_come_slot_by_slot(direction):
    hot = layer(direction=direction)
    with without("paced_puts"):
        at_once = hot.outline(hot.fused_flow()).span
    assert hot.outline(hot.fused_flow()).span < at_once


def test_no_put_begins_before_its_turn():
    """With one expert a rank, the rows of its slots before are those before it in whole tiles, and none of a slot's are put
    before a link could have moved these; what stays on the rank waits for nobody."""
    hot = layer(tokens=32, ep=16)
    line = hot.fused()
    flow, (pace,) = line.flow, paces(line.flow)
    (put,) = (i for i, op in enumerate(flow.ops) if isinstance(op.params, Paced))
    assert pace == round(1e6 * 2 * hot.o.hidden / hpmoe.ascend_a3.link.rate(hot.o.ep))
    tasks, rank = flow.tasks[line.task], line.rank
    to = flow.peer_orders[0, rank, tasks["peer"]]  # of other tasks than puts somebody
    has_rows = (tasks["row"] * flow.tile_rows < hot.loads[to]) & (line.end - line.begin > hpmoe.ascend_a3.sync.task_us + 0.1)
    mine = (tasks["op"] == put) & has_rows & (rank != to)
    assert flow.ops[put].num_peers == hot.o.ep
    due = tasks["row"] * flow.tile_rows * pace * 1e-6
    assert mine.sum() > 50 and due[mine].max() > 3
    assert (line.begin[mine] >= due[mine] - 1e-3).all() and (line.begin[mine] < due[mine] + 1e-3).any()


NODES, HOST = hpmoe.ascend_a3.replace({"link.node_size": 8}), hpmoe.cpu(num_workers=4)


@pytest.mark.parametrize("of", [
    pytest.param(lambda: layer(machine=NODES), id="over nodes"),
    pytest.param(lambda: layer(machine=HOST, ep=4, top_k=2), id="threads of a host"),
    pytest.param(lambda: layer("uniform", tokens=256, ep=2, top_k=1), id="one source fills a slot"),
    pytest.param(lambda: layer(tokens=512, ep=16), id="slots are spread")])
def test_puts_are_not_paced(of):
    assert paces(of().fused_flow()) == {0}


def test_rows_that_nobody_multiplies_are_not_paced():
    def dispatched(x, ids):
        return hpmoe.dispatch(x, ids, num_local_experts=1)[0]
    puts = hpmoe.overlap_comm(hpmoe.tile_partition(dispatched, rows=4))
    flow = hpmoe.assign_queues(puts, machine=hpmoe.ascend_a3).lower(
        hpmoe.Aval((6, 16), "float32"), hpmoe.Aval((6, 2), "int32"), mesh=hpmoe.Mesh(16))
    assert paces(flow) == {0}


def test_a_pace_is_no_policy():
    puts = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=4))
    avals = [hpmoe.Aval(s, d) for s, d in (((6, 16), "float32"), ((6, 2), "int32"), ((6, 2), "float32"),
                                           ((1, 16, 16), "float32"), ((1, 8, 16), "float32"))]
    flows = {policy: hpmoe.assign_queues(puts, machine=hpmoe.ascend_a3, policy=policy).lower(
        *avals, mesh=hpmoe.Mesh(16)) for policy in ("critical_path", "round_robin")}
    (pace,) = paces(flows["critical_path"])
    assert paces(flows["round_robin"]) == {0} != {pace}
    assert f"  turns: rows of a are put at {pace / 1e3:.3g} ns each\n" in str(flows["critical_path"])
    assert "turns:" not in str(flows["round_robin"])
