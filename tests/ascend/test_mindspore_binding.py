"""fuse_persistent(target="ascend") but for CANN: MindSpore's operator, streams, heap and status, with the emulator as
device."""

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import npu, own_targets
from binding_helpers import BoundRun, targets, wait_for_build
from helpers import Layer

import hpmoe
from hpmoe.kernels.ascendc import heap as ascend_heap, layout as ascend_layout, target as ascend_target
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.protocol import Code, Opcode
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.support.mindspore_private import wait_for_calls
from hpmoe.tiling.shared_memory import remote_memories

pytestmark = pytest.mark.slow  # compiling against MindSpore's headers takes half a minute
SMALL = Layer(ep=1, T=7, H=32, I=16, E=2, K=2)


@pytest.fixture(scope="module", autouse=True)
def operator(binding_build):
    wait_for_build(binding_build)
    with own_targets():
        yield


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=4, K=2), {}),
    (Layer(ep=2, T=20, H=48, I=32, E=8, K=3), {"blocks": 2}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, num_tokens=(9, 0)), {"signal": "peer"}),
    (Layer(ep=3, T=7, H=16, I=16, E=6, K=1, routing="one expert"), {}),
], ids=str)
def test_every_rank_gets_what_numpy_computes(layer, options):
    """Forward and backward of a rank are in its stream before another rank begins: nothing waits between them."""
    BoundRun(layer, **options).assert_close_to_float64()


def test_the_same_bits_in_every_launch():
    """Counters and routing tables go on from launch to launch; more launches than there are records of them."""
    run = BoundRun(SMALL)
    assert len({run.assert_close_to_float64() for _ in range(5)}) == 1


def test_main_gradients_grow_in_place():
    shapes = (2, 32, 32), (2, 16, 32)
    mains = [ms.Tensor(np.ones(s), ms.float32) for s in shapes]
    f = hpmoe.accumulate_grads(hpmoe.moe_ffn, into=dict(zip(("gate_up_weight", "down_weight"), mains, strict=True)))
    run = BoundRun(SMALL, f=f)
    want = run.expected()
    for times in (1, 2):
        run.gradients(0)
        for main, grad in zip(mains, want[3:], strict=True):
            np.testing.assert_allclose(main.asnumpy() - 1, times * grad[0], atol=2e-2 * times * np.abs(grad).max())


def test_a_rank_runs_when_all_have_come():
    layer = Layer(ep=2, T=8, H=16, I=16, E=2, K=1, num_tokens=(7, 8))
    run = BoundRun(layer)
    first = run.forward(0)
    assert not first.astype(ms.float32).asnumpy().any()  # zeros, as it was made: nothing has run
    with pytest.raises(LaunchError, match="rank 0 waits for a launch that other ranks have not reached"):
        run.synchronize()
    run = BoundRun(layer)
    got = [run.forward(rank) for rank in (0, 1)]
    run.synchronize()
    np.testing.assert_allclose(got[0].astype(ms.float32).asnumpy(), run.expected()[0][0], rtol=2e-2, atol=2.0)


def test_a_heap_opens_once_for_a_layer_and_its_gradient():
    run = BoundRun(SMALL, heap_bytes=0)
    heap, sizes = run.heaps[0], []
    for _ in range(3):
        run.assert_close_to_float64()
        sizes.append(heap.size)
    assert sizes == [n * ascend_heap.ROUNDING for n in (3, 3, 3)]  # a layer's forward and backward
    hpmoe.ranks.synchronize()


