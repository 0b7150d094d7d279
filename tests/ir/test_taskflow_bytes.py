"""A Taskflow as bytes is the same Taskflow again, and bytes of anything else are none."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import Layer, stages

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.ir.plain import Read, Written
from hpmoe.ir.taskflow import Dependencies, Taskflow
from hpmoe.ir.taskflow_bytes import ARRAYS, read_taskflow, taskflow_bytes
from hpmoe.kernels.packing import pack

LAYER = Layer(ep=4, T=6, E=8)
NODES = Mesh(4, nodes=2)
FUNCTIONS = {
    "plain": hpmoe.moe_ffn, "once to a rank": hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"),
    "once to a node": hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical"), "guarded": hpmoe.guard_values(hpmoe.moe_ffn,
                                                                                                           fill="mean"),
    "copies": hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1, 1, 1, 1, 1, 1, 1]),
    "in bytes": hpmoe.quantize_rows(hpmoe.moe_ffn), "on an NPU": hpmoe.moe_ffn,
}


def flow_of(name, direction="forward", stage="queues"):
    machine = hpmoe.machines.ascend_a3 if name == "on an NPU" else None
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in LAYER.arguments()]
    return stages(machine=machine)[stage](FUNCTIONS[name]).lower(*avals, mesh=NODES, direction=direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_read_is_what_was_written(name, direction):
    flow = flow_of(name, direction)
    again = read_taskflow(taskflow_bytes(flow))
    hpmoe.verify(again)
    assert str(again) == str(flow) and again.machine == flow.machine
    assert [again.ops, again.routes, again.deps.blocks] == [flow.ops, flow.routes, flow.deps.blocks]
    pairs = [(getattr(again.deps, name), getattr(flow.deps, name)) for name in ("events", "waits", "signals")]
    for mine, theirs in (*pairs, (again.peer_orders, flow.peer_orders)):
        assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()
    assert pack(again).tobytes() == pack(flow).tobytes()


def test_tiles_without_queues_have_the_origin_of_their_tables():
    flow = flow_of("plain", stage="overlap")
    again = read_taskflow(taskflow_bytes(flow))
    assert not again.queues and repr(again.deps.origin) == repr(flow.deps.origin) and str(again) == str(flow)
    with pytest.raises(hpmoe.VerifyError, match="ops is 5 long, the tasks were made for 6 long"):
        hpmoe.verify(again.replace(ops=again.ops[:-1]))


def with_head(change):
    data = taskflow_bytes(flow_of("plain"))
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    change(head)
    return json.dumps(head).encode() + b"\n" + rest


BROKEN = {
    "nothing": lambda: b"", "no JSON": lambda: b"\x80\x04\n", "a list": lambda: b"[]\n",
    "cut off": lambda: taskflow_bytes(flow_of("plain"))[:-3], "too long": lambda: taskflow_bytes(flow_of("plain")) + b"\0",
    "a negative shape": lambda: with_head(lambda h: h["shapes"].update(waits=[-1])),
    "an unknown array": lambda: with_head(lambda h: h["shapes"].update(names=[1])),
    "queues of other lengths": lambda: with_head(lambda h: h["queues"].append(4)),
    "a number for a name": lambda: with_head(lambda h: h["small"].update(name=3)),
    "a name for a number": lambda: with_head(lambda h: h["small"].update(ep_size="4")),
    "true for a number": lambda: with_head(lambda h: h["small"].update(ep_size=True)),
    "a class of another kind": lambda: with_head(lambda h: h["small"]["ops"].__setitem__(0, ["Popen", "true"])),
    "an unknown operation": lambda: with_head(lambda h: h["small"]["ops"][0].__setitem__(1, "SYSTEM")),
    "a field too few": lambda: with_head(lambda h: h["small"]["buffers"][0].pop()),
    "no machine": lambda: with_head(lambda h: h["small"].pop("machine")),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bytes_of_anything_else_are_refused(what):
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_taskflow(BROKEN[what]())


def test_only_plain_data_is_written():
    for value in (print, object(), np.zeros(3), {1, 2}):
        with pytest.raises(TypeError, match="is no plain data"):
            Written()(value)
    assert Written()((np.int64(3), np.float32(0.5), True, None, "a")) == [3, 0.5, True, None, "a"]


def test_machines_are_read_with_all_that_is_known_of_them():
    again = Read()(hpmoe.Machine, json.loads(json.dumps(Written()(hpmoe.machines.ascend_a3))))
    assert again == hpmoe.machines.ascend_a3 and again.constants == hpmoe.machines.ascend_a3.constants


def test_every_field_is_kept():
    """A field that Taskflow gets is kept, too, or this says so."""
    assert {f.name for cls in (Taskflow, Dependencies) for f in dataclasses.fields(cls)} == {
        *ARRAYS, "name", "ep_size", "provenance", "tile_rows", "buffers", "ops", "routes", "inputs", "outputs", "deps",
        "blocks", "origin", "machine", "direction"}
