"""rebuild: the taskflow of other tile operations over the same arrays."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

from hpmoe.ir.limits import check_limits
from hpmoe.ir.taskflow import Taskflow, origin_of
from hpmoe.ir.tile_op import Access, TileOp
from hpmoe.support.errors import TransformError, VerifyError
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import Domain
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive
from hpmoe.tiling.dependencies import derive_dependencies
from hpmoe.tiling.shared_memory import share_memory

PARTS_OF_OP = {"primitive": TilePrimitive, "domain": Domain, "operands": tuple, "params": Params, "num_outputs": Integral,
               "cols": Integral, "tile_cols": Integral, "num_peers": Integral, "parts": Integral}
PARTS_OF_ACCESS = {"buffer": Integral, "rows": RowMode, "cols": ColMode, "offset": Integral, "value": Real}


def rebuild(flow: Taskflow, ops: tuple[TileOp, ...], **changes: object) -> Taskflow:
    """Returns the taskflow of other tile operations on the same arrays, with tasks, dependencies and shared memory derived.

    Args:
        flow: the Taskflow that supplies all attributes that are not given.
        ops: TileOps, in an order in which they can run.
        **changes: new values of other attributes of the taskflow, such as `buffers` or `peer_orders`.

    Returns:
        A Taskflow without queues. `hpmoe.verify`, which runs after each transform, checks it.

    Raises:
        VerifyError: a put without signals has no completion flag, or a completion flag has no put.
        TransformError: an attribute of an operation has a wrong type, the taskflow is too large, or operations name
            buffers or routes that do not exist.
    """
    _check_classes(ops)
    flow = flow.replace(ops=ops, queues=(), **changes)
    try:
        check_limits(flow.name, flow.ep_size, flow.buffers, ops, flow.routes)
        flow = flow.replace(buffers=share_memory(flow.buffers, ops, flow.routes))
        deps = derive_dependencies(flow.buffers, ops, flow.routes, flow.tile_rows)
    except (TransformError, VerifyError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TransformError(f"rebuild: operations, buffers and routes of {flow.name} do not fit together: "
                             f"{type(error).__name__}: {error}") from error
    return flow.replace(deps=deps.replace(origin=origin_of(flow)))


def _check_classes(ops: Sequence[TileOp]) -> None:
    """Raises TransformError unless the parts of operations, and of their operands, are of their classes."""
    for i, op in enumerate(ops):
        _check_class(f"ops[{i}]", op, TileOp)
        for name, cls in PARTS_OF_OP.items():
            _check_class(f"{name} of ops[{i}], {op.label},", getattr(op, name), cls)
        for k, access in enumerate(op.operands):
            _check_class(f"operand {k} of ops[{i}], {op.label},", access, Access)
            for name, cls in PARTS_OF_ACCESS.items():
                _check_class(f"{name} of operand {k} of ops[{i}], {op.label},", getattr(access, name), cls)


def _check_class(what: str, part: object, cls: type) -> None:
    if not isinstance(part, cls) or isinstance(part, bool):
        where = {RowMode: ", one of hpmoe.rewriting.row_modes", ColMode: ", one of hpmoe.rewriting.col_modes"}.get(cls, "")
        kind = {Integral: "an int", Real: "a number", Access: "an Access"}.get(cls, f"a {cls.__name__}")
        raise TransformError(f"rebuild: {what} is {part!r}, a {type(part).__name__}; it must be {kind}{where}")
