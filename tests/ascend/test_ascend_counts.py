"""Bytes that the Ascend kernel moves and products that it computes, counted by the emulator, against the charges of the
machine model for the same tasks."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
from ascend_helpers import capped, npu
from helpers import for_several
from mindspore import mint
from tile_words import kind, params

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, overlap_comm, tile_partition, trace
from hpmoe.autodiff.vjp import linearize
from hpmoe.costs.footprint import block_heights
from hpmoe.costs.work import Work
from hpmoe.ir.layout import received_rows
from hpmoe.ir.taskflow import Dependencies
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.machines.machine import CONSTANTS
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.timelines.run import RATES as RATES_OF_RUN

ROWS, CYCLES_PER_US = 128, 1815.0
VECTOR_BYTES_PER_CYCLE = 256
PROLOGUE_BYTES = 8 * 4  # signals of one rank with two AIV


def bf16(*shape):
    return ShapeDtypeStruct(shape, "bfloat16")


class Counted:
    """One launch of a program on the emulator: what was counted, and what the model charges for its tasks."""

    def __init__(self, program, rows=ROWS, cols=256):
        self.machine = npu()
        flow = overlap_comm.apply_to(tile_partition.apply_to(program, rows=rows, cols=cols))
        self.flow = assign_queues.apply_to(flow, machine=self.machine)
        kernel = EMULATOR.compile([self.flow], 100.0)
        rng = np.random.default_rng(0)

        def values(aval):
            if aval.dtype != "int32":
                return np.ones(aval.shape, numpy_dtype(aval.dtype))
            experts = np.tile(np.arange(4, dtype=np.int32), (aval.shape[0], 1))
            return rng.permuted(experts, axis=1)[:, :aval.shape[1]].copy()
        inputs = [values(v.aval) for v in program.inputs]
        kernel.run([inputs])
        self.counts, self.work = kernel.state.counts, Work(self.flow, self.machine).entries(self.flow.tasks)

    def charged(self):
        """Bytes through global memory, flops of whole fractals, and microseconds of vector work."""
        moved = flops = vector = 0.0
        for task, work in zip(self.flow.tasks, self.work, strict=True):
            op = self.flow.ops[task["op"]]
            rows = self._rows(op, task)
            footprints = work["footprints"][:work["num_footprints"]]
            moved += footprints["fixed"].sum() + rows * (footprints["row"].sum() + work["link_row"])
            if op.opcode in ("GMM", "WGRAD"):
                whole = -(-rows // work["granule"]) * work["granule"]
                flops += whole * work["core_row"] * self.machine.cube.rate(self.flow.buffers[op.operands[1].buffer].dtype)
            else:
                vector += work["core_fixed"] + rows * work["core_row"]
        return moved, flops, vector

    def _rows(self, op, task):
        if kind(op) == "tiles":
            return min(self.flow.tile_rows, op.domain.num_rows - task["row"] * self.flow.tile_rows)
        if kind(op) == "experts":
            return params(op)[1]
        return 1

    def moved(self):
        c = self.counts
        return c.gm_to_ub + c.ub_to_gm + c.gm_to_l1 + c.l0c_to_gm - PROLOGUE_BYTES


@functools.cache
def products(direction, dtype, rows, cols):
    """A matmul [200, 256] @ [256, 512], or its two gradients."""
    program = trace(lambda x, w: mint.matmul(x, w), ShapeDtypeStruct((200, 256), dtype), ShapeDtypeStruct((256, 512), dtype))
    return Counted(program if direction == "forward" else linearize(program).backward, rows=rows, cols=cols)


@pytest.mark.parametrize("direction, rows, cols", [
    *[(direction, *tile) for tile in ((128, 256), (256, 256), (64, 512), (256, 512))
      for direction in ("forward", "backward")],
    ("forward", 512, 384), ("backward", 96, 256)])
def test_products_move_and_compute_what_the_model_charges(direction, rows, cols):
    """In tiles of any shape, larger than what the kernel sums at once and smaller."""
    assert_as_charged(products(direction, "bfloat16", rows, cols))


@pytest.mark.parametrize("direction, rows, cols", [("forward", 256, 512), ("backward", 256, 512), ("forward", 64, 384)])
def test_float32_products_move_twice_the_bytes_and_sum_eight(direction, rows, cols):
    assert_as_charged(products(direction, "float32", rows, cols))


def assert_as_charged(run):
    moved, flops, _ = run.charged()
    assert run.moved() == moved
    assert run.counts.cube_flops == pytest.approx(flops)
    assert run.counts.vector_bytes == 0


def l0_bytes(m, k, n, size):
    """Returns the bytes that a product copies to L0A and L0B: A for each half of a tile of L0C, B for each row of tiles."""
    num_m, num_k, num_n = (-(-length // 16) * 16 for length in (m, k, n))
    return -(-n // 128) * num_m * num_k * size, -(-m // 128) * num_n * num_k * size


@pytest.mark.parametrize("dtype, size", [("bfloat16", 2), ("float32", 4)])
def test_products_copy_operands_to_l0_as_often_as_they_are_used(dtype, size):
    """float32 that is transposed in squares too, although they are twice as deep as what Mmad reads at once."""
    forward = products("forward", dtype, 256, 512).counts
    assert (forward.l1_to_l0a, forward.l1_to_l0b) == l0_bytes(200, 256, 512, size)
    backward = products("backward", dtype, 256, 512).counts
    both = zip(l0_bytes(200, 512, 256, size), l0_bytes(256, 200, 512, size), strict=True)
    assert (backward.l1_to_l0a, backward.l1_to_l0b) == tuple(map(sum, both))


def test_half_precision_steps_load_to_l0_by_one_instruction():
    """Rows of 128 times columns of 128, 128 deep; but for B that is not transposed, of which each 16 of its depth are
    one."""
    steps = -(-200 // 128) * (512 // 128) * (256 // 128)
    assert products("forward", "bfloat16", 256, 512).counts.l0_loads == 2 * steps
    assert products("forward", "float32", 256, 512).counts.l0_loads == 160  # B by squares
    assert products("backward", "bfloat16", 256, 512).counts.l0_loads == 176


# --- every body by itself ---

RATES = ("cube.flops_per_us", "cube.efficiency", "cube.float32_ratio", "vector.bytes_per_us", "vector.copy_bytes_per_us")
COSTS = ("cube.fill_us", "sync.task_us", "sync.pass_us", "sync.wait_us", "sync.poll_us", "sync.signal_us", "sync.remote_us",
         "sync.node_remote_us")
# Each flop of a product, and each byte of anything else, is a microsecond of its worker, and nothing else takes any time.
UNIT = npu().replace({name: 1e15 for name in CONSTANTS if name.endswith("bytes_per_us")}
                       | dict.fromkeys(RATES, 1.0) | dict.fromkeys(COSTS, 0.0))


@dataclasses.dataclass
class Body:
    """All tasks of an operation on all ranks: what the emulator counted, and what the simulator charges of them."""

    op: object
    moved: int
    flops: int
    vector_bytes: int
    charged: float
    busy: float
    part_bytes: int
    num_entries: int
    uncopied: tuple[float, float]
    empty_flops: int

    def lists(self):
        """Bytes that the model leaves out: of lists, and rows that are the same for a whole task."""
        return self.moved - self.charged

    def vector_share(self):
        """Share of the vector unit in the time that the body is charged."""
        return self.vector_bytes / VECTOR_BYTES_PER_CYCLE / CYCLES_PER_US / (self.busy / npu().vector.bytes_per_us)


def alone(flow, *ops):
    """Returns a taskflow of only these operations, without waits; without operations it still computes the routing."""
    queues = [np.zeros(0, np.int64)] * len(flow.queues)
    if ops:
        queues[0 if ops[0].unit == "aic" else 1] = np.arange(sum(math.prod(op.grid) for op in ops))
    return flow.replace(ops=ops, queues=tuple(queues), deps=Dependencies())


def counted(flow, inputs):
    kernel = EMULATOR.compile([flow], 100.0)
    kernel.run(inputs)
    c = kernel.state.counts
    return np.array([c.gm_to_ub + c.ub_to_gm + c.gm_to_l1 + c.l0c_to_gm, c.cube_flops, c.vector_bytes])


def bodies(flow, ids=()):
    """Every operation of a taskflow by itself, on what each rank's ids make of it."""
    ids = [np.ascontiguousarray(i, np.int32) for i in ids]
    inputs = [[mine if (mine := of_rank(flow, b, ids[rank] if ids else None)) is not None else 0 for b in flow.inputs]
              for rank in range(flow.ep_size)]
    received = received_rows(flow, inputs, None)
    for rank, arrays in enumerate(inputs):
        for i, b in enumerate(flow.inputs):
            if not isinstance(arrays[i], np.ndarray):
                buffer = flow.buffers[b]
                shape = [d if isinstance(d, int) else received[rank][buffer.route] for d in buffer.shape]
                arrays[i] = np.ones(shape, numpy_dtype(buffer.dtype))
    weights = [np.ones(i.shape) for i in ids] if any(r.weights >= 0 for r in flow.routes) else None
    prologue, out = counted(alone(flow), inputs), []
    for op in flow.ops:
        only = alone(flow, op)
        line = hpmoe.simulate(only, UNIT.replace(num_aic=len(flow.queues) // 3, num_aiv=len(flow.queues) // 3 * 2),
                              routing=ids or None, topk_weights=weights)
        sent = line.traffic[:, [RATES_OF_RUN.index("l2"), RATES_OF_RUN.index("egress")], 0].sum()
        of = flow.buffers[op.operands[-1 if len(op.operands) < 2 else 1].buffer] if op.operands else None
        part = (op.tile_cols or of.cols) * numpy_dtype(of.dtype).itemsize if of else 0
        out.append(Body(op, *(counted(only, inputs) - prologue).tolist(), sent, (line.end - line.begin).sum(), part,
                        sum(i.size for i in ids), *of_copies(flow, op)))
    return out


def of_copies(flow, op):
    """Returns bytes and flops of the returned gradients of replicas, if every rank has as many as the one with most,
    less the unit matrices that they are multiplied with. And flops of a gradient without rows: a fractal's depth of
    zeros."""
    if op.opcode != "WGRAD":
        return (0, 0), 0
    out, x = (flow.buffers[a.buffer] for a in op.operands[:2])
    size, heights = numpy_dtype(x.dtype).itemsize, [params(op)[0]] * (op.domain.blocks - 1) + [block_heights(flow, op)[1]]
    empty = 2 * 16 * sum(heights) * out.cols
    if not any(a.rows.name == "returned" for a in op.operands):
        return (0, 0), empty
    plan = flow.routes[op.domain.route].placement
    copies = sum(map(len, plan.copies))
    missing, units = flow.ep_size * plan.most_copies - copies, copies * op.grid[2] * sum(heights) * 16 * size
    return (missing * sum(heights) * out.cols * size - units, missing * sum(2 * h * h for h in heights) * out.cols), empty


def of_rank(flow, b, ids):
    """Indices: those of a route, or of a gather's eight rows."""
    if flow.buffers[b].dtype != "int32":
        return None
    return ids if b in {r.ids for r in flow.routes} else np.arange(flow.buffers[b].num_rows * flow.buffers[b].cols,
                                                                   dtype=np.int32).reshape(flow.buffers[b].shape) % 8


def bodies_of_program(f, *avals, direction="forward", cols=64):
    program = trace(f, *avals)
    program = program if direction == "forward" else linearize(program).backward
    flow = assign_queues.apply_to(overlap_comm.apply_to(tile_partition.apply_to(program, rows=16, cols=cols)), machine=npu())
    return bodies(flow)


FUNCTIONS = {"erf": mint.erf, "sin": mint.sin, "cos": mint.cos, "sign": mint.sign, "softplus": mint.nn.functional.softplus,
             "floor": mint.floor, "exp": mint.exp, "log": mint.log, "sqrt": mint.sqrt, "rsqrt": mint.rsqrt, "neg": mint.neg,
             "sigmoid": mint.sigmoid, "tanh": mint.tanh, "silu": mint.nn.functional.silu, "relu": mint.nn.functional.relu,
             "abs": mint.abs,
             "reciprocal": mint.reciprocal, "square": mint.square}
OF_TWO = {"add": mint.add, "sub": mint.sub, "mul": mint.mul, "div": mint.div, "pow": mint.pow, "maximum": mint.maximum,
          "minimum": mint.minimum, "greater": lambda x, y: mint.where(mint.greater(x, y), x, y),
          "less or equal": lambda x, y: mint.where(mint.less_equal(x, y), x, y)}
SUMS = {"sum of rows": lambda x: mint.sum(x, -1, True), "largest of rows": lambda x: mint.amax(x, -1, True),
        "sum of columns": lambda x: mint.sum(x, 0), "by a column": lambda x: x * mint.sum(x, -1, True)}
VECTOR = {**{name: (f, 1) for name, f in {**FUNCTIONS, **SUMS, "swiglu": hpmoe.swiglu}.items()},
          **{name: (f, 2) for name, f in OF_TWO.items()}}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", VECTOR)
def test_vector_bodies_agree_with_the_model(name, dtype):
    """The model has one rate for vector work that is much like moving: the vector unit alone may not need much more."""
    f, num_inputs = VECTOR[name]
    for body in bodies_of_program(f, *[ShapeDtypeStruct((40, 192), dtype)] * num_inputs):
        assert body.moved == body.charged
        assert body.flops == 0 and 0.15 < body.vector_share() < 1.3, body
        if passes := body.op.params.passes:  # the one that narrows is half as long in half precision
            assert passes - 0.5 <= body.vector_bytes / (4 * 40 * 192) <= passes, body


def test_a_choice_between_numbers_costs_its_comparison():
    """The bytes are few beside the vector unit's work."""
    for body in bodies_of_program(lambda x: mint.where(mint.greater(x, 0.25), 1.0, 0.5), bf16(40, 192)):
        assert 0.15 < body.vector_share() < 1, body


def test_gradient_of_swiglu():
    [body] = bodies_of_program(hpmoe.swiglu, bf16(40, 384), direction="backward")
    assert body.moved == body.charged and 0.5 < body.vector_share() < 1.3


def test_a_row_for_all_is_loaded_once_for_each_piece():
    """It is few bytes, which the model leaves out, where a tile is one piece."""
    [body] = bodies_of_program(lambda x, b: x + b, bf16(40, 192), bf16(192))
    assert body.lists() == 3 * 192 * 2 and 0.5 < body.vector_share() < 1.3


def test_gather_moves_rows_and_indices():
    [body] = bodies_of_program(lambda x, i: mint.nn.functional.embedding(i, x), bf16(8, 192),
                               ShapeDtypeStruct((40,), "int32"), cols=192)
    assert body.lists() == 0 and body.vector_bytes == 0 and body.busy == body.charged


# --- bodies of routed rows ---

EP, TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 2, 48, 256, 128, 8, 3
LAYERS = {
    "rows": (hpmoe.moe_ffn, {}),
    "rows of float32": (hpmoe.moe_ffn, {"dtype": "float32"}),
    "dropped by position": (capped(0.5, "position"), {}),
    "dropped by weight": (capped(0.5, "probs"), {}),
    "tokens once, some dropped": (hpmoe.send_rows(scheme="deduplicated")(capped(0.5, "position")), {}),
    "copies": (hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 9, 9, 1, 1, 1, 1, 1], replicas=1), {}),
    "copies of float32": (hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 9, 9, 1, 1, 1, 1, 1], replicas=1),
                          {"dtype": "float32"}),
    "tokens once, for several": (hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), {"ep": 4, "num_peers": 2}),
}
PUTS, SENT = ("PUT", "PUT_BACK"), ("PUT", "PUT_BACK", "REPLICATE", "RETURN_GRADS")


