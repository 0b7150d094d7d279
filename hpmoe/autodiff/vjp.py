"""Reverse-mode differentiation of a Program: the backward pass is just another Program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.program import (
    Atom,
    Builder,
    Equation,
    Literal,
    Program,
    Var,
    is_differentiable,
    live_equations,
    program_window,
    substitute,
)
from hpmoe.ir.stages import deciding_vars, views_of_inputs
from hpmoe.ir.token_rows import token_vars
from hpmoe.primitives.draw import draw
from hpmoe.primitives.elementwise import add, mul
from hpmoe.primitives.grouped_matmul import grouped
from hpmoe.primitives.grouped_weight_grad import grouped_weight_grad
from hpmoe.primitives.matmul import weight_grad
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.row_dot import row_dot
from hpmoe.primitives.shape import cast_back, dtype_param, in_dtype, is_widening
from hpmoe.support.errors import ProgramError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.known import known


@dataclasses.dataclass(frozen=True)
class Linearized:
    """A Program split for differentiation.

    Attributes:
        forward: the program, returning its saved values after its own outputs.
        backward: from (some inputs, saved values, output cotangents, main gradients) to the cotangents of the
            differentiable inputs; for those with a main gradient, its sum with their cotangent.
        kept_inputs: indices of the program inputs that the backward reads, in its order; the saved values follow them.
        differentiable: indices of the program inputs whose cotangents the backward returns, in its order; no frozen ones.
        cotangents: indices of the program outputs whose cotangents the backward takes, in its order.
    """

    forward: Program
    backward: Program
    kept_inputs: tuple[int, ...]
    differentiable: tuple[int, ...]
    cotangents: tuple[int, ...]


@suggests_keywords
def vjp(program: Program) -> Program:
    """Returns the backward Program of `program`, built from the vjp rule of each primitive.

    Its inputs are those inputs of `program` that it reads, the values saved by the forward pass (`saved_0`, ...), and
    one cotangent for each floating-point output (`d_out`, or `d_out_0`, ...); its outputs are the cotangents of the
    floating-point inputs, in order. The backward Program recomputes routes from the ids, and all values that are not in
    `program.saves`. The gradient of the routing weights needs no saved expert output.

    Args:
        program: a Program, as `hpmoe.trace` returns it.

    Raises:
        ProgramError: a primitive has no vjp rule.
        ArgumentError: program is no Program.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> print(hpmoe.rewriting.vjp(hpmoe.trace(lambda x: x * x, ms.Tensor([1.0, 2.0], ms.float32))))
        # <lambda>_vjp
        { lambda x:f32[2] d_out:f32[2]
          let a:f32[2] = mul d_out x
              b:f32[2] = add a a
          in (b,) : f32[2] }
    """
    check_argument(isinstance(program, Program), "hpmoe.rewriting.vjp", "program", f"a {type(program).__name__}",
                   "a Program, as hpmoe.trace makes it")
    return linearize(program).backward


def linearize(program: Program) -> Linearized:
    """Splits `program` into a forward that saves what the backward needs, and that backward."""
    builder = Builder()
    outputs = [i for i, a in enumerate(program.outputs[:program.num_results]) if is_differentiable(a)]
    seeds = [Var(program.outputs[i].aval) for i in outputs]
    grads = _transpose(program, builder, [(program.outputs[i], seed) for i, seed in zip(outputs, seeds, strict=True)])
    wanted = [i for i, v in enumerate(program.inputs) if v in _sources(program)]
    results = [grads.get(program.inputs[i]) or _zeros(builder, program.inputs[i]) for i in wanted]
    equations, results = _simplify(program, builder.equations, results)
    mains = {i: Var(ShapeDtypeStruct(v.aval.shape, "float32")) for i, v in enumerate(program.inputs)
             if i in wanted and v in program.main_grads}
    equations, results = _accumulate(equations, results, [mains.get(i) for i in wanted])
    return _split(program, equations, tuple(results), tuple(outputs), seeds, tuple(wanted), mains)


def _transpose(program: Program, builder: Builder, seeds: list[tuple[Atom, Var]]) -> dict[Atom, Atom]:
    """Runs the vjp rules from the last equation to the first, summing the cotangents of each variable."""
    grads: dict[Atom, Atom] = {}

    def accumulate(atom: Atom, grad: Atom | None) -> None:
        if grad is not None and is_differentiable(atom):
            grad = in_dtype(builder, grad, atom.aval.dtype)
            grads[atom] = builder.add(add, grads[atom], grad) if atom in grads else grad

    for atom, seed in seeds:
        accumulate(atom, seed)
    active = _depends_on_inputs(program)
    for eqn in reversed(program.equations):
        cotangents = [grads.get(v) for v in eqn.outputs]
        if all(c is None for c in cotangents) or not active.intersection(eqn.outputs):
            continue
        cotangents = [c if c is not None else _zeros(builder, v) for c, v in zip(cotangents, eqn.outputs, strict=True)]
        rule, builder.source = eqn.primitive.rule("vjp", "vjp"), eqn.source
        for atom, grad in zip(eqn.inputs, rule(builder, eqn, cotangents), strict=True):
            _check_shape(program, eqn, atom, grad)
            accumulate(atom, grad)
    builder.source = ""
    return grads


def _check_shape(program: Program, eqn: Equation, atom: Atom, grad: Atom | None) -> None:
    """Raises ProgramError if the cotangent that the vjp rule of `eqn` returned has another shape than its input `atom`."""
    if grad is not None and is_differentiable(atom) and grad.aval.shape != atom.aval.shape:
        index = program.equations.index(eqn)
        raise ProgramError(f"vjp: the vjp rule of {eqn.primitive.name} returned {grad.aval} as the cotangent of {atom.aval} "
                           f"in {program.name}; it must be of the same shape\n{program_window(program, index)}")


def _sources(program: Program) -> set[Var]:
    """Returns the inputs of a Program that gradients are taken of."""
    return {v for v in program.inputs if is_differentiable(v) and v not in program.frozen}


def _depends_on_inputs(program: Program) -> set[Var]:
    active = _sources(program)
    for eqn in program.equations:
        if any(a in active for a in eqn.inputs if isinstance(a, Var)):
            active.update(eqn.outputs)
    return active


def _zeros(builder: Builder, var: Var) -> Var:
    zero = Literal(0.0)
    return builder.add(broadcast_to, zero, shape=var.aval.shape, **dtype_param(var.aval.dtype, zero.aval.dtype))


def _simplify(program: Program, equations: list[Equation],
              results: list[Atom]) -> tuple[tuple[Equation, ...], list[Atom]]:
    """Simplifies the `equations` of the backward pass of `program`; returns those that `results` need, and new results.

    Multiplies rows by their factors after a matmul, so that gradients of routing weights need no saved expert output.
    Computes equal equations once.
    """
    producer: dict[Atom, Equation] = {v: e for e in (*program.equations, *equations) for v in e.outputs}
    for rule in (cast_back, _dot_before_matmul, _scale_after_matmul, _scale_narrow_side):
        builder, mapping = Builder(), {}
        for eqn in equations:
            (eqn,) = substitute([eqn], mapping)
            start = len(builder.equations)
            out = rule(builder, eqn, producer)
            if out is None:
                builder.keep(eqn)
            else:
                mapping[eqn.outputs[0]] = out
            producer.update((v, e) for e in builder.equations[start:] for v in e.outputs)
        equations = list(builder.equations)
        results = [mapping.get(a, a) for a in results]
    equations, mapping = _merge_equal(equations)
    results = [mapping.get(a, a) for a in results]
    return live_equations(equations, results), results


def _is_row_scale(eqn: Equation | None) -> bool:
    """Returns True if `eqn` multiplies received rows [R, N] by one scalar each, [R, 1]."""
    if eqn is None or eqn.primitive is not mul:
        return False
    x, c = eqn.inputs
    return isinstance(x, Var) and isinstance(c, Var) and c.aval.shape == (x.aval.shape[0], 1) and x.aval.shape[1] != 1


def _dot_before_matmul(b: Builder, eqn: Equation, producer: dict[Atom, Equation]) -> Atom | None:
    """Rewrites row_dot(g, a @ W) to row_dot(g @ W^T, a); returns None for another equation."""
    if eqn.primitive is not row_dot:
        return None
    g, rows = eqn.inputs
    source = producer.get(rows)
    if source is None or source.primitive is not grouped:
        return None
    act, *others = source.inputs
    back = b.add(grouped, g, *others, transpose=not source.params["transpose"])
    return b.add(row_dot, back, act, **eqn.params)


def _scale_after_matmul(b: Builder, eqn: Equation, producer: dict[Atom, Equation]) -> Atom | None:
    """Rewrites (g * c) @ W to (g @ W) * c for per-row scalars c; returns None for another equation."""
    source = producer.get(eqn.inputs[0])
    if eqn.primitive is not grouped or not _is_row_scale(source):
        return None
    g, scale = known(source).inputs
    return b.add(mul, b.add(grouped, g, *eqn.inputs[1:], **eqn.params), scale)


def _scale_narrow_side(b: Builder, eqn: Equation, producer: dict[Atom, Equation]) -> Atom | None:
    """Rewrites x^T @ (g * c) to (x * c)^T @ g if x has fewer columns than g; returns None for another equation."""
    if eqn.primitive is not grouped_weight_grad:
        return None
    x, g, *others = eqn.inputs
    source = producer.get(g)
    if not _is_row_scale(source) or fixed(x.aval.shape[1:])[0] > fixed(g.aval.shape[1:])[0]:
        return None
    g, scale = known(source).inputs
    return b.add(grouped_weight_grad, b.add(mul, x, scale), g, *others, **eqn.params)


def _merge_equal(equations: list[Equation]) -> tuple[list[Equation], dict[Atom, Atom]]:
    """Returns the equations with equal ones computed once, and the atoms that replace others; routes stay apart."""
    kept, mapping, seen = [], {}, {}
    for eqn in equations:
        (eqn,) = substitute([eqn], mapping)
        if isinstance(eqn.outputs[0].aval, RouteAval):
            kept.append(eqn)
            continue
        key = (eqn.primitive, eqn.inputs, tuple(sorted(eqn.params.items())))
        if key in seen:
            mapping.update(zip(eqn.outputs, seen[key].outputs, strict=True))
        else:
            seen[key] = eqn
            kept.append(eqn)
    return kept, mapping


def _accumulate(equations: Sequence[Equation], results: list[Atom],
                mains: list[Var | None]) -> tuple[tuple[Equation, ...], list[Atom]]:
    """Adds each result to its main gradient, inside the weight gradient that makes it where nothing else reads that."""
    read = [*(v for e in equations for v in _vars(e.inputs)), *_vars(results)]
    builder, results = Builder(), list(results)
    for eqn in equations:
        main = next((m for a, m in zip(results, mains, strict=True) if m is not None and a is eqn.outputs[0]), None)
        if main is not None and read.count(eqn.outputs[0]) == 1 and _is_weight_grad(eqn):
            j = results.index(eqn.outputs[0])
            results[j] = builder.add(eqn.primitive, *eqn.inputs, main, source=eqn.source, **eqn.params)
            mains = [None if m is main else m for m in mains]
        else:
            builder.keep(eqn)
    for j, main in enumerate(mains):
        if main is not None:
            results[j] = builder.add(add, main, in_dtype(builder, results[j], "float32"))
    return tuple(builder.equations), results


def _is_weight_grad(eqn: Equation) -> bool:
    """Returns True if one task sums a whole tile of a weight's gradient and so can add it to another array."""
    is_dense = eqn.primitive is weight_grad and all(isinstance(d, int) for d in eqn.inputs[0].aval.shape)
    return is_dense or eqn.primitive is grouped_weight_grad


