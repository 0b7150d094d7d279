"""float32 products of the Ascend kernel on its twin, number by number beside float64: alone, in layers, in what README
begins with."""

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import TOLERANCE, LayerRun, ProgramRun, f32, from_seed, npu, twin
from helpers import Layer, numpy_moe_ffn, relative_error
from mindspore import mint

import hpmoe
from hpmoe import trace
from hpmoe.autodiff.vjp import linearize

README = Path(__file__).parents[2] / "README.md"

SHAPES = [(16, 16, 16), (1, 1, 1), (1, 300, 20), (5, 3, 7), (17, 19, 1), (21, 40, 75), (40, 136, 300), (257, 70, 33),
          (2, 9, 260),
          (130, 1, 140)]


@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_products_of_any_shape(m, k, n, direction):
    """Rows, widths and depths that are no whole fractals or squares of them; deeper than L0 and L1 hold; both gradients."""
    program = trace(lambda x, w: mint.matmul(x, w), f32(m, k), f32(k, n))
    program = program if direction == "forward" else linearize(program).backward
    ProgramRun(program, rows=256, cols=288).assert_products_within_roundings()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_order_gives_the_same_bits(monkeypatch, direction):
    program, seen = trace(lambda x, v, w: x @ v @ w, f32(40, 70), f32(70, 144), f32(144, 24)), set()
    run = ProgramRun(program if direction == "forward" else linearize(program).backward)
    for seed in (0, 1000, 2000):
        from_seed(monkeypatch, seed)
        seen.add(b"".join(a.tobytes() for a in run.assert_close_to_float64()))
    assert len(seen) == 1


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=1, K=1), {}),
    (Layer(ep=1, T=1, H=1, I=1, E=2, K=2), {}),
    (Layer(ep=2, T=20, H=44, I=27, E=8, K=3), {"blocks": 2, "signal": "expert"}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, num_tokens=(9, 0)), {"signal": "peer"}),
    (Layer(ep=3, T=17, H=21, I=10, E=6, K=1, routing="one expert"), {}),
    (Layer(ep=4, T=5, H=32, I=33, E=8, K=8, routing="one rank"), {"rows": 4, "put_cols": 16}),
], ids=str)
def test_layer_and_gradients(layer, options):
    LayerRun(layer, ms.float32, **options).assert_close_to_float64()


def test_tiles_that_fill_the_memories_of_a_core():
    """More than one step of L1 and L0 in depth, more than one tile of L0C, a single row, and rows past the last whole
    tile."""
    run = LayerRun(Layer(ep=1, T=257, H=304, I=144, E=2, K=1), ms.float32, rows=256, cols=288)
    run.ids[0, :, 0] = 0
    run.ids[0, 256, 0] = 1
    run.assert_close_to_float64()


def test_copies_of_experts_and_tokens_sent_once():
    """What copies give back is added by multiplying it with a unit matrix, which in float32 is squares of two fractals."""
    layer = Layer(ep=4, T=12, H=144, I=56, E=8, K=2, routing="one rank", num_tokens=(12, 0, 3, 7))
    loads = np.bincount(layer.arguments()[1].ravel(), minlength=layer.E)
    wrapped = hpmoe.deduplicate_rows(hpmoe.replicate_experts(hpmoe.moe_ffn, loads=loads, replicas=2))
    LayerRun(layer, ms.float32, wrapped, cols=96).assert_close_to_float64()


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16])
def test_shared_expert(dtype):
    """Its products are plain ones, of all tokens of a rank."""
    layer, width = Layer(ep=2, T=13, H=20, I=12, E=4, K=2), 9
    run, rng = LayerRun(layer, dtype), np.random.default_rng(7)
    shared = [ms.Tensor(rng.standard_normal(s), ms.float32).astype(dtype) for s in ((2, 20, 2 * width), (2, width, 20))]
    fused = hpmoe.spmd(twin(lambda x, ids, w, up, down, shared_up, shared_down: hpmoe.moe_ffn(x, ids, w, up, down) +
                            hpmoe.swiglu(x @ shared_up) @ shared_down), hpmoe.Mesh(2))
    x, *rest = run.given

    def loss(x, weights, up, down, shared_up, shared_down):
        return (fused(x, run.ids, weights, up, down, shared_up, shared_down) * run.cotangent).astype(ms.float32).sum()

    got = [g.astype(ms.float32).asnumpy() for g in ms.grad(loss, tuple(range(6)))(x, *rest, *shared)]
    want = shared_gradients(run, shared)
    assert max(map(relative_error, got, want)) <= TOLERANCE[dtype]


def shared_gradients(run, shared):
    """The layer's own gradients, and those of the shared expert by hand, in float64."""
    _, dx, *routed = run.expected()
    x, dy, up, down = (a.astype(ms.float32).asnumpy().astype(np.float64) for a in (run.given[0], run.cotangent, *shared))
    gate, value = np.split(x @ up, 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))
    act, d_act = gate * sigmoid * value, dy @ down.swapaxes(1, 2)
    d_up = np.concatenate([d_act * value * sigmoid * (1 + gate * (1 - sigmoid)), d_act * gate * sigmoid], axis=-1)
    return [dx + d_up @ up.swapaxes(1, 2), *routed, x.swapaxes(1, 2) @ d_up, act.swapaxes(1, 2) @ dy]


def test_weight_gradients_added_to_main_ones():
    main = ms.Tensor(np.ones((1, 2, 21, 38)), ms.float32), ms.Tensor(np.ones((1, 2, 19, 21)), ms.float32)
    run = LayerRun(Layer(ep=1, T=9, H=21, I=19, E=2, K=1, routing="one expert"), ms.float32)
    run.fused = hpmoe.spmd(twin(hpmoe.accumulate_grads(hpmoe.moe_ffn,
                                                       into={"gate_up_weight": main[0], "down_weight": main[1]})),
                           hpmoe.Mesh(1))
    run()
    for got, want in zip(main, run.expected()[3:], strict=True):
        np.testing.assert_allclose(got.asnumpy() - 1, want, atol=TOLERANCE[ms.float32] * np.abs(want).max())


def test_the_program_of_readme():
    """What a newcomer does first on the way to an NPU: another machine and target in README's first program."""
    lines = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1].splitlines()
    source = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    usual = "machine=hpmoe.cpu(num_workers=2)), hpmoe.fuse_persistent)"
    assert source.count(usual) == 1
    names = {"npu": npu, "__name__": "readme"}
    exec(source.replace(usual, "machine=npu(2)), hpmoe.fuse_persistent(target='ascend-twin'))"), names)
    out, (x, ids, *weights) = names["layer"](*names["args"]), [a.asnumpy() for a in names["args"]]
    size = out.size
    want, grads = numpy_moe_ffn((x, ids, *weights), 2 / size * out.asnumpy(), None, None)
    assert relative_error(out.asnumpy(), want) <= TOLERANCE[ms.float32]
    assert max(map(relative_error, (g.asnumpy() for g in names["grads"]), grads)) <= TOLERANCE[ms.float32]
