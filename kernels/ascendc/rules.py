"""Refuses what the Ascend kernel cannot run: operations without a body, and sizes beyond the limits of bodies.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.kernels.ascendc.bodies import BODIES, LIMITS, MOST_COLUMNS, MOST_GUARDED, MOST_QUANTISED, MOST_ROW_BYTES
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Status, load
from hpmoe.kernels.protocol import Code
from hpmoe.primitives.quantized_products import MX_PAIR
from hpmoe.support.dtypes import BYTES, FLOATS, storage_dtype
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.columns import ADD_COLS, CUMSUM, TAKE_COLS, TOP_K
from hpmoe.tile_ops.guards import COUNT_AND_FILL, FILL_OUTSIDE, REDUCE_AND_FILL
from hpmoe.tile_ops.quantized import QUANTIZE
from hpmoe.tile_ops.quantized_matmuls import GMM_DEQUANTIZED, ROWS, Fp8Matmul, WeightFormat
from hpmoe.tile_ops.row_formats import MX_BLOCK, BlockScale, Element, RowFormat

A2_A3, ASCEND_950 = 2201, 3510  # chips by their numbers of chip.h
FP8_ROWS = RowFormat(Element.E4M3, BlockScale.FLOAT32, 0)
MXFP8_ROWS = RowFormat(Element.E4M3, BlockScale.E8M0, MX_BLOCK)
ROW_FORMATS = {A2_A3: (ROWS,), ASCEND_950: (ROWS, FP8_ROWS, MXFP8_ROWS)}  # of quantised rows and weights, by chip
ON_WHOLE_ROWS = (TOP_K, TAKE_COLS, ADD_COLS, CUMSUM)
FILLS_ROWS = (FILL_OUTSIDE, COUNT_AND_FILL, REDUCE_AND_FILL)


def check_flow(flow: tf.Taskflow, target: str, chip: int = A2_A3) -> None:
    """Raises ArgumentError, naming the operation, for what the kernel has no tile body for on a chip of chip.h."""
    who = f'fuse_persistent(target="{target}")'
    num_queues = len(flow.queues)
    check_argument(num_queues % 3 == 0, who, "the number of queues", num_queues,
                   "one AIC and two AIV queues a block, as hpmoe.machines.ascend_a3.replace(num_aic=2, num_aiv=4) has")
    for op in flow.ops:
        is_collective = op.primitive.is_blocking or op.primitive.moves_copies and not op.domain.is_copies
        check_argument(not is_collective, f"{who}: {op.label}", "its tile body", op.opcode,
                       "no collective", "Apply overlap_comm, which makes puts of collectives.")
    for op in flow.ops:
        check_argument(op.primitive is not GMM_DEQUANTIZED, f"{who}: {op.label}", "its tile body", GMM_DEQUANTIZED.name,
                       "DEQUANTIZE_WEIGHT and GMM, which tile_partition(machine=hpmoe.machines.ascend_a3) makes of it",
                       "A matrix unit does not widen weights.")
    BODIES.check(flow, who)
    for op in flow.ops:
        if op.primitive.is_matmul:
            _check_matmul(flow, op, f"{who}: {op.label}")
        if isinstance(op.params, RowFormat):
            _check_format(flow, op, op.params, chip, f"{who}: {op.label}")
        if op.primitive in FILLS_ROWS:
            cols = flow.buffers[op.operands[0].buffer].cols
            check_argument(cols <= MOST_GUARDED, f"{who}: {op.label}", "the columns that it guards", cols,
                           f"at most {MOST_GUARDED}")
        if op.primitive in ON_WHOLE_ROWS:
            _check_rows(flow, op, f"{who}: {op.label}")
    for plan in flow.routes:
        for limit in LIMITS:
            found = limit.of(plan, flow.ep_size)
            check_argument(found <= limit.most, who, limit.what, found, f"at most {limit.most}")
    opcode = flow.tasks["op"]
    for q, queue in enumerate(flow.queues):
        unit = "aic" if q < num_queues // 3 else "aiv"
        wrong = next((flow.ops[i] for i in set(opcode[queue].tolist()) if flow.ops[i].primitive.unit != unit), None)
        check_argument(wrong is None, who, f"queue {q}", wrong and wrong.label, f"work of an {unit.upper()}")


def check_image(image: np.ndarray) -> None:
    """Raises LaunchError for an image that is broken: a device has no check of its own but of the bodies it is asked for."""
    fault = load().hpmoe_image_fault(image.ctypes.data, image.nbytes)
    if fault is not None:
        raise make_error(Status(code=Code.BAD_IMAGE), fault=fault.decode())


def check_main_gradients(flow: tf.Taskflow, arrays: Sequence[np.ndarray], target: str) -> None:
    """Raises ArgumentError where a weight gradient would be added to another array than it is written to."""
    for op in flow.ops:
        if op.primitive.makes_blocks and len(op.operands) > 3:
            main = next((arrays[a.buffer] for a in op.operands[3:] if a.rows is row_modes.OWN), None)
            out = arrays[op.operands[0].buffer]
            is_in_place = main is None or out.ctypes.data == main.ctypes.data
            check_argument(is_in_place, f'fuse_persistent(target="{target}"): {op.label}', "its main gradient",
                           "another array than its result", "added to in place")


def _check_rows(flow: tf.Taskflow, op: tf.TileOp, who: str) -> None:
    buffers = [flow.buffers[a.buffer] for a in op.operands if a.buffer >= 0]
    size = max(buffer.cols for buffer in buffers) * max(4, *(b.stored_dtype.itemsize for b in buffers))
    check_argument(size <= MOST_ROW_BYTES, who, "the widest of its rows, in bytes,", size,
                   f"at most {MOST_ROW_BYTES}, of floats as float32")


def _check_format(flow: tf.Taskflow, op: tf.TileOp, form: RowFormat, chip: int, who: str) -> None:
    known, given = ROW_FORMATS[chip], RowFormat(form.element, form.scale, form.block)
    check_argument(given in known, who, "what rows are quantised to", _format_name(given),
                   " or ".join(map(_format_name, known)))
    holds_rows = not form.block and (op.primitive is QUANTIZE or isinstance(form, WeightFormat) and form.cols == 1)
    cols = flow.buffers[op.operands[1].buffer].cols if holds_rows else 0
    check_argument(cols <= MOST_QUANTISED, who, "the columns of its widest row", cols, f"at most {MOST_QUANTISED}")


def _format_name(form: RowFormat) -> str:
    """Returns a row format in words."""
    return f"{form.element.name}, {form.scale.name} for each {f'{form.block} columns' if form.block else 'row'}"


def _check_fp8(params: Fp8Matmul, width: int, who: str) -> None:
    """Raises ArgumentError unless mxfp8 rows have a multiple of MX_PAIR columns and their weight is transposed.

    `width` is the number of bytes of a row, elements and scales.
    """
    cols, advice = params.form.cols_of(width), "tile_partition(machine=hpmoe.machines.ascend_a3) dequantizes others before."
    check_argument(not params.block or cols % MX_PAIR == 0, who, "the columns of its rows of mxfp8", cols,
                   f"a multiple of {MX_PAIR}, as deep a matrix core multiplies these", advice)
    check_argument(not params.block or params.is_transposed, who, "its weight of mxfp8", "one whose blocks lie across",
                   "transposed, with blocks along the depth", advice)


def _check_matmul(flow: tf.Taskflow, op: tf.TileOp, who: str) -> None:
    out, x, other = (flow.buffers[a.buffer] for a in op.operands[:3])
    dtypes = [storage_dtype(b.dtype) for b in (x, other)]
    check_argument(dtypes[0] == dtypes[1], who, "its operand dtypes", " and ".join(dtypes), "the same for both")
    is_fp8 = isinstance(op.params, Fp8Matmul)
    results = FLOATS if is_fp8 else ("int32",) if dtypes[0] == BYTES else (dtypes[0], "float32")
    if isinstance(op.params, Fp8Matmul):
        _check_fp8(op.params, op.width(1, flow.buffers), who)
    check_argument(storage_dtype(out.dtype) in results, who, "its result", storage_dtype(out.dtype),
                   " or ".join(results))
    for access in op.operands[3:]:
        added = storage_dtype(flow.buffers[access.buffer].dtype)
        wanted = "float32" if access.rows is row_modes.OWN else dtypes[0]
        check_argument(added == wanted, who, f"the dtype of {flow.buffers[access.buffer].name}", added, wanted)
    for buffer in (x, other):
        check_argument(buffer.cols <= MOST_COLUMNS, who, f"the columns of {buffer.name}", buffer.cols,
                       f"at most {MOST_COLUMNS}")
