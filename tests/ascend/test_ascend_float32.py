"""float32 products of the Ascend kernel on its emulator against float64, number by number: single products, layers, and
the first program of README."""

import re
from pathlib import Path

import mindspore as ms
import pytest
from ascend_helpers import TOLERANCE, LayerRun, ProgramRun, f32, npu
from helpers import Layer, numpy_moe_ffn, relative_error
from mindspore import mint

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


def test_the_program_of_readme():
    """README's first program runs with the machine and the target of an NPU."""
    lines = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1].splitlines()
    source = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    usual = "hpmoe.assign_queues, hpmoe.fuse_persistent)"
    assert source.count(usual) == 1
    names = {"npu": npu, "__name__": "readme"}
    emulated = "hpmoe.assign_queues(machine=npu(2)), hpmoe.fuse_persistent(target='ascend-emulator'))"
    exec(source.replace(usual, emulated), names)
    args = [names[name] for name in ("x", "ids", "weights", "gate_up", "down")]
    out, (x, ids, *weights) = names["layer"](*args), [a.asnumpy() for a in args]
    size = out.size
    want, grads = numpy_moe_ffn((x, ids, *weights), 2 / size * out.asnumpy(), None, None)
    assert relative_error(out.asnumpy(), want) <= TOLERANCE[ms.float32]
    assert max(map(relative_error, (g.asnumpy() for g in names["grads"]), grads)) <= TOLERANCE[ms.float32]
