"""Other objects in place of those that an operation is made of: of the same family, or with one number changed."""

import dataclasses
from enum import Enum

from hpmoe.tile_ops import functions
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import AllRows, Copies, Experts, Notices, Once, Slots, Tiles
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.params import (
    NO_PARAMS,
    ByColumns,
    EarlyMatmul,
    Elementwise,
    LaidOut,
    Launched,
    MatrixBlock,
    Notice,
    Reduction,
    Way,
    WeightBlock,
)
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive

PRIMITIVES, ROWS, COLS = (tuple(family.members.values()) for family in (TilePrimitive, RowMode, ColMode))
DOMAINS = (Once, Notices, Tiles, Slots, Experts, AllRows, Copies)
PARAMS = (NO_PARAMS, Elementwise(functions.COPY), ByColumns(Reduction.SUM), EarlyMatmul(True), WeightBlock(2),
          MatrixBlock(2, 4), Notice(Way.OUT, 0), Launched(LaidOut.SENT_ROWS, 8, False, False))
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
    """What may stand in place of a field of params: other members and other numbers; what is no member at all, too."""
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
