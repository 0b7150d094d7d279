"""Whether the operands of a tile operation fit together: routes, dtypes, inner sizes, heights of matrices, columns."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe import taskflow as tf
from hpmoe.dtypes import storage_dtype

BY_EXPERT = ("slot_expert", "replica")
ROUTED = ("PUT", "PUT_BACK", "NOTIFY", "ALL_TO_ALL", "ALL_TO_ALL_BACK", "REPLICATE", "RETURN_GRADS", "FAN_OUT", "FAN_IN",
          "REDUCE", "KEEP", "DROP_COUNTS")
MOVING = ("PUT", "PUT_BACK", "ALL_TO_ALL", "ALL_TO_ALL_BACK", "REPLICATE", "RETURN_GRADS", "FAN_OUT", "KEEP")
INTEGERS = (("GATHER", 2), ("DROP_COUNTS", 0))


def shapes_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """What of an operation does not fit together, or ""; its label begins the sentence."""
    mine = [buffers[a.buffer] if a.buffer >= 0 else None for a in op.operands]
    rule = RULES.get(op.opcode)
    return _route_fault(op, plan) or _dtype_fault(op, mine) or (rule(op, mine, plan) if rule else "")


def is_turned_weight(op: tf.TileOp, k: int) -> bool:
    """Whether operand k is the matrix of a product that is turned: its rows are the result's columns."""
    return op.opcode == "GMM" and k >= 2 and bool(op.params[0])


def _route_fault(op: tf.TileOp, plan: tf.RoutePlan | None) -> str:
    rows = {a.rows for a in op.operands}
    if plan is None:
        return "needs a route and has none" if op.opcode in ROUTED or op.domain.kind == "slots" or "expert" in rows else ""
    if rows & set(BY_EXPERT) and op.domain.kind != "slots" and not op.moves_copies:
        return f"takes what is of a slot's expert, over {op.domain.kind}"
    if plan.placement is None and (op.moves_copies or rows & {"replica", "returned"}):
        return "is about copies, of which its route has none"
    if plan.once_of < 0 and op.opcode in ("FAN_OUT", "FAN_IN"):
        return "fans rows out or in, and its route is not one to ranks"
    return ""


def _dtype_fault(op: tf.TileOp, mine: Sequence[tf.Buffer | None]) -> str:
    dtypes = [storage_dtype(b.dtype) if b else "float32" for b in mine]
    if op.opcode in MOVING:
        return "" if dtypes[0] == dtypes[1] else f"moves {dtypes[1]} to {dtypes[0]}"
    for i, dtype in enumerate(dtypes):
        if (dtype == "int32") != ((op.opcode, i) in INTEGERS):
            return f"takes {mine[i].name}, which is of {dtype}"
    return ""


def _width(op: tf.TileOp, mine: Sequence[tf.Buffer], i: int) -> int:
    """Columns of an operand from its offset on."""
    return mine[i].cols - op.operands[i].offset


