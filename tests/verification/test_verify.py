"""The verifier accepts what the transforms make and refuses, by name, tables and operations that are edited by hand."""

import dataclasses

import numpy as np
import pytest
from helpers import queued
from mutants import changed, replaced, with_deps

import hpmoe
from hpmoe import VerifyError
from hpmoe.rewriting import requeue
from hpmoe.routing.capacity import Capacity
from hpmoe.tiling.rebuild import rebuild


def planned(**options):
    return queued("backward", machine=hpmoe.cpu(2), **options)


def tables(flow):
    return {name: getattr(flow.deps, name) for name in ("events", "waits", "signals", "blocks")}


EDITS = {
    "waits that the queues imply": lambda deps: tables(rebuild(planned(), planned().ops)),
    "waits in another order": lambda deps: {"waits": deps.waits[::-1].copy()},
    "signals in another order": lambda deps: {"signals": deps.signals[::-1].copy()},
    "a wait twice": lambda deps: {"waits": np.repeat(deps.waits, 2)},
    "a wait less": lambda deps: {"waits": deps.waits[1:]},
    "no waits": lambda deps: {"waits": deps.waits[:0]},
    "a signal less": lambda deps: {"signals": deps.signals[:-1]},
    "another threshold": lambda deps: {"events": changed(deps.events, 0, mult=deps.events["mult"][0] + 1)},
    "another block": lambda deps: {"events": changed(deps.events, len(deps.events) - 1, block=0)},
    "an event without a wait": lambda deps: {"events": np.concatenate([deps.events, deps.events[-1:]])},
    "a wait for an event past the last": lambda deps: {"waits": changed(deps.waits, 0, event=len(deps.events))},
    "blocks of other names": lambda deps: {"blocks": tuple(b.replace(name="x") for b in deps.blocks)},
    "tables of another policy": lambda deps: tables(planned(policy="stage_order")),
}


@pytest.mark.parametrize("edit", EDITS)
def test_tables_edited_by_hand_are_refused_by_name(edit):
    flow = planned()
    hpmoe.verify(flow)
    found = r"(?s)^verify: (events|waits|signals|blocks)\[\d+\] is .*; the operations and queues need .*"
    with pytest.raises(VerifyError, match=found + "Do not edit tables: use hpmoe.rewriting.rebuild or .*requeue"):
        hpmoe.verify(with_deps(flow, **EDITS[edit](flow.deps)))


def test_queues_edited_by_hand_are_refused_by_name():
    """Other queues imply other waits; requeue finds these."""
    flow = planned()
    others = np.arange(flow.num_tasks), flow.queues[1][:0]
    with pytest.raises(VerifyError, match="Do not edit tables: use hpmoe.rewriting.rebuild or hpmoe.rewriting.requeue"):
        hpmoe.verify(flow.replace(queues=others))
    hpmoe.verify(requeue(flow, others))


def test_other_operations_need_other_tables():
    flow = queued()
    with pytest.raises(VerifyError, match=r"(?s)ops\[0\] is not what the tasks were made for.*made for .*now "):
        hpmoe.verify(flow.replace(ops=(flow.ops[0].replace(num_peers=7), *flow.ops[1:])))
    with pytest.raises(VerifyError, match="tile_rows is 5, the tasks were made for 2; recreate them"):
        hpmoe.verify(flow.replace(tile_rows=5))
    hpmoe.verify(flow.replace(ops=replaced(flow.ops, 0, label="send")))
    with pytest.raises(VerifyError, match=r"ops\[0\] is not what the tasks were made for"):
        hpmoe.verify(flow.replace(ops=replaced(flow.ops, 0, params=(7,))))


@pytest.mark.parametrize("junk", ["mul", None, 2.5, (), ("x",)])
@pytest.mark.parametrize("name", ["primitive", "domain", "cols", "params", "operands"])
def test_what_is_of_another_type_is_refused(name, junk):
    flow = queued("backward")
    i = next(i for i, op in enumerate(flow.ops) if op.opcode == "WGRAD")
    if not isinstance(junk, type(getattr(flow.ops[i], name))) or junk == ("x",):
        with pytest.raises(VerifyError, match=rf"ops\[{i}\] is not what the tasks were made for"):
            hpmoe.verify(flow.replace(ops=(*flow.ops[:i], flow.ops[i].replace(**{name: junk}), *flow.ops[i + 1:])))


def test_an_expert_has_no_more_slots_than_its_capacity_fills():
    plan = dataclasses.replace(queued().routes[0], tile_rows=1)
    tight = dataclasses.replace(plan, kind=dataclasses.replace(plan.kind, capacity=Capacity(0.5, "position")))
    assert (plan.num_tokens, plan.ep_size, plan.num_local_experts, plan.slots_of(1)) == (4, 2, 2, 8)
    assert (tight.slots_of(1), tight.num_slots) == (2, 4)  # ceil(4 tokens * 2 / 4 experts * 0.5) = 1 from each rank


def test_error_shows_the_task_and_its_neighbours():
    flow = queued()
    task = int(flow.deps.waits["task"][0])
    with pytest.raises(VerifyError) as raised:
        hpmoe.verify(with_deps(flow, waits=flow.deps.waits[1:]))
    lines = str(raised.value).splitlines()
    assert f"need task={task}, " in lines[0] and "Do not edit tables" in lines[0]
    assert [line[0] for line in lines[1:]].count(">") == 1 and 2 <= len(lines) <= 6
    assert next(line for line in lines if line.startswith(">")).split()[1] == f"t{task}"