def test_a_heap_is_closed_before_the_next_one_opens():
    events = []

    class Device:
        def __del__(self):
            events.append("closed")

    class Recorder:
        make_unique_id = staticmethod(lambda: b"")

        @staticmethod
        def open_device(rank, num_ranks, unique_id, size):
            events.append(size // ascend_heap.ROUNDING)
            return Device()

    class Kernel:
        symmetric_bytes = ascend_heap.ROUNDING

        def bind(self, device, rank):
            return device

        def check(self, kernel, wait):
            pass

    heap, kernels = ascend_heap.SymmetricHeap(Recorder, ascend_heap.WorldRanks(0, 1)), [Kernel() for _ in range(4)]
    for kernel in kernels * 3:
        heap.kernel_of(kernel)
    assert events == [3, "closed", 3, "closed", 4]


# In compiled graphs.


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_in_a_graph_the_same_bits(mode):
    run = BoundRun(SMALL)
    (x, *rest), ids = run.local(0)
    f, cotangent = run.ranks[0], run.cotangent[0]
    want = [run.forward(0), *run.gradients(0)]

    class Net(ms.nn.Cell):
        def construct(self, x, ids, weights, up, down):
            return f(x, ids, weights, up, down)

    def jitted(x, ids, weights, up, down):
        return f(x, ids, weights, up, down)

    ms.set_context(mode=mode)
    try:
        net = Net() if mode == ms.GRAPH_MODE else ms.jit(jitted)
        take = ms.ops.GradOperation(get_all=True, sens_param=True)
        grad = take(net)
        for _ in range(2):
            got = [net(x, ids, *rest), *(g for i, g in enumerate(grad(x, ids, *rest, cotangent)) if i != 1)]
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a.astype(ms.float32).asnumpy(), b.astype(ms.float32).asnumpy())
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_a_failed_launch_in_a_graph_is_said_and_the_next_works():
    run = BoundRun(SMALL)
    (x, *rest), ids = run.local(0)
    bad = ms.Tensor(np.full(ids.shape, 9), ms.int32)

    @ms.jit
    def jitted(x, ids, weights, up, down):
        return run.ranks[0](x, ids, weights, up, down)

    jitted(x, bad, *rest)
    with pytest.raises(RuntimeError, match=r"an earlier launch of this kernel failed; hpmoe.ranks.synchronize\(\) says why"):
        jitted(x, ids, *rest)
    with pytest.raises(LaunchError, match="names expert 9; there are 2"):
        run.synchronize()
    got = jitted(x, ids, *rest)
    np.testing.assert_array_equal(got.astype(ms.float32).asnumpy(), run.forward(0).astype(ms.float32).asnumpy())


def failing(num_ranks=1):
    run = BoundRun(Layer(ep=num_ranks, T=7, H=32, I=16, E=2 * num_ranks, K=2))
    return run, run.ids.asnumpy().copy()


def test_a_bad_expert_id_is_raised_by_the_next_call_only():
    run, ids = failing()
    bad = ids.copy()
    bad[0, 3, 0] = 9
    run.ids = ms.Tensor(bad)
    run.forward(0)
    with pytest.raises(LaunchError, match="topk_ids of rank 0 names expert 9; there are 2") as error:
        run.forward(0)
    assert error.value.status["code"] == Code.INDEX_OUT_OF_RANGE
    run.ids = ms.Tensor(ids)
    run.assert_close_to_float64()


def test_a_failure_reaches_every_rank():
    run, ids = failing(2)
    bad = ids.copy()
    bad[1, 0, 0] = -2
    run.ids = ms.Tensor(bad)
    for rank in (0, 1):
        run.forward(rank)
    with pytest.raises(LaunchError, match="moe_ffn: rank 0 gave up because another rank failed, which says why"):
        run.forward(0)
    with pytest.raises(LaunchError, match="topk_ids of rank 1 names expert -2"):
        run.synchronize()
    run.ids = ms.Tensor(ids)
    run.assert_close_to_float64()


@pytest.mark.parametrize("factor, experts, plans, fault", [
    (1.4, (2, 4), 1, "rank 1 would receive 24 rows through route 0, and can hold 23"),
    (2.5, (4, 5), 3, "rank 2 would receive 48 rows through route 0, and can hold 40")])
def test_rows_over_capacity_are_one_error_on_every_rank(factor, experts, plans, fault):
    run = BoundRun(Layer(ep=3, T=8, H=32, I=16, E=6, K=2), f=hpmoe.limit_rows(hpmoe.moe_ffn, rank_capacity_factor=factor))
    ids, bad = run.ids, ms.Tensor(np.full(run.ids.shape, experts), ms.int32)

    def faults(launch):
        for rank in range(3):
            launch(rank)
        wait_for_calls()
        for executable, kernel in [pair for heap in run.heaps for pair in heap.kernels()]:
            try:
                executable.check(kernel, wait=True)
            except LaunchError as error:
                yield str(error)

    reason = f"{fault}. Give limit_rows a larger rank_capacity_factor, or plan for these ids."
    for _ in range(2):
        run.ids = bad
        assert list(faults(run.forward)) == [f"moe_ffn: {reason}"] * 3
        run.ids = ids
        run.assert_close_to_float64()
    run.ids = bad
    assert sorted(faults(run.gradients)) == [f"moe_ffn: {reason}"] * 3 + [f"moe_ffn_vjp: {reason}"] * 3
    assert {len(executable.flows) for heap in run.heaps for executable, _ in heap.kernels()} == {plans}