def _token_rows(program: Program, kept: Iterable[Var], cotangents: dict[Atom, Atom]) -> dict[Var, int]:
    """Returns the forward values and cotangents (with their primals) whose rows belong to tokens."""
    tokens = token_vars(program)
    pairs = {v: v for v in kept} | cotangents
    return {v: tokens[primal] for v, primal in pairs.items() if primal in tokens and isinstance(v, Var)}


def _recomputed(program: Program, wanted: Iterable[Var]) -> list[Equation]:
    """Returns the forward equations that the backward runs again: routes, widening casts, reshaped ids, and unsaved values.
    """
    again, needed, views = [], set(wanted), views_of_inputs(program)
    deciding = {a for e in program.equations for a in deciding_vars(e)}
    for eqn in reversed(program.equations):
        is_kept = eqn.primitive is draw or not deciding.isdisjoint(eqn.outputs)
        is_saved = is_kept or program.saves is None or not program.saves.isdisjoint(eqn.outputs)
        is_view_of_ids = eqn.outputs[0] in views and not is_differentiable(eqn.outputs[0])
        is_free = isinstance(eqn.outputs[0].aval, RouteAval) or is_widening(eqn) or is_view_of_ids
        if needed.isdisjoint(eqn.outputs) or (is_saved and not is_free):
            continue
        again.append(eqn)
        needed.update(_vars(eqn.inputs))
    return again[::-1]