@functools.cache
def layer_bodies(name, direction):
    """(entries that are sent, rows of the experts' that are received, bodies)"""
    f, options = LAYERS[name]
    ep, dtype, num_peers = options.get("ep", EP), options.get("dtype", "bfloat16"), options.get("num_peers")
    rng = np.random.default_rng(0)
    ids = [np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]) for _ in range(ep)]
    local = EXPERTS // ep
    avals = [ShapeDtypeStruct(shape, "int32" if i == 1 else dtype) for i, shape in enumerate((
        (ep, TOKENS, HIDDEN), (ep, TOKENS, TOP_K), (ep, TOKENS, TOP_K), (ep, local, HIDDEN, 2 * INNER),
        (ep, local, INNER, HIDDEN)))]
    puts = overlap_comm(tile_partition(f, rows=32, cols=64))
    staged = assign_queues(for_several(puts, num_peers=num_peers) if num_peers else puts, machine=npu())
    return bodies(hpmoe.spmd(staged, hpmoe.Mesh(ep)).lower(*avals, direction=direction), ids)


def assert_bytes_as_charged(body):
    """Exactly what the model charges but for lists of words: where rows go or come from, and which entries are dropped."""
    op, lists = body.op, body.moved - body.charged + body.uncopied[0]
    if op.opcode in PUTS:  # each row comes in and leaves
        assert lists == 4 * body.charged / (2 * body.part_bytes)
    elif op.opcode in ("REDUCE", "KEEP"):
        assert lists in (0, 4 * body.num_entries * op.grid[2]), op
    elif op.opcode in ("FAN_OUT", "FAN_IN"):
        assert 0 < lists < 16 * body.charged / body.part_bytes
    elif op.opcode != "DROP_COUNTS":
        assert lists == 0, (op, lists)


