"""fuse_persistent(target="ascend-emulator"): the Ascend kernel's own source, executed on the emulator, against NumPy in
float64."""

import ctypes
import dataclasses

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import LayerRun, emulator, from_seed
from helpers import Layer
from native.image_builder import OWN, ImageBuilder
from raw_launches import launch_on_emulator

import hpmoe
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.kernels.ascendc.rules import check_image
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Status
from hpmoe.kernels.protocol import Amount, Code, Domain, MapCode, Opcode, Remote
from hpmoe.support.errors import LaunchError

SMALL = Layer(ep=2, T=7, H=32, I=16, E=4, K=2)


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=4, K=2), {}),
    (Layer(ep=2, T=20, H=48, I=32, E=8, K=3), {"blocks": 2, "signal": "expert"}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, num_tokens=(9, 0)), {"signal": "peer"}),
    (Layer(ep=3, T=17, H=16, I=16, E=6, K=1, routing="one expert"), {}),
    (Layer(ep=4, T=20, H=32, I=16, E=8, K=2), {"put_cols": 16}),
    (Layer(ep=2, T=70, H=32, I=16, E=8, K=2), {"returns": 2}),
    (Layer(ep=2, T=5, H=32, I=32, E=8, K=4), {"rows": 2**30}),  # of as many tokens 32 bits do not count the choices
    (Layer(ep=4, T=5, H=32, I=32, E=8, K=8, routing="one rank"), {"rows": 4}),
    (Layer(ep=4, T=7, H=32, I=16, E=8, K=2, num_tokens=(7, 0, 3, 5)), {"rows": 4, "num_peers": 3}),
    (SMALL, {"dtype": ms.float16}),
    (Layer(ep=1, T=20, H=32, I=16, E=1, K=1), {"dtype": ms.float32}),
    (Layer(ep=1, T=1, H=1, I=1, E=2, K=2), {"dtype": ms.float32}),
    (Layer(ep=2, T=20, H=44, I=27, E=8, K=3), {"dtype": ms.float32, "blocks": 2, "signal": "expert"}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, num_tokens=(9, 0)), {"dtype": ms.float32, "signal": "peer"}),
    (Layer(ep=3, T=17, H=21, I=10, E=6, K=1, routing="one expert"), {"dtype": ms.float32}),
    (Layer(ep=4, T=5, H=32, I=33, E=8, K=8, routing="one rank"), {"dtype": ms.float32, "rows": 4, "put_cols": 16}),
], ids=str)
def test_layer_equals_numpy(layer, options):
    LayerRun(layer, **options).assert_close_to_float64()


@pytest.mark.parametrize("dtype", [ms.bfloat16, ms.float32])
def test_tiles_that_fill_the_memories_of_a_core(dtype):
    """More than one step of L1 and L0 in depth, more than one tile of L0C, a single row, and rows past the last whole
    tile."""
    run = LayerRun(Layer(ep=1, T=257, H=304, I=144, E=2, K=1), dtype, rows=256, cols=288)
    run.ids[0, :, 0] = 0
    run.ids[0, 256, 0] = 1
    run.assert_close_to_float64()


def test_every_seed_gives_the_same_bits(monkeypatch):
    run, seen = LayerRun(SMALL), set()
    for seed in range(16):
        from_seed(monkeypatch, 1000 * seed)
        seen.add(b"".join(a.tobytes() for a in run()))
    assert len(seen) == 1


def test_weight_gradients_added_to_float32():
    main = ms.Tensor(np.ones((1, 2, 32, 64)), ms.float32), ms.Tensor(np.ones((1, 2, 32, 32)), ms.float32)
    run = LayerRun(Layer(ep=1, T=9, H=32, I=32, E=2, K=1, routing="one expert"))
    run.fused = hpmoe.spmd(emulator(hpmoe.accumulate_grads(hpmoe.moe_ffn,
                                                       into={"gate_up_weight": main[0], "down_weight": main[1]})),
                           hpmoe.Mesh(1))
    run()
    for got, want in zip(main, run.expected()[3:], strict=True):
        np.testing.assert_allclose(got.asnumpy() - 1, want, atol=2e-2 * np.abs(want).max())


