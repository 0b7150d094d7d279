"""float32 products of the Ascend kernel on its emulator against float64, number by number, and the first program of
README."""

import re
from pathlib import Path

import mindspore as ms
import pytest
from ascend_helpers import TOLERANCE, ProgramRun, f32, npu
from helpers import numpy_moe_ffn, relative_error
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
