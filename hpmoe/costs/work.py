"""Costs of tasks on a machine: time of their own worker, bytes through L2 and on links; one rule for each tile body."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.costs.footprint import (
    FAN,
    FOOTPRINT,
    STREAM,
    Footprint,
    Footprints,
    block_heights,
    is_transfer,
    returned_matrices,
)
from hpmoe.ir import taskflow as tf
from hpmoe.ir.tile_op import MAX_OPERANDS
from hpmoe.machines.machine import Body, Machine
from hpmoe.support.dtypes import INTEGERS, storage_dtype
from hpmoe.tile_ops.functions import COPY

MAX_FOOTPRINTS = MAX_OPERANDS + 2  # of each operand, and once more of the two that a product multiplies
WORK = np.dtype([("core_fixed", "f8"), ("core_row", "f8"), ("few_fixed", "f8"), ("few_row", "f8"), ("core_fan", "f8"),
                 ("link_row", "f8"), ("skinny_rows", "i8"), ("granule", "i8"), ("num_footprints", "i8"),
                 ("landing", FOOTPRINT), ("footprints", FOOTPRINT, MAX_FOOTPRINTS)])
# Machine.vector.bytes_per_us is of bodies whose instructions work through five bytes for each that is moved, as SwiGLU's do.
COMPUTED_PER_MOVED = 5


class Work:
    """Costs of the tasks of a Taskflow on a machine: microseconds of workers, and bytes in memory and on links.

    Attributes:
        table: WORK [num_ops, 4]. Column 0 is a task of a full tile of columns, 1 of the last, narrower tile; 2 and 3 are
            the same for the last, lower block of rows of a weight's gradient. `entries` returns the record of a task. The
            function `core_us` turns a record into microseconds of a worker; a footprint is fixed + rows * row bytes; a
            transferred row is link_row bytes.
        by_routing: the table for a known routing. A token that was received once may be copied to several experts of the
            rank: core_fan is the microseconds of a copy. In `table`, core_row includes the expected copies instead.
        footprints: the arrays and parts of arrays that footprints of the table refer to.
    """

    def __init__(self, flow: tf.Taskflow, machine: Machine):
        self.flow, self.machine = flow, machine
        self.table = np.zeros((len(flow.ops), 4), WORK)
        self.table["granule"] = 1
        self.footprints = Footprints(flow)
        for i, op in enumerate(flow.ops):
            full, last = (op.col_range(i, i + 1)[1] for i in (0, op.grid[2] - 1))
            tiles = [(cols, height) for height in block_heights(flow, op) for cols in (full, last)]
            for k, tile in enumerate(tiles):
                if (same := tiles.index(tile)) < k:
                    self.table[i, k] = self.table[i, same]
                else:
                    self._fill(self.table[i, k], op, *tile)
        self.by_routing, self.table = self.table, self.table.copy()
        for i, op in enumerate(flow.ops):
            if op.has_fan:
                self.table[i] = with_fans(self.table[i], flow.routes[op.domain.route].kind.rows_of_token())

    def entries(self, tasks: np.ndarray) -> np.ndarray:
        """Returns the table entry of each of some of the flow's tasks."""
        op = tasks["op"]
        tile_cols, blocks = (np.array(n, np.int64) for n in zip(*((op.tile_cols, op.domain.blocks) for op in self.flow.ops),
                                                                strict=True))
        is_last = tasks["row"] % blocks[op] == blocks[op] - 1
        return self.table[op, 2 * is_last + (tasks["cols"] < tile_cols[op])]

    def _fill(self, work: np.void, op: tf.TileOp, cols: int, height: int) -> None:
        written = self.machine.memory.write_cost
        footprints = [t._replace(cost=written if i < op.num_outputs else 1.0) for i in range(len(op.operands))
                      if (t := self.footprints.of(op, i, cols, height)) is not None]
        footprints += self._read_again(op, cols, height, footprints)
        work["num_footprints"], work["landing"] = len(footprints), self.footprints.landing(op, cols)._replace(cost=written)
        for i, footprint in enumerate(footprints):
            work["footprints"][i] = footprint
        if op.primitive.is_matmul:
            self._fill_matmul(work, op, cols, height)
        elif op.primitive.is_launch:
            self._fill_launch(work, op)
        else:
            self._fill_moved(work, op, cols, footprints)

    def _fill_matmul(self, work: np.void, op: tf.TileOp, cols: int, height: int) -> None:
        body, inner = self._body(op), height or self._buffer(op, 1).cols
        work["core_fixed"], work["core_row"] = self._matmul_us(op, body, cols, inner)
        if not body:  # an NPU adds what copies return by multiplying it with a unit matrix
            flops = returned_matrices(self.flow, op) * 2.0 * height * cols * height
            work["core_fixed"] += flops / self._matmul_rate(op, body)
        work["granule"] = self._granule(op)
        few = self._body(op, rows=1)
        if few and (body is None or (few.kind, few.dtype) == (body.kind, body.dtype)):
            work["skinny_rows"] = few.most_rows
            work["few_fixed"], work["few_row"] = self._matmul_us(op, few, cols, inner)

    def _fill_launch(self, work: np.void, op: tf.TileOp) -> None:
        machine, launched = self.machine, op.params
        work["core_fixed"] = (machine.host.launch_us + launched.is_collective * machine.host.collective_us
                              + launched.syncs_host * machine.host.sync_us)
        work["core_row"] = 2.0 * launched.row_bytes / device_copy_rate(machine)

    def _fill_moved(self, work: np.void, op: tf.TileOp, cols: int, footprints: list[Footprint]) -> None:
        """Fills in `work` for an operation that is bound by bytes or instructions, from `footprints`, which stay unchanged.

        `cols` is the number of columns of a task.
        """
        machine, body, moves = self.machine, self._body(op), is_transfer(op)
        own = [t for t in footprints if t.part != FAN]
        fixed, row = sum(t.fixed for t in own), sum(t.row for t in own)
        fan = sum(t.row for t in footprints if t.part == FAN)
        rate = machine.vector.copy_bytes_per_us if moves else machine.vector.bytes_per_us
        if moves and not (op.domain.is_copies or op.num_peers):  # a collective
            rate = device_copy_rate(machine)
        work["link_row"] = row if moves else 0.0
        row = max(row, self._computed(op, cols) / COMPUTED_PER_MOVED)
        if body:
            rate = machine.vector.bytes_per_us * body.share
            row, fan = (_stretched(bytes_, body, cols or self._buffer(op, 1).cols, 1) for bytes_ in (row, fan))
        work["core_row"], work["core_fan"] = row / rate, fan / rate
        work["core_fixed"] = fixed / rate + (body.rows if body else 0.0) * work["core_row"]

    def _matmul_us(self, op: tf.TileOp, body: Body | None, cols: int, inner: int) -> tuple[float, float]:
        """Returns (fixed microseconds, microseconds per row) of a task."""
        row = _stretched(2.0 * inner * cols, body, cols, inner) / self._matmul_rate(op, body)
        return self.machine.cube.fill_us + (body.rows if body else 0.0) * row, row

    def _body(self, op: tf.TileOp, rows: int = 0) -> Body | None:
        """Returns the measured Body of the operation's tasks with `rows` rows, or any number."""
        if not self.machine.bodies or len(op.operands) < 2 or op.primitive.is_launch:
            return None
        dtype = storage_dtype(self._buffer(op, 1).dtype) if op.operands[1].buffer >= 0 else ""
        return self.machine.body(op.kind, dtype, rows)

    def _computed(self, op: tf.TileOp, cols: int) -> float:
        """Returns the float32 bytes that vector instructions compute for each row, for a body that needs many instructions.
        """
        passes = op.primitive.work.passes + op.params.passes
        if not self.machine.unified and (of_npu := self._npu_passes(op)):
            return 4.0 * of_npu * (cols or self._buffer(op, op.primitive.work.npu_operand).cols)
        return 4.0 * passes * (cols or self._buffer(op, 1).cols) if passes else 0.0

    def _npu_passes(self, op: tf.TileOp) -> int:
        """Returns the passes of an NPU's own body, which replaces the measured one, or 0."""
        dtypes = [self.flow.buffers[a.buffer].dtype for a in op.operands if a.buffer >= 0]
        if not any(dtype in INTEGERS for dtype in dtypes[op.num_outputs:]):
            return op.primitive.work.npu_passes or op.params.npu_passes
        only_moves = op.params.function is COPY and dtypes[0] == dtypes[1]
        return 0 if only_moves else op.primitive.work.integer_passes or op.primitive.work.npu_passes

    def _granule(self, op: tf.TileOp) -> int:
        """Returns the rows that a matmul computes at once; a weight's gradient sums over them, in float32 half as many."""
        is_halved = op.primitive.makes_blocks and storage_dtype(self._buffer(op, 1).dtype) == "float32"
        return max(1, self.machine.cube.granule // (2 if is_halved else 1))

    def _matmul_rate(self, op: tf.TileOp, body: Body | None) -> float:
        machine = self.machine
        return machine.cube.flops_per_us * body.share if body else machine.cube.rate(
            storage_dtype(self._buffer(op, 1).dtype))

    def _read_again(self, op: tf.TileOp, cols: int, block: int, footprints: list[Footprint]) -> list[Footprint]:
        """Returns footprints of what every part of a matmul tile except the first reads again, from L2."""
        if not op.primitive.is_matmul:
            return []
        height, width = _part_of_tile(self.machine)
        rows = block or self.flow.tile_rows
        rows = min(rows, op.domain.num_rows) if op.domain.is_tiles else rows
        times = -(-cols // width) - 1, -(-rows // height) - 1
        return [footprint._replace(fixed=footprint.fixed * again, row=footprint.row * again)
                for again, footprint in zip(times, footprints[1:3], strict=True) if again > 0]

    def _buffer(self, op: tf.TileOp, operand: int) -> tf.Buffer:
        return self.flow.buffers[op.operands[operand].buffer]


def with_fans(work: np.ndarray, fans: float) -> np.ndarray:
    """Returns rows of `Work.by_routing` if each token has `fans` rows of experts."""
    out = work.copy()
    out["core_row"] += fans * out["core_fan"]
    out["core_fan"] = 0.0
    is_fan = out["footprints"]["part"] == FAN
    out["footprints"]["row"][is_fan] *= fans
    out["footprints"]["part"][is_fan] = STREAM
    return out


def _stretched(work: float, body: Body | None, cols: int, inner: int) -> float:
    """Returns `work`, the work of one row, times the inefficiency of a small task; unchanged if the body is not measured.

    The task has `cols` columns, and sums `inner` products for each element.
    """
    return work * (1 + body.cols / max(cols, 1)) * (1 + body.inner / max(inner, 1)) if body else work


def _part_of_tile(machine: Machine) -> tuple[int, int]:
    """Returns rows and columns of a matmul tile whose float32 sums fit their memory, twice as wide as high."""
    height = max(1, math.isqrt(int(machine.cube.accumulator_bytes) // 8))
    return height, 2 * height


def device_copy_rate(machine: Machine) -> float:
    """Returns the bytes per microsecond, read or written, of a kernel of the whole device that only moves rows."""
    workers = len(machine.queues_of("aiv"))
    copied = 2 / (1 + machine.memory.write_cost) * machine.memory.bytes_per_us  # as many bytes are read as written
    return min(workers * machine.vector.copy_bytes_per_us, copied)


def link_rate(machine: Machine, ep_size: int) -> float:
    """Returns the bytes per microsecond that one worker sends to the farthest ranks while others leave it the link."""
    link = machine.link.rate(ep_size) if ep_size <= machine.link.node_size else machine.link.node_bytes_per_us
    return min(machine.link.worker_bytes_per_us, link)


def put_rate(machine: Machine, ep_size: int) -> float:
    """Returns the rate of puts of rows that it also copies."""
    return min(link_rate(machine, ep_size), machine.vector.copy_bytes_per_us, machine.l2.worker_bytes_per_us)


def core_us(work: np.ndarray | np.void, rows: np.ndarray | float) -> np.ndarray:
    """Returns the worker microseconds of tasks with `rows` rows, [n]; `work` is one WORK or one for each, [n].

    Rows count in whole granules; a matmul of few rows has fixed and row times of its own.
    """
    granules = -(-rows // work["granule"]) * work["granule"]
    few = np.where(rows > 0, work["few_fixed"] + granules * work["few_row"], 0.0)
    return np.where((work["skinny_rows"] > 0) & (rows <= work["skinny_rows"]), few,
                    work["core_fixed"] + granules * work["core_row"])
