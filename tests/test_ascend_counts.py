"""What the Ascend kernel moves and computes, counted by the twin, beside what the machine model charges for the same tasks."""

import functools

import numpy as np
import pytest
from ascend_helpers import npu
from mindspore import mint

import hpmoe
from hpmoe import Aval, assign_queues, overlap_comm, tile_partition, trace
from hpmoe.costs import Work
from hpmoe.dtypes import numpy_dtype
from hpmoe.kernels.twin_target import compile_twin
from hpmoe.vjp import linearize

ROWS, CYCLES_PER_US = 128, 1815.0
VECTOR_BYTES_PER_CYCLE = 256
PROLOGUE_BYTES = 8 * 4  # signals of one rank with two AIV


def bf16(*shape):
    return Aval(shape, "bfloat16")


class Counted:
    """One launch of a program on the twin: what was counted, and what the model charges for its tasks."""

    def __init__(self, program, rows=ROWS, cols=256):
        self.machine = npu()
        flow = overlap_comm.apply_to(tile_partition.apply_to(program, rows=rows, cols=cols))
        self.flow = assign_queues.apply_to(flow, machine=self.machine)
        kernel = compile_twin(self.flow, 100.0)
        rng = np.random.default_rng(0)
        inputs = [rng.permuted(np.tile(np.arange(4, dtype=np.int32), (v.aval.shape[0], 1)), axis=1)[:, :v.aval.shape[1]].copy()
                  if v.aval.dtype == "int32" else np.ones(v.aval.shape, numpy_dtype(v.aval.dtype)) for v in program.inputs]
        kernel.run([inputs])
        self.counts, self.work = kernel.counts, Work(self.flow, self.machine).entries(self.flow.tasks)

    def charged(self):
        """Bytes through global memory, flops of whole fractals, and microseconds of vector work."""
        moved = flops = vector = 0.0
        for task, work in zip(self.flow.tasks, self.work, strict=True):
            op = self.flow.ops[task["op"]]
            rows = self._rows(op, task)
            touches = work["touches"][:work["num_touches"]]
            moved += touches["fixed"].sum() + rows * (touches["row"].sum() + work["link_row"])
            if op.opcode in ("GMM", "WGRAD"):
                whole = -(-rows // work["granule"]) * work["granule"]
                flops += whole * work["core_row"] * self.machine.matmul_rate(self.flow.buffers[op.operands[1].buffer].dtype)
            else:
                vector += work["core_fixed"] + rows * work["core_row"]
        return moved, flops, vector

    def _rows(self, op, task):
        if op.domain.kind == "tiles":
            return min(self.flow.tile_rows, op.domain.num_rows - task["row"] * self.flow.tile_rows)
        if op.domain.kind == "experts":
            return op.params[1]
        return 1

    def moved(self):
        c = self.counts
        return c.gm_to_ub + c.ub_to_gm + c.gm_to_l1 + c.l0c_to_gm - PROLOGUE_BYTES


@functools.cache
def products(direction, dtype, rows, cols):
    """A matmul [200, 256] @ [256, 512], or its two gradients."""
    program = trace(lambda x, w: mint.matmul(x, w), Aval((200, 256), dtype), Aval((256, 512), dtype))
    return Counted(program if direction == "forward" else linearize(program).backward, rows=rows, cols=cols)


@pytest.mark.parametrize("direction, rows, cols", [
    *[(direction, *tile) for tile in ((128, 256), (256, 256), (64, 512), (256, 512)) for direction in ("forward", "backward")],
    ("forward", 512, 384), ("backward", 96, 256)])
def test_products_move_and_compute_what_the_model_charges(direction, rows, cols):
    """In tiles of any shape, larger than what the kernel sums at once and smaller."""
    check_products(products(direction, "bfloat16", rows, cols))


@pytest.mark.parametrize("direction, rows, cols", [("forward", 256, 512), ("backward", 256, 512), ("forward", 64, 384)])
def test_float32_products_move_twice_the_bytes_and_sum_eight_at_once(direction, rows, cols):
    check_products(products(direction, "float32", rows, cols))


def check_products(run):
    moved, flops, _ = run.charged()
    assert run.moved() == moved
    assert run.counts.cube_flops == pytest.approx(flops)
    assert run.counts.vector_bytes == 0


def l0_bytes(m, k, n, size):
    """What a product brings to L0A and L0B: each half of a tile of L0C has its A anew, and each row of tiles its B."""
    num_m, num_k, num_n = (-(-length // 16) * 16 for length in (m, k, n))
    return -(-n // 128) * num_m * num_k * size, -(-m // 128) * num_n * num_k * size


@pytest.mark.parametrize("dtype, size", [("bfloat16", 2), ("float32", 4)])
def test_products_bring_each_operand_to_l0_as_often_as_it_is_used(dtype, size):
    """float32 that is turned in squares too, although they are twice as deep as what Mmad reads at once."""
    forward = products("forward", dtype, 256, 512).counts
    assert (forward.l1_to_l0a, forward.l1_to_l0b) == l0_bytes(200, 256, 512, size)
    backward = products("backward", dtype, 256, 512).counts
    both = zip(l0_bytes(200, 512, 256, size), l0_bytes(256, 200, 512, size), strict=True)
    assert (backward.l1_to_l0a, backward.l1_to_l0b) == tuple(map(sum, both))


@pytest.mark.parametrize("program, most", [
    (lambda: trace(hpmoe.swiglu, bf16(200, 512)), 1.1),
    (lambda: linearize(trace(hpmoe.swiglu, bf16(200, 512))).backward, 1.5),
    (lambda: trace(lambda x, y: x + y, bf16(200, 256), bf16(200, 256)), 1.1),
    (lambda: trace(lambda x: x * 2.0, bf16(200, 256)), 1.1),
], ids=["swiglu", "swiglu gradient", "add", "scale"])
def test_vector_bodies_move_what_the_model_charges_and_take_about_its_time(program, most):
    """The model has one rate for all vector work: the vector unit alone may not need much more than that."""
    run = Counted(program())
    moved, _, charged_us = run.charged()
    assert run.moved() == moved
    needed_us = run.counts.vector_bytes / VECTOR_BYTES_PER_CYCLE / CYCLES_PER_US
    assert 0.3 * charged_us < needed_us < most * charged_us, needed_us / charged_us


def test_transfers_move_each_row_in_and_out_and_little_besides():
    def there_and_back(x, ids, weights):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=4)
        return hpmoe.combine(rows, route, weights)

    tokens, hidden, top_k = 160, 512, 2
    run = Counted(trace(there_and_back, bf16(tokens, hidden), Aval((tokens, top_k), "int32"), bf16(tokens, top_k)))
    entries, row = tokens * top_k, 2 * hidden
    rows_moved = 4 * entries * row + (entries + tokens) * row + entries * 2  # put, put back, weighted sum
    tables = sum(run.flow.tile_rows * 4 for _ in range(64))
    assert rows_moved <= run.moved() <= rows_moved + 16 * entries + tables
