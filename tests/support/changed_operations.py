"""Every change of one attribute of an operation, buffer or route: what a transform of one's own may get wrong before it
rebuilds a taskflow. Each is (what, whether the operations still say the same function, change of the flow)."""

import dataclasses
from enum import Enum

from hpmoe.routing.capacity import Capacity
from hpmoe.tile_ops import functions
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import AllRows, CompletionFlags, Copies, Experts, Once, Slots, Tiles
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.params import (
    NO_PARAMS,
    ByColumns,
    CompletionFlag,
    EarlyMatmul,
    Elementwise,
    LaidOut,
    Launched,
    Leg,
    MatrixBlock,
    Reduction,
    WeightBlock,
)
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive
from hpmoe.tiling.rebuild import rebuild

PRIMITIVES, ROWS, COLS = (tuple(family.members.values()) for family in (TilePrimitive, RowMode, ColMode))
DOMAINS = (Once, CompletionFlags, Tiles, Slots, Experts, AllRows, Copies)
PARAMS = (NO_PARAMS, Elementwise(functions.COPY), ByColumns(Reduction.SUM), EarlyMatmul(True), WeightBlock(2),
          MatrixBlock(2, 4), CompletionFlag(Leg.DISPATCH, 0), Launched(LaidOut.SENT_ROWS, 8, False, False))
FUNCTIONS = (functions.ADD, functions.MUL, functions.COPY, functions.NEG, functions.SELECT, functions.MAXIMUM,
             functions.SILU, "where")


def numbers(value):
    return value - 1, value + 1, 0, -1, 2 * value


def names_of(x):
    return [field.name for field in dataclasses.fields(x)]


def as_domain(domain, cls):
    """A domain of another class, with the numbers that both can have."""
    rows = vars(domain).get("height", domain.num_rows)
    told = dict.fromkeys(("clipped", "of_tokens"), vars(domain).get("of_tokens", domain.clipped))
    known = {"num_rows": rows, "height": rows, "count": domain.num_rows, **told, **vars(domain)}
    return cls(**{name: known[name] for name in names_of(cls) if name in known})


def other_domains(domain):
    """(name of its class, domain) of every other class."""
    return [(cls.__name__, as_domain(domain, cls)) for cls in DOMAINS if cls is not type(domain)]


def other_values(value):
    """Returns replacements for a field of params: other members, other numbers, and values that are no member."""
    if isinstance(value, Function):
        return [f for f in FUNCTIONS if f is not value]
    members = [m for m in type(value) if m is not value] if isinstance(value, Enum) else []
    return members + [int(n) for n in numbers(int(value))] + ([not value] if isinstance(value, bool) else [])


def other_params(params):
    """(name of a field or class, what it was, what it is, params)."""
    for name in names_of(params):
        old = getattr(params, name)
        for new in other_values(old):
            yield name, old, new, dataclasses.replace(params, **{name: new})
    for new in PARAMS:
        if type(new) is not type(params):
            yield "class", type(params).__name__, type(new).__name__, new


# Params that say how the work is cut, and not what it is.
CUTS = (("WGRAD", "block"), ("REPLICATE", "block"), ("RETURN_GRADS", "block"), ("NOTIFY", "buffer"))

# Attributes of domains that say which rows an operation is about.
OTHER_ROWS = ("clipped", "of_tokens", "height", "first_expert")


def mutations(flow):
    """Every (name, whether it is still the same function, function without arguments that makes the mutant)."""
    for i, op in enumerate(flow.ops):
        for what, same, new in of_op(flow, op):
            yield f"ops[{i}] {op.opcode} {what}", same, remake(flow, ops=(*flow.ops[:i], *new, *flow.ops[i + 1:]))
    for name, changes in (("buffers", of_buffer), ("routes", of_route)):
        objects = getattr(flow, name)
        for i, one in enumerate(objects):
            for what, same, new in changes(flow, one):
                yield f"{name}[{i}] {what}", same, remake(flow, **{name: (*objects[:i], new, *objects[i + 1:])})
    for step in (-1, 1):
        yield f"tile_rows {step:+}", True, remake(flow, tile_rows=flow.tile_rows + step)
        yield f"ep_size {step:+}", False, remake(flow, ep_size=flow.ep_size + step)


def remake(flow, ops=None, **changes):
    return lambda: rebuild(flow.replace(**changes), flow.ops if ops is None else ops)


def of_op(flow, op):
    """(what, whether the same function, operations in its place)"""
    yield "twice", False, (op, op)
    yield "missing", False, ()
    for what, same, new in of_one(flow, op):
        yield what, same, (new,)


