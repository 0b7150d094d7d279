"""Recognized spellings: a few equations that together are one primitive become that primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpmoe.ir.avals import as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import combine_rows, dispatch_rows
from hpmoe.primitives.elementwise import mul, sigmoid, silu
from hpmoe.primitives.exchange import exchange_rows, return_rows
from hpmoe.primitives.grouped_matmul import grouped
from hpmoe.primitives.matmul import matmul
from hpmoe.primitives.permute import permute_rows, sort_indices, unpermute_rows
from hpmoe.primitives.quantized_matmul import grouped_quantized
from hpmoe.primitives.route import make_route
from hpmoe.primitives.shape import cast, cast_back, slice_axis, transpose
from hpmoe.primitives.swiglu import gated

Producers = dict[Atom, Equation]
TURNED = (matmul, grouped, grouped_quantized)


def recognize(program: Program) -> Program:
    """Replaces matmul(x, transpose(w)), its like for experts, x * sigmoid(x) and silu(gate) * up as one
    primitive each, and so permute with exchange, and exchange_back with unpermute."""
    producers: Producers = {}

    def replace(builder: Builder, eqn: Equation) -> Sequence[Atom] | None:
        out = next(filter(None, (rule(builder, eqn, producers) for rule in RULES)), None)
        for made in (eqn, *builder.equations[-1:]):
            producers.update((v, made) for v in made.outputs)
        return None if out is None else [out]

    return map_equations(program, replace)


def _made_by(primitive: object, atom: Atom, producers: Producers) -> Equation | None:
    eqn = producers.get(atom) if isinstance(atom, Var) else None
    return eqn if eqn is not None and eqn.primitive is primitive else None


def _transposed_matmul(b: Builder, eqn: Equation, producers: Producers) -> Atom | None:
    """Rewrites matmul x (transpose w) to matmul[transpose] x w, also for experts' weights, each of which is transposed."""
    source = _made_by(transpose, eqn.inputs[1], producers) if eqn.primitive in TURNED else None
    if source is None or source.params["axes"] not in ((1, 0), (0, 2, 1)):
        return None
    x, _, *rest = eqn.inputs
    flag = not eqn.params.get("transpose", False)
    return b.add(eqn.primitive, x, source.inputs[0], *rest, source=eqn.source, **{**eqn.params, "transpose": flag})


def _silu(b: Builder, eqn: Equation, producers: Producers) -> Atom | None:
    if eqn.primitive is not mul:
        return None
    for x, gate in (eqn.inputs, reversed(eqn.inputs)):
        source = _made_by(sigmoid, gate, producers)
        if source is not None and source.inputs[0] is x:
            return b.add(silu, x, source=eqn.source)
    return None


def _swiglu(b: Builder, eqn: Equation, producers: Producers) -> Atom | None:
    if eqn.primitive is not mul:
        return None
    for act, up in (eqn.inputs, reversed(eqn.inputs)):
        source = _made_by(silu, act, producers)
        gate = _made_by(slice_axis, source.inputs[0], producers) if source is not None else None
        other = _made_by(slice_axis, up, producers)
        if gate is not None and other is not None and _are_halves(gate, other):
            return b.add(gated, gate.inputs[0], source=eqn.source)
    return None


def _are_halves(gate: Equation, up: Equation) -> bool:
    """Returns True if the slices are the first and the second half of the columns of one array."""
    if gate.inputs[0] is not up.inputs[0]:
        return False
    shape = gate.inputs[0].aval.shape
    half, axis = shape[-1] // 2 if isinstance(shape[-1], int) else 0, len(shape) - 1
    return (shape[-1] == 2 * half and dict(gate.params) == {"axis": axis, "start": 0, "stop": half}
            and dict(up.params) == {"axis": axis, "start": half, "stop": 2 * half})


def _dispatch(b: Builder, eqn: Equation, producers: Producers) -> Atom | None:
    """Rewrites an exchange of rows that permute sorted by the ids of the route to a dispatch."""
    source = _made_by(permute_rows, eqn.inputs[0], producers) if eqn.primitive is exchange_rows else None
    if source is None or source.params.get("start", 0) or not _same_ids(source.inputs[1], eqn.inputs[1], producers):
        return None
    return b.add(dispatch_rows, source.inputs[0], eqn.inputs[1], source=eqn.source)


def _combine(b: Builder, eqn: Equation, producers: Producers) -> Atom | None:
    """Rewrites an unpermute by the ids of the route of an exchange_back to a combine."""
    source = _made_by(return_rows, eqn.inputs[0], producers) if eqn.primitive is unpermute_rows else None
    if source is None or eqn.params.get("start", 0) or not _same_ids(eqn.inputs[1], source.inputs[1], producers):
        return None
    rows, route = source.inputs
    if eqn.params["top_k"] != as_route(route.aval).top_k:
        return None
    return b.add(combine_rows, rows, route, *eqn.inputs[2:], source=eqn.source)


def _same_ids(places: Atom, route: Atom, producers: Producers) -> bool:
    """Returns True if entries are sorted by the ids of a route."""
    by, made = _made_by(sort_indices, places, producers), _made_by(make_route, route, producers)
    return by is not None and made is not None and _uncast(by.inputs[0], producers) is _uncast(made.inputs[0], producers)


def _uncast(ids: Atom, producers: Producers) -> Atom:
    source = _made_by(cast, ids, producers)
    return ids if source is None or source.inputs[0].aval.dtype != "int32" or ids.aval.dtype != "int64" else source.inputs[0]


RULES: tuple[Callable[[Builder, Equation, Producers], Atom | None], ...] = (
    cast_back, _transposed_matmul, _silu, _swiglu, _dispatch, _combine)