def _gmm(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    turned, inner = bool(op.params[0]), _width(op, mine, 1)
    for access, weight in zip(op.operands[2:], mine[2:], strict=True):
        height = weight.rows_per_expert if access.rows in BY_EXPERT else weight.num_rows
        shape = f"matrices of {height} rows of {weight.cols}" + (", turned" if turned else "")
        if access.cols != ("all" if turned else "own"):
            return f"takes columns {access.cols!r} of {shape}"
        if (weight.cols if turned else height) != inner:
            return f"multiplies rows of {inner} columns by {shape}"
        if turned and not 0 <= access.offset <= height - op.cols:
            return f"takes rows {access.offset}:{access.offset + op.cols} of {shape}"
    is_alike = [(a.offset, b.cols, b.rows_per_expert, b.dtype) for a, b in zip(op.operands[2:], mine[2:], strict=True)]
    if len(is_alike) == 2 and (op.operands[2].rows != "slot_expert" or is_alike[0] != is_alike[1]):
        return "takes copies that are not like its weights"
    return ""


def _map(op: tf.TileOp, mine: Sequence[tf.Buffer | None], plan: tf.RoutePlan | None) -> str:
    for access, buffer in zip(op.operands, mine, strict=True):
        if buffer and access.rows == "slot_expert" and buffer.rows_per_expert:
            return f"takes one row of an expert of {buffer.name}, which has {buffer.rows_per_expert}"
    return ""


def _sum(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """All rows of a static array, or those of each expert."""
    mode = "all" if plan is None else "expert"
    for access, buffer in list(zip(op.operands, mine, strict=True))[1:3]:
        if access.rows != mode:
            return f"sums rows {access.rows!r} of {buffer.name}, not {mode!r}"
        if plan is None and op.params[1] != buffer.num_rows:
            return f"sums {op.params[1]} rows of {buffer.name}, which has {buffer.num_rows}"
    return ""


def _gradient(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    out, height, modes = mine[0], _width(op, mine, 1), [a.rows for a in op.operands[3:]]
    if out.rows_per_expert not in (0, height):
        return f"makes matrices of {height} rows in {out.name}, which has those of {out.rows_per_expert}"
    if len(set(modes)) < len(modes):
        return "adds two arrays of a kind"
    for access, buffer in zip(op.operands[3:], mine[3:], strict=True):
        is_main = (buffer.num_rows, buffer.dtype, out.dtype) == (out.num_rows, "float32", "float32")
        fits = buffer.rows_per_expert == height if access.rows == "returned" else is_main
        if not fits or buffer.cols != out.cols or access.offset != op.operands[0].offset:
            return f"adds {buffer.name}, which is not like {out.name}"
    return _sum(op, mine, plan)


def _copies(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    for buffer in mine:
        if buffer.rows_per_expert != op.params[1]:
            return f"moves matrices of {op.params[1]} rows, and those of {buffer.name} have {buffer.rows_per_expert}"
    return ""


def _reduce(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan) -> str:
    if len(mine) > 2 and _width(op, mine, 2) != plan.top_k:
        return f"has {_width(op, mine, 2)} weights for each of a token's {plan.top_k} choices"
    return _tokens(op, plan)


def _tokens(op: tf.TileOp, plan: tf.RoutePlan) -> str:
    """Its rows are tokens, as only these have choices."""
    if op.domain.num_rows != plan.num_tokens or not op.domain.clipped:
        kept = "" if op.domain.clipped else ", padding included"
        return f"has {op.domain.num_rows} rows{kept}, and its route {plan.num_tokens} tokens"
    return ""


def _keep(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan) -> str:
    widths = _width(op, mine, 0), mine[1].cols
    if widths != (plan.top_k, 1) or mine[0].cols != plan.top_k:
        return f"keeps {widths[1]} columns of entries in {widths[0]}, of {plan.top_k} choices"
    return _tokens(op, plan)


def _drop_counts(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan) -> str:
    if _width(op, mine, 0) != plan.num_experts:
        return f"counts {_width(op, mine, 0)} experts of {plan.num_experts}"
    return ""


def _fan_in(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan) -> str:
    return "" if len(mine) < 3 or _width(op, mine, 2) == 1 else f"has {_width(op, mine, 2)} weights for a row"


def _one_column(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    if op.operands[0].cols == "all" and _width(op, mine, 0) != 1:
        return f"makes one column of {_width(op, mine, 0)}"
    if op.opcode == "ROW_DOT" and _width(op, mine, 1) != _width(op, mine, 2):
        return f"multiplies rows of {_width(op, mine, 1)} and {_width(op, mine, 2)} columns"
    return ""


def _gather(op: tf.TileOp, mine: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    out, source = _width(op, mine, 0), _width(op, mine, 1)
    if out != source:
        return f"gathers rows of {source} columns in {out}"
    return "" if op.operands[2].cols == "one" or _width(op, mine, 2) == 1 else "gathers by rows of several columns"


RULES = {"GMM": _gmm, "MAP": _map, "COL_SUM": _sum, "WGRAD": _gradient, "REPLICATE": _copies, "RETURN_GRADS": _copies,
         "REDUCE": _reduce, "KEEP": _keep, "DROP_COUNTS": _drop_counts, "FAN_IN": _fan_in, "ROW_REDUCE": _one_column,
         "ROW_DOT": _one_column, "GATHER": _gather}
