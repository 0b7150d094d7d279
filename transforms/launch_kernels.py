"""launch_kernels: operations as full-device kernels launched one after another, what a framework without fusion runs."""

from __future__ import annotations

from collections.abc import Iterator

from hpmoe.ir.taskflow import Taskflow, TileOp
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import TransformError, check_flags
from hpmoe.tile_ops.domains import Once
from hpmoe.tile_ops.params import LaidOut, Launched
from hpmoe.tile_ops.transfers import LAUNCH
from hpmoe.tiling.rebuild import rebuild


@transform(requires="tiles", once=True)
def launch_kernels(flow: Taskflow, *, direct: bool = False) -> Taskflow:
    """Models execution op by op, as in MindSpore: a launch before each operation waits for all earlier operations.

    The result is a Taskflow that `hpmoe.simulate` compares with a fused one. Collectives stay blocking, and the whole device
    moves their rows. Each collective has the layout kernels that an unfused program needs: they sort rows by destination
    before sending and by expert after receiving, and undo both for combine. A layout kernel reads and writes the rows once.
    The scheme "deduplicated" needs no sort by expert: it has separate operations that copy and sum rows. The host
    synchronizes once, to read the sizes of the first collective.

    `direct=True` models the kernels of decoding frameworks, which write each row directly to a reserved place: it has no
    layout kernels and no synchronization.

    Rewrite:
        all_to_all[] x -> a
        gmm[slot 0, cols 0:256] a w -> b ...
        ->
        launch[] permute        launch[] all_to_all      all_to_all[] x -> a
        launch[] sort           launch[] grouped_matmul  gmm[slot 0, cols 0:256] a w -> b ...

    Requires: tile_partition, and no overlap_comm.
    Ensures: the same values. Operations of a rank run one at a time, except an int8 matmul and the scaling of its sums.

    Args:
        f: the staged function.
        direct: True if collectives write each row directly to its reserved place.

    Raises:
        ArgumentError: direct is no bool.
        TransformError: applied out of order or twice, or after overlap_comm.

    Example:
        >>> import hpmoe
        >>> staged = launch_kernels(hpmoe.tile_partition(hpmoe.swiglu, rows=4))
        >>> [op.opcode for op in staged.lower(hpmoe.ShapeDtypeStruct((8, 6), "float32")).ops]
        ['LAUNCH', 'SWIGLU']
    """
    check_flags("launch_kernels", direct=direct)
    if any(op.num_peers for op in flow.ops):
        raise TransformError("launch_kernels: f is under overlap_comm; an unfused program has blocking collectives, so "
                             "apply launch_kernels to the result of tile_partition")
    ops: list[TileOp] = []
    is_first = True
    for op in flow.ops:
        is_alone = direct and op.primitive.is_blocking and not op.primitive.moves_copies
        ops += _direct(op) if is_alone else _kernels(flow, op, is_first and op.primitive.is_blocking)
        is_first &= not op.primitive.is_blocking
    return rebuild(flow, tuple(ops))


def _kernels(flow: Taskflow, op: TileOp, syncs_host: bool) -> Iterator[TileOp]:
    if op.primitive.moves_copies:
        yield _launch(op, op.label, is_collective=True)
        yield op
        return
    if not op.primitive.is_blocking:
        if not op.primitive.ends_product:
            yield _launch(op, op.label)
        yield op
        return
    is_back = op.primitive.is_back
    is_once = flow.routes[op.domain.route].kind.is_of_tokens
    moved = flow.buffers[op.operands[1].buffer].row_bytes
    if not (is_back and is_once):
        yield _launch(op, "unsort" if is_back else "permute", LaidOut.RECEIVED_ROWS if is_back else LaidOut.SENT_ROWS, moved)
    yield _launch(op, op.label, is_collective=True, syncs_host=syncs_host)
    yield op
    if not (is_back or is_once):
        yield _launch(op, "sort", LaidOut.RECEIVED_ROWS, moved)


def _direct(op: TileOp) -> tuple[TileOp, TileOp]:
    return _launch(op, op.label, is_collective=True), op


def _launch(op: TileOp, label: str, rows: LaidOut = LaidOut.NO_ROWS, bytes_of_row: int = 0, is_collective: bool = False,
            syncs_host: bool = False) -> TileOp:
    return TileOp(LAUNCH, label, op.equation, LAUNCH.unit, Once(1, op.domain.route), (), 0,
                  params=Launched(rows, bytes_of_row, is_collective, syncs_host))