def test_launches_without_tasks_count_up():
    """Three launches behave as the bring-up list of kernels/ascendc/README.md expects."""
    image = ImageBuilder(num_queues=3).pack()
    library = emulator_library.load()
    counters = Pool().zeros((8, library.hpmoe_emulator_counter_words()), np.int32)
    tables, nothing = Pool().zeros((32,), np.int32), Pool().zeros((16,), np.uint64)
    rank = emulator_library.Rank(nothing.ctypes.data, nothing.ctypes.data, nothing.ctypes.data, counters.ctypes.data,
                            nothing.ctypes.data, tables.ctypes.data, 0)
    for epoch in (1, 2, 3):
        status, counts = Status(), emulator_library.Counts()
        fault = ctypes.create_string_buffer(1000)
        assert library.hpmoe_emulator_launch(image.ctypes.data, image.nbytes, (emulator_library.Rank * 1)(rank), 1, epoch, 1,
                                             1.0,
                                         epoch, ctypes.byref(status), ctypes.byref(counts), fault, 1000) == 0, fault.value
        assert counters[:6, 0].tolist() == [2 * epoch, 2 * epoch, 2 * epoch, 0, 0, 2 * epoch]


# --- failures ---


def test_library_of_older_sources_is_refused(monkeypatch):
    monkeypatch.setattr(emulator_library, "ABI_VERSION", emulator_library.ABI_VERSION + 1)
    with pytest.raises(ImportError, match=r"_emulator.so is older than its Python code"):
        emulator_library.load.__wrapped__()


def one_expert_a_rank(ep_size=2):
    """A forward plan, its kernel, and arguments for both ranks."""
    layer = dataclasses.replace(SMALL, ep=ep_size, E=2 * ep_size)
    run = LayerRun(layer)
    args = (run.given[0], run.ids, *run.given[1:])
    kernel = run.fused.lower(*args)
    inputs = [[np.ascontiguousarray(emulator_array(a)[r]) for a in args] for r in range(ep_size)]
    return kernel, inputs


def emulator_array(tensor):
    return tensor.asnumpy() if tensor.dtype == ms.int32 else tensor.astype(ms.float32).asnumpy().astype(
        hpmoe.support.dtypes.numpy_dtype("bfloat16"))


def test_lost_signal_names_task_and_event_and_next_launch_works():
    kernel, inputs = one_expert_a_rank()
    want = kernel.run(inputs)
    image = kernel.image.copy()
    _, sections = unpack_image(image)
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    lost = np.flatnonzero((opcodes == Opcode.GMM) & (sections["templates"]["num_signals"] > 0))
    sections["templates"]["num_signals"][lost] = 0
    broken = kernel.replace(image=image)
    with pytest.raises(LaunchError, match=r"waited too long: event \d+ stands at 0, its threshold is \d+") as error:
        broken.run(inputs)
    assert error.value.status["code"] == Code.TIMEOUT and "SWIGLU of op 2" in str(error.value)
    for got, expected in zip(kernel.run(inputs), want, strict=True):
        np.testing.assert_array_equal(got[0].view(np.uint16), expected[0].view(np.uint16))


def test_signals_to_peers_and_to_every_rank():
    """A task that waits for signals of both kinds begins once every rank has sent each signal once."""
    builder = ImageBuilder(ep_size=2, tile_rows=8, num_queues=3)
    route = builder.route(num_experts=2, num_tokens=4, top_k=1, num_slots=3)
    buffers = [builder.buffer(16, 4) for _ in range(3)]
    from_peers, from_all = builder.event(mult=2), builder.event(mult=2)
    count = {"amount": Amount.COUNT}
    notify = builder.op(Opcode.NOTIFY, Domain.ONCE, route=route)
    for peer in (0, 1):
        builder.task(notify, peer=peer, signals=[(from_peers, {**count, "remote": Remote.PEER})], queue=1 + peer)
    copies = [builder.op(Opcode.MAP, Domain.TILES, (to, *OWN), (of, *OWN), num_rows=4, param=(MapCode.COPY,))
              for of, to in zip(buffers, buffers[1:], strict=False)]
    builder.task(copies[0], cols=(0, 16), signals=[(from_all, {**count, "remote": Remote.EVERY})], queue=1)
    builder.task(copies[1], cols=(0, 16), waits=[from_peers, from_all], queue=2)
    image = builder.pack()
    check_image(image)
    for seed in range(8):
        x = np.arange(128, dtype=np.float32).reshape(2, 4, 16)
        arrays = [[np.zeros((4, 1), np.int32), a.copy(), np.zeros((4, 16), np.float32), np.zeros((4, 16), np.float32)]
                  for a in x]
        counters = launch_on_emulator(image, *arrays, num_tokens=4, seed=seed)
        assert counters[:, [from_peers, from_all]].tolist() == [[2, 2], [2, 2]]
        np.testing.assert_array_equal([a[2] for a in arrays], x)