def _vars(atoms: Iterable[Atom]) -> list[Var]:
    return [a for a in atoms if isinstance(a, Var)]


def _outside(equations: Iterable[Equation], results: Iterable[Atom], local: Iterable[Var]) -> list[Var]:
    """Returns the variables, in order, that equations and results read and neither equations nor `local` define."""
    defined = {v for e in equations for v in e.outputs}.union(local)
    read = [v for e in equations for v in _vars(e.inputs)] + _vars(results)
    return list(dict.fromkeys(v for v in read if v not in defined))


def _split(program: Program, equations: Sequence[Equation], results: tuple[Atom, ...], outputs: tuple[int, ...],
           seeds: list[Var], wanted: tuple[int, ...], mains: dict[int, Var]) -> Linearized:
    """Decides which forward values the backward reads from inputs, recomputes, or has saved for it."""
    given = [*seeds, *mains.values()]
    again = _recomputed(program, _outside(equations, results, given))
    equations, merged = _merge_equal([*again, *equations])
    results = tuple(merged.get(a, a) for a in results)
    outside = set(_outside(equations, results, given))
    kept = tuple(i for i, v in enumerate(program.inputs) if v in outside)
    saved = [v for e in program.equations for v in e.outputs if v in outside]
    cotangent_names = ["d_out"] if len(seeds) == 1 else [f"d_out_{i}" for i in range(len(seeds))]
    inputs = [*(program.inputs[i] for i in kept), *saved]
    backward = Program(
        name=f"{program.name}_vjp", direction="backward", inputs=(*inputs, *given),
        input_names=(*(program.input_names[i] for i in kept), *(f"saved_{i}" for i in range(len(saved))),
                     *cotangent_names, *(f"main_{program.input_names[i]}" for i in mains)),
        equations=tuple(equations), outputs=results, ep_size=program.ep_size, provenance=program.provenance,
        cotangents=frozenset(seeds),
        token_rows=_token_rows(program, [*inputs, *(v for e in again for v in e.outputs)], {
            **{seed: program.outputs[i] for i, seed in zip(outputs, seeds, strict=True)},
            **{result: program.inputs[i] for i, result in zip(wanted, results, strict=True)}}))
    forward = program.replace(outputs=(*program.outputs, *saved))
    return Linearized(forward, backward, kept, wanted, outputs)
