"""A function that computes its ids, wherever it is called or looked at: graphs, texts, simulation, memory, tuning."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, bitwise_equal, fused, run_spmd, stages, tensors
from mutants import with_deps
from router_layers import LAYERS, arguments, expected, num_layers, positions, routed_ffn, side_by_side, two_layers

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, save_for_backward, spmd
from hpmoe.ir.stages import Stages

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

LAYER = LAYERS["two ranks"]


def loss_of(f):
    layer = spmd(fused()(f), Mesh(2))

    def loss(*args):
        return (layer(*args) ** 2).mean()
    return loss


def numbers(value, grads):
    return [a.asnumpy() for a in (value, *grads)]


def test_in_a_compiled_graph():
    loss, at = loss_of(two_layers), positions(two_layers)
    forward, eager = ms.jit(loss), ms.value_and_grad(loss, at)
    gradients = ms.jit(eager), ms.value_and_grad(forward, at)
    for seed in range(3):
        args = tensors(arguments(LAYER, num_layers(two_layers), seed))
        want = numbers(*eager(*args))
        assert bitwise_equal([forward(*args).asnumpy()], want[:1])
        for g in gradients:
            assert bitwise_equal(numbers(*g(*args)), want)


def test_in_graph_mode(graph_mode):
    args = tensors(arguments(LAYER))
    loss = loss_of(save_for_backward(routed_ffn, policy="dispatched_rows"))
    got = numbers(*ms.value_and_grad(loss, positions(routed_ffn))(*args))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert bitwise_equal(got, numbers(*ms.value_and_grad(loss, positions(routed_ffn))(*args)))


def avals(layer, f=routed_ffn):
    return [ShapeDtypeStruct(a.shape, "float32") for a in arguments(layer, num_layers(f))]


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_texts(stage, golden):
    staged = spmd(stages(rows=4, cols=4, machine=hpmoe.cpu(1))[stage](routed_ffn), Mesh(2))
    text = str(staged.lower(*avals(Layer(ep=2, T=3)))) + "\n"
    assert text == golden(f"router_inside.{stage}.txt", text), "if meant so, run pytest --update-golden"


@pytest.mark.parametrize("i, stage", [*enumerate(stages())])
def test_lower(i, stage):
    f, count = [(routed_ffn, 2), (side_by_side, 2), (two_layers, 3)][i % 3]
    staged = spmd(stages()[stage](f), Mesh(2))
    lowered = staged.lower(*avals(LAYER, f))
    assert isinstance(lowered, Stages) and len(lowered) == count
    assert lowered.level == lowered[-1].level == stages()[stage](f).level if stage != "plain" else "program"
    assert not isinstance(staged.lower(*avals(LAYER, f), direction="backward"), Stages)


def ranks(args):
    return [[a[r] for a in args] for r in range(len(args[0]))]


def test_interpreted_and_verified():
    args = arguments(LAYER, 2)
    want = expected(two_layers, LAYER)[0]
    for stage in ("tiles", "overlap", "queues"):
        flows = spmd(stages()[stage](two_layers), Mesh(2)).lower(*avals(LAYER, two_layers))
        hpmoe.verify(flows)
        kept = []
        got = hpmoe.interpret(flows, ranks(args), seed=1, keep=kept)
        np.testing.assert_allclose(np.stack([out for out, in got]), want, atol=1e-4)
        assert len(kept) == 2 * len(flows)
    programs = spmd(two_layers, Mesh(2)).lower(*avals(LAYER, two_layers))
    (first,), (second,) = hpmoe.interpret(programs, ranks(args), dtype="float64")
    np.testing.assert_allclose(np.stack([first, second]), want, rtol=1e-12)


def test_a_fault_in_a_later_stage_is_found():
    flows = spmd(stages()["queues"](routed_ffn), Mesh(2)).lower(*avals(LAYER))
    broken = Stages(flows.program, (flows[0], with_deps(flows[1], waits=flows[1].deps.waits[:0])))
    with pytest.raises(hpmoe.VerifyError, match=r"waits\[0\] is missing"):
        hpmoe.verify(broken)


def test_simulated():
    staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm,
                         lambda f: hpmoe.assign_queues(f, machine=hpmoe.machines.ascend_a3))(two_layers)
    flows = spmd(staged, Mesh(2)).lower(*avals(LAYER, two_layers))
    lines = hpmoe.simulate(flows, routing=1.25, num_tokens=[7, 3])
    assert [line.flow.name for line in lines] == [f"two_layers_stage_{i}" for i in range(3)]
    assert all(line.span > 0 for line in lines)
    alone = hpmoe.simulate(flows[2], routing=1.25, num_tokens=[7, 3])
    assert alone.span == lines[2].span


def test_tuned():
    """Every launch has its own plan."""
    tuned = hpmoe.fuse_persistent(hpmoe.autotune(routed_ffn, budget=3))
    kernels = spmd(tuned, Mesh(2)).lower(*avals(LAYER))
    assert len(kernels) > 1 and all(kernel.flow.provenance[-1].startswith("assign_queues(cpu") for kernel in kernels)
    run_spmd(tuned, 2, arguments(LAYER), [LAYER.cotangent()], positions=(0,))


def test_memory_counts_what_stages_hand_on():
    """The largest number of temporaries at a time, and the arrays between stages, which are held meanwhile."""
    staged = spmd(fused()(two_layers), Mesh(2))
    report = staged.memory(*avals(LAYER, two_layers))
    flows = [kernel.flow for kernel in staged.lower(*avals(LAYER, two_layers))]
    given = sum(4 * a.size for a in arguments(LAYER, 2))
    assert (report.inference.inputs, report.inference.outputs, report.inference.saved) == (given, 2 * 7 * 4 * 4, 0)
    handed_on = sum(2 * flow.buffers[b].num_rows * flow.buffers[b].row_bytes for flow in flows[:-1] for b in flow.outputs)
    assert report.inference.temporaries > handed_on
    assert report.forward.saved == report.backward.saved > 0
    assert str(staged.memory(*tensors(arguments(LAYER, 2)))) == str(report)
    assert str(report).startswith("# two_layers | tile_partition")


def test_new_ids_need_no_new_plans():
    staged = spmd(fused()(routed_ffn), Mesh(2))
    for seed in range(4):
        staged(*tensors(arguments(LAYER, seed=seed)))
    info = staged.cache_info()
    assert info.currsize <= 1 + 2 and info.hits + info.misses == 8