def test_a_lost_signal_names_task_and_event():
    run, _ = failing()
    (x, *rest), ids = run.local(0)
    kernel = run.ranks[0].lower(x, ids, *rest)
    image = kernel.image.copy()
    _, sections = unpack_image(image)
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    sections["templates"]["num_signals"][(opcodes == Opcode.GMM) & (sections["templates"]["num_signals"] > 0)] = 0
    broken = kernel.replace(image=image)
    broken.run([[x, ids, *rest]])
    with pytest.raises(LaunchError, match=r"waited too long: event \d+ stands at 0, its threshold is \d+") as error:
        broken.run([[x, ids, *rest]])
    assert "SWIGLU of op 2" in str(error.value) and "is swiglu[" in str(error.value)


def test_what_a_device_cannot_do_is_said():
    (name,), _ = targets(1)
    staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm)(hpmoe.moe_ffn)
    fused = hpmoe.fuse_persistent(hpmoe.assign_queues(staged, machine=npu()), target=name)
    run = BoundRun(SMALL)
    (x, *rest), ids = run.local(0)
    with pytest.raises(ArgumentError, match="moe_ffn.interpret: target is a device, which is one rank of several"):
        fused.interpret(x, ids, *rest)
    with pytest.raises(ArgumentError, match="the kernel is bound for a device, and runs on this rank's tensors in a call"):
        fused.lower(x, ids, *rest).run([[]])
    with pytest.raises(ArgumentError, match="num_tokens is \\[3\\]; it must be an int of at least 0"):
        run.ranks[0](x, ids, *rest, num_tokens=[3])


def test_ranks_are_those_of_mindspore():
    assert ascend_heap.world_ranks(1) == ascend_heap.WorldRanks(0, 1)
    with pytest.raises(ArgumentError, match="MindSpore's world is not initialised; it must be one process for each rank"):
        ascend_heap.world_ranks(2)


def test_without_cann_everything_missing_is_listed(monkeypatch):
    monkeypatch.setattr(ascend_target, "DEVICES", ascend_target.DEVICES / "nothing")
    staged = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn)), machine=npu())
    with pytest.raises(ArgumentError, match='fuse_persistent: target is .ascend.; it must be a target that this machine '
                       r'can run. Missing here:\n(.*\n)*  no NPU: no /dev/nothing/davinci\* device'):
        hpmoe.fuse_persistent(staged, target="ascend")


def test_places_do_not_overlap_and_heap_holds_what_ranks_write():
    layer = Layer(ep=4, T=12, H=32, I=16, E=4, K=1)
    kernel = BoundRun(layer).ranks[0].lower(*(hpmoe.ShapeDtypeStruct(tuple(a.shape[1:]), "bfloat16"
                                                                     if a.dtype != np.int32 else "int32")
                                            for a in layer.arguments()), direction="backward")
    layout, left = kernel.state.layout, iter(kernel.state.layout.places)
    assert len(kernel.flows) == 6
    for flow in kernel.flows:
        places, ends = [next(left) for _ in flow.buffers], {}
        assert [next(left) for _ in flow.routes] == [ascend_layout.NOWHERE]
        for b, (tensor, offset, size) in enumerate(places):
            home = hpmoe.ir.taskflow.memory_of(flow.buffers, b)
            assert (tensor == ascend_layout.HEAP) == (home in remote_memories(flow))
            assert ends.setdefault((tensor, offset), home) == home
            assert offset + size <= {ascend_layout.HEAP: layout.heap_bytes}.get(tensor, layout.scratch_bytes or size)
        starts = sorted((t, o, max(p[2] for p in places if p[:2] == (t, o))) for t, o in ends)
        for (tensor, offset, size), (after, start, _) in zip(starts, starts[1:], strict=False):
            assert tensor != after or offset + size <= start


@pytest.mark.parametrize("ep, routing, plans", [(4, "random", 6), (4, "one rank", 6), (2, "random", 2), (2, "one rank", 2)])
def test_a_launch_takes_one_of_several_plans(ep, routing, plans):
    """Forward and backward, each with memory for all plans, and one launch after another."""
    run = BoundRun(Layer(ep=ep, T=12, H=32, I=16, E=4, K=1, routing=routing))
    assert len({run.assert_close_to_float64() for _ in range(2)}) == 1
    kernels = [executable for heap in run.heaps for executable, _ in heap.kernels()]
    assert kernels and all(len(kernel.flows) == plans for kernel in kernels)