def assert_flops_as_charged(body):
    empty, rest = divmod(body.flops - body.busy + body.uncopied[1], body.empty_flops or 1)
    assert rest == 0 and empty == 0 or body.op.domain.first > 0 and 0 < empty <= EP, body  # room for a copy that nobody has


@pytest.mark.parametrize("name, direction", [
    ("rows of float32", "forward"), ("rows", "backward"), ("dropped by weight", "forward"),
    ("dropped by position", "backward"), ("tokens once, some dropped", "forward"), ("copies", "backward"),
    ("copies of float32", "forward"), ("tokens once, for several", "backward")])
def test_bodies_of_a_layer_agree_with_the_model(name, direction):
    seen = set()
    for body in layer_bodies(name, direction):
        opcode = body.op.opcode
        seen.add(opcode)
        assert_bytes_as_charged(body)
        if opcode in ("GMM", "WGRAD"):
            assert_flops_as_charged(body)
        elif opcode in (*SENT, "FAN_OUT", "KEEP"):
            assert body.vector_bytes == 0
        elif opcode != "NOTIFY":
            assert 0.15 < body.vector_share() < 1.3, body
    wanted = {"tokens": {"FAN_OUT", "FAN_IN"}, "copies": {"RETURN_GRADS" if direction == "backward" else "REPLICATE"},
              "dropped": {"KEEP"} if direction == "backward" else set()}.get(re.split("[ ,]", name)[0], set())
    assert wanted <= seen and PUTS[0] in seen
