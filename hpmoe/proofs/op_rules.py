"""What each opcode's body can take: kinds of domains, and rows and columns of each operand; the same on every target."""

from __future__ import annotations

from typing import NamedTuple

from hpmoe import taskflow as tf


class Operand(NamedTuple):
    """Modes that an operand may have."""

    rows: tuple[str, ...]
    cols: tuple[str, ...] = ("own",)


class OpRule(NamedTuple):
    """Kinds of domains, operands of which the first `num_outputs` are written, and how many of them there must be."""

    kinds: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    required: int = 2
    num_outputs: int = 1


UNITS = ("once", "tiles", "slots")
OWN, WHOLE, PARTS = Operand(("own",)), Operand(("own",), ("all",)), ("own", "all")
ONE_EACH = Operand(("own",), ("all", "one"))
READ = Operand(("own", "one", "slot_expert"), ("own", "one"))
SUMMED, ADDED, FAN = Operand(("expert", "all")), Operand(("own", "returned")), Operand(("fan",))

RULES = {
    "PUT": OpRule(("slots",), (Operand(("peer",), PARTS), Operand(("entries", "tokens"), PARTS))),
    "PUT_BACK": OpRule(("slots",), (Operand(("entries",), PARTS), Operand(("own",), PARTS))),
    "NOTIFY": OpRule(("once",), (), 0, 0),
    "ALL_TO_ALL": OpRule(("once",), (Operand(("peer",), ("all",)), Operand(("entries", "tokens"), ("all",)))),
    "ALL_TO_ALL_BACK": OpRule(("once",), (Operand(("entries",), ("all",)), WHOLE)),
    "REPLICATE": OpRule(("once", "copies"), (Operand(("replica",), ("all",)), Operand(("all",), ("all",)))),
    "RETURN_GRADS": OpRule(("once", "copies"), (Operand(("returned",), ("all",)), Operand(("replica",), ("all",)))),
    "FAN_OUT": OpRule(("slots",), (FAN, OWN)),
    "FAN_IN": OpRule(("slots",), (OWN, FAN, Operand(("fan",), ("all",)))),
    "REDUCE": OpRule(("tiles",), (OWN, Operand(("entries",)), WHOLE)),
    "KEEP": OpRule(("tiles",), (WHOLE, Operand(("entries",), ("all",)))),
    "DROP_COUNTS": OpRule(("once",), (WHOLE,), 1),
    "GMM": OpRule(UNITS, (OWN, WHOLE, Operand(("slot_expert", "one", "all"), PARTS), Operand(("replica",), PARTS)), 3),
    "WGRAD": OpRule(("experts",), (OWN, Operand(("expert", "all"), ("block",)), SUMMED, ADDED, ADDED), 3),
    "COL_SUM": OpRule(("experts",), (OWN, SUMMED)),
    "MAP": OpRule(UNITS, (OWN, READ, READ, READ)),
    "SWIGLU": OpRule(UNITS, (OWN, OWN, OWN), 3),
    "SWIGLU_GRAD": OpRule(UNITS, (OWN,) * 5, 5, 2),
    "ROW_REDUCE": OpRule(UNITS, (ONE_EACH, WHOLE)),
    "ROW_DOT": OpRule(UNITS, (ONE_EACH, WHOLE, WHOLE), 3),
    "GATHER": OpRule(("once", "tiles"), (WHOLE, Operand(("all",), ("all",)), ONE_EACH), 3),
    "LAUNCH": OpRule(("once",), (), 0, 0),
}
MAP_INPUTS = dict.fromkeys(("copy", "neg", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu", "relu", "erf",
                            "abs", "reciprocal", "square", "sin", "cos", "sign", "softplus", "floor"), 1)
MAP_INPUTS |= dict.fromkeys(("add", "sub", "mul", "div", "pow", "maximum", "minimum", "greater", "greater_equal", "less",
                             "less_equal", "equal", "not_equal"), 2)
MAP_INPUTS["select"] = 3
NUM_PARAMS = {"MAP": 1, "GMM": 1, "ROW_REDUCE": 1, "NOTIFY": 2, "COL_SUM": 3, "WGRAD": 4, "REPLICATE": 2, "RETURN_GRADS": 2}


def rule_fault(op: tf.TileOp) -> str:
    """What of an operation no body can take, or ""; its label begins the sentence."""
    rule = RULES.get(op.opcode)
    if rule is None:
        return f"has the opcode {op.opcode}, which is none"
    if op.domain.kind not in rule.kinds:
        return f"is {op.opcode} over {op.domain.kind}; it runs over {' or '.join(rule.kinds)}"
    if op.domain.num_rows < 0 or op.domain.blocks < 1:
        return f"is over {op.domain.num_rows} rows in {op.domain.blocks} blocks"
    if op.num_outputs != rule.num_outputs:
        return f"writes {op.num_outputs} of its operands; {op.opcode} writes {rule.num_outputs}"
    if fault := _param_fault(op):
        return fault
    least = most = 1 + MAP_INPUTS[op.params[0]] if op.opcode == "MAP" else rule.required
    most = most if op.opcode == "MAP" else len(rule.operands)
    if not least <= len(op.operands) <= most:
        return f"has {len(op.operands)} operands; {op.opcode} takes {least}..{most}"
    for i, (access, modes) in enumerate(zip(op.operands, rule.operands, strict=False)):
        if access.buffer < 0 and op.opcode == "MAP":
            continue
        if access.buffer < 0:
            return f"takes a number for operand {i}; {op.opcode} takes a buffer"
        for name, mode, known in (("rows", access.rows, modes.rows), ("columns", access.cols, modes.cols)):
            if mode not in known:
                return f"takes {name} {mode!r} of operand {i}; {op.opcode} takes {' or '.join(map(repr, known))}"
    return _grid_fault(op)


def _param_fault(op: tf.TileOp) -> str:
    known = {"MAP": MAP_INPUTS, "ROW_REDUCE": ("sum", "max"), "GMM": (0, 1)}.get(op.opcode)
    if len(op.params) < NUM_PARAMS.get(op.opcode, 0):
        return f"has {len(op.params)} params; {op.opcode} takes {NUM_PARAMS[op.opcode]}"
    if known is not None and op.params[0] not in known:
        return f"has the param {op.params[0]!r}; {op.opcode} takes {', '.join(map(repr, known))}"
    return ""


def _grid_fault(op: tf.TileOp) -> str:
    """Each task of a grid writes elements of its own, and all of them together all columns that are written."""
    is_put = op.opcode in ("PUT", "PUT_BACK", "NOTIFY")
    if (op.num_peers > 0) != is_put:
        return f"has tasks for {op.num_peers} peers; {op.opcode} has them for {'one at least' if is_put else 'none'}"
    if op.cols < 0 or (op.cols and op.tile_cols < 1):
        return f"divides {op.cols} columns into tiles of {op.tile_cols}"
    in_parts = [a.cols == "own" for a in op.operands if a.buffer >= 0]
    if any(in_parts) and not op.cols:
        return "takes its own columns and has none"
    if op.grid[2] > 1 and not all(a.cols == "own" for a in op.outputs):
        return f"writes whole rows {op.grid[2]} times, once for each tile of its {op.cols} columns"
    return ""