def of_one(flow, op):
    yield from fields(op, ("cols", "tile_cols", "num_peers", "num_outputs"), numbers)
    yield from fields(op, ("unit",), others_of(("aic", "aiv")))
    yield from fields(op, ("signal",), others_of(("tile", "expert", "peer")))
    yield from fields(op, ("label",), others_of(("another name",)))
    yield from fields(op, ("equation",), numbers)
    yield from fields(op, ("primitive",), others_of(PRIMITIVES), same=False)
    for name, old, new, params in other_params(op.params):
        yield f"params.{name} {old} -> {new}", (op.opcode, name) in CUTS, op.replace(params=params)
    for what, same, domain in of_domain(flow, op.domain):
        yield f"domain.{what}", same, op.replace(domain=domain)
    for k, access in enumerate(op.operands):
        for what, new in of_access(flow, access):
            operands = (*op.operands[:k], new, *op.operands[k + 1:])
            yield f"operands[{k}].{what}", False, op.replace(operands=operands)
    for k in range(len(op.operands) - 1):
        a, b = op.operands[k:k + 2]
        yield f"operands[{k}] exchanged", False, op.replace(operands=(*op.operands[:k], b, a, *op.operands[k + 2:]))
    if op.operands:
        yield "without its last operand", False, op.replace(operands=op.operands[:-1])
        yield "with its last operand twice", False, op.replace(operands=(*op.operands, op.operands[-1]))


def of_domain(flow, domain):
    for name, other in other_domains(domain):
        yield f"class {type(domain).__name__} -> {name}", True, other
    for name in names_of(domain):
        choices = others_of(range(-1, len(flow.routes) + 1)) if name == "route" else numbers
        if isinstance(getattr(domain, name), bool):
            choices = others_of((False, True))
        yield from fields(domain, (name,), choices, same=name not in OTHER_ROWS)
    if "blocks" in names_of(domain):
        yield "twice as many blocks", True, dataclasses.replace(domain, size=2 * domain.size, blocks=2 * domain.blocks)
    if "num_rows" in names_of(domain):
        for what, step in (("more", 1), ("less", -1))[:domain.size]:
            rows = max(0, domain.num_rows + step * flow.tile_rows)
            yield f"a tile {what}", True, dataclasses.replace(domain, size=domain.size + step, num_rows=rows)


def of_access(flow, access):
    named = (*fields(access, ("buffer",), others_of(range(-1, len(flow.buffers) + 1))),
             *fields(access, ("rows",), others_of(ROWS)), *fields(access, ("cols",), others_of(COLS)),
             *fields(access, ("offset",), numbers), *fields(access, ("value",), others_of((2.0,))))
    return [(what, new) for what, _, new in named]


def of_buffer(flow, buffer):
    indices = range(-1, len(flow.buffers) + 1)
    yield from fields(buffer, ("cols", "rows_per_expert"), numbers)
    yield from fields(buffer, ("num_rows",), lambda rows: (0, 1) if rows is None else (None, *numbers(rows)))
    yield from fields(buffer, ("route",), others_of(range(-1, len(flow.routes) + 1)))
    is_view = flow.buffers[buffer.storage] is not buffer  # then of another array it is another value
    yield from fields(buffer, ("storage",), others_of(indices), same=not is_view)
    yield from fields(buffer, ("memory",), others_of(indices))
    yield from fields(buffer, ("role",), others_of(("input", "output", "saved", "temporary", "nothing")))
    yield from fields(buffer, ("dtype",), others_of(("float32", "bfloat16", "int32", "nothing")), same=False)
    yield from fields(buffer, ("name",), others_of(("another name",)))
    yield from fields(buffer, ("shape",), others_of(((1,), (3, 5))), same=False)


def of_route(flow, plan):
    yield from fields(plan, ("max_rows",), numbers, same=False)
    yield from fields(plan, ("expected_rows", "tile_rows"), numbers)
    yield from fields(plan, ("return_tokens",), lambda n: (*numbers(n), n + flow.tile_rows, n - flow.tile_rows))
    yield from fields(plan, ("ids", "weights"), others_of(range(-1, len(flow.buffers) + 1)), same=False)
    yield from fields(plan, ("of",), others_of(range(-1, len(flow.routes) + 1)), same=False)
    one = Capacity(1.0, "position")
    direct, sizes = unwrapped(plan.kind), ("ep_size", "num_tokens", "num_choices", "num_model_experts", "alignment")
    for what, same, new in (*fields(direct, sizes, numbers, same=False), *fields(direct, ("capacity",), others_of(
            (None, one, dataclasses.replace(one, policy="probs"))), same=False)):
        yield what, same, dataclasses.replace(plan, kind=rewrapped(plan.kind, new))
    if plan.placement:
        yield "without copies", False, dataclasses.replace(plan, kind=plan.kind.kind)


def unwrapped(kind):
    """The Direct kind of a route inside the kinds that wrap it."""
    return unwrapped(kind.kind) if hasattr(kind, "kind") else kind


def rewrapped(kind, direct):
    """A kind of route around another Direct kind."""
    return dataclasses.replace(kind, kind=rewrapped(kind.kind, direct)) if hasattr(kind, "kind") else direct


def fields(x, names, choices, same=True):
    """(what, `same`, x with another value) for each of the choices of each attribute."""
    for name in names:
        old = getattr(x, name)
        for value in dict.fromkeys(choices(old)):
            if value != old or type(value) is not type(old):
                yield f"{name} {old} -> {value}", same, dataclasses.replace(x, **{name: value})


def others_of(choices):
    return lambda value: [c for c in choices if c != value]
