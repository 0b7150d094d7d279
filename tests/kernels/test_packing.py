"""A packed image means exactly what the taskflow's tables say."""

import numpy as np
import pytest
from mutants import with_deps

import hpmoe
from hpmoe.ir import taskflow as tf
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.packing import pack
from hpmoe.kernels.unpacking import read_table, read_tasks
from hpmoe.tile_ops.domains import AllRows
from hpmoe.transforms.assign_queues import POLICIES

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 40, 12, 8, 8, 2


def make_flow(ep=2, direction="forward", signal=None, policy="critical_path", tokens=TOKENS):
    local = EXPERTS // ep
    args = [hpmoe.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
        ((tokens, HIDDEN), "float32"), ((tokens, TOP_K), "int32"), ((tokens, TOP_K), "float32"),
        ((local, HIDDEN, 2 * INNER), "float32"), ((local, INNER, HIDDEN), "float32"))]
    f = hpmoe.tile_partition(hpmoe.moe_ffn, rows=8, cols=8)
    f = f if signal is None else hpmoe.overlap_comm(f, signal=signal)
    machine = hpmoe.machines.ascend_a3.replace(num_aic=3, num_aiv=5)
    return hpmoe.assign_queues(f, machine=machine, policy=policy).lower(*args, mesh=hpmoe.Mesh(ep), direction=direction)


def read_events(header, sections):
    """extent, index, mult and route of every event, as a protocol.EVENT_RUN array of runs of one."""
    runs = sections["event_runs"]
    lengths = np.diff(np.append(runs["first"], header["num_events"]))
    out = np.repeat(runs, lengths)
    out["first"] = np.arange(len(out))
    out["index"] += np.arange(len(out)) - np.repeat(runs["first"], lengths)
    return out


def assert_survives_packing(flow):
    """Tasks, waits, signals and events read from the image are those of the flow; returns the image and its header."""
    image = pack(flow)
    header, sections = unpack_image(image)
    assert [(n, out) for n, out in sections["ops"][["num_operands", "num_outputs"]].tolist()] == [
        (len(op.operands), len(op.outputs)) for op in flow.ops]
    order = np.concatenate(flow.queues)
    tasks, _ = read_tasks(header, sections)
    np.testing.assert_array_equal(tasks, flow.tasks[order])
    place = np.argsort(order)
    for name, dtype in (("waits", tf.WAIT), ("signals", tf.SIGNAL)):
        wanted = getattr(flow.deps, name).copy()
        wanted["task"] = place[wanted["task"]]
        got = read_table(header, sections, name, dtype)
        np.testing.assert_array_equal(got, wanted[np.argsort(wanted["task"], kind="stable")])
    events = read_events(header, sections)
    for column in ("extent", "index", "mult", "route"):
        np.testing.assert_array_equal(events[column], flow.deps.events[column])
    return image, header


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("signal", [None, "tile", "expert", "peer"])
def test_flows_of_the_chain_survive_packing(signal, direction, policy):
    assert_survives_packing(make_flow(2, direction, signal, policy))


def test_regular_flows_need_few_templates():
    """Twice the tokens need more words, not more templates."""
    for direction in ("forward", "backward"):
        (small, few), (large, still_few) = (assert_survives_packing(make_flow(4, direction, "tile", tokens=t))
                                            for t in (200, 400))
        assert still_few["num_templates"] <= few["num_templates"] + 2
        assert len(large) - len(small) < 4 * (still_few["num_tasks"] - few["num_tasks"]) + 512


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_no_pattern_survive_packing(seed):
    flow, rng = make_flow(2, "backward", "tile"), np.random.default_rng(seed)
    deps = flow.deps
    waits = rng.permutation(np.concatenate([deps.waits, deps.waits[:9]]))  # some twice, in no order
    waits["event"][::3] = rng.integers(len(deps.events), size=len(waits[::3]))
    signals = rng.permutation(deps.signals)[::2]
    signals["amount"][::5] ^= 1
    signals["event"][::4] = rng.integers(len(deps.events), size=len(signals[::4]))
    events = rng.permutation(deps.events)
    queues = tuple(np.array_split(rng.permutation(flow.num_tasks), 8))
    assert_survives_packing(with_deps(flow.replace(queues=queues), waits=waits, signals=signals, events=events))


def test_no_tasks_and_no_events():
    flow = make_flow(tokens=0)
    assert_survives_packing(flow)
    assert_survives_packing(flow.replace(deps=tf.Dependencies()))


def test_what_cannot_be_packed_is_refused():
    flow = make_flow()
    waits = flow.deps.waits.copy()
    waits["event"][0] = len(flow.deps.events)
    with pytest.raises(ValueError, match="the tables of moe_ffn name a task, an event or a tile that does not exist"):
        pack(with_deps(flow, waits=waits))


def test_tables_that_a_word_cannot_tell_apart_are_refused():
    flow = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=1), machine=hpmoe.cpu(1)).lower(
        hpmoe.ShapeDtypeStruct((2**17, 2), "float32"))
    events, signals = np.zeros(flow.num_tasks, tf.EVENT), np.zeros(flow.num_tasks, tf.SIGNAL)
    signals["task"] = events["index"] = np.arange(flow.num_tasks)
    signals["event"] = np.random.default_rng(0).permutation(flow.num_tasks)
    with pytest.raises(hpmoe.TransformError,
                       match="pack: swiglu is too large: its 131,072 tasks have more waits and signals than"):
        pack(with_deps(flow, events=events, signals=signals))


def test_operations_without_blocks_are_refused():
    staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=4), machine=hpmoe.cpu(1))
    flow = staged.lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))
    domain = AllRows(2, blocks=0, height=8)
    with pytest.raises(ValueError, match="pack: the tables of swiglu name a task, an event or a tile that does not exist"):
        pack(flow.replace(ops=(flow.ops[0].replace(domain=domain),)))
