"""assert_same: a function under a transform computes what it computes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import chex
import numpy as np
from mindspore import Tensor

from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged import Staged, name_of
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.runtime.transform import shown_transform
from hpmoe.support.dtypes import rounded, widen
from hpmoe.support.errors import ArgumentError, check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree, flatten, unflatten
from hpmoe.testing.differences import unfollowed_step
from hpmoe.testing.inputs import ROUTINGS, Draw, Inputs, local_leaves, random_inputs
from hpmoe.testing.kernels import Runs, applied, completed, small_tiles
from hpmoe.testing.reference import Arrays, Reference, Values


@suggests_keywords
def assert_same(transform: Function, f: Function, avals: Sequence[PyTree], mesh: Mesh | None = None,
                grads: bool = True, orders: int = 20, *, reference: Function | None = None,
                routings: Sequence[str | Draw] = tuple(ROUTINGS), seed: int = 0, tolerance: float | None = None) -> None:
    """Asserts that a transform keeps the results and gradients of a function.

    On each routing these must agree with a float64 run of the plain function: the function in its own dtypes; the kernel
    under the transform, run natively, with and without saving for gradients; the kernel's tasks in several legal orders, by
    the reference interpreter; and transformed Programs in float64. `hpmoe.verify` also proves each schedule. If a value
    differs, the error names the rewrite of passes whose backward pass is not the gradient of its forward pass.

    Args:
        transform: a transform of any level, or a chain. assert_same adds the transforms before it, with tiles small enough
            to have several, and those after it up to a kernel. A transform of tiles follows tile_partition; for a transform
            of puts, pass `chain(tile_partition(rows=2), overlap_comm, mine)`.
        f: the plain function of one rank's arrays.
        avals: arguments on one rank, as for `random_inputs`. Small odd sizes find most errors.
        mesh: the ranks; None for a single rank, whose arrays have no rank axis.
        grads: True compares gradients of all floating-point arguments with random cotangents.
        orders: number of task orders that the interpreter runs on each routing.
        reference: the plain function that f must become under a transform that changes values; None for f.
        routings: routings, as `random_inputs` takes one. assert_same skips routings that the plain function refuses.
        seed: seed of inputs, cotangents and orders.
        tolerance: the largest error, relative to the largest value of its array; None for one rounding of the coarsest
            dtype (2**-8 in bfloat16, 2**-11 in float16, 2**-19 in float32) for each equation on the longest path.

    Raises:
        AssertionError: a value differs; names the value, the rank, the first differing element and the inputs.
        VerifyError, TransformError: the transform makes a wrong schedule, or does not apply.
        ArgumentError: an argument has a wrong type or value, or f refuses every routing.

    Example:
        >>> import hpmoe
        >>> from hpmoe.testing import assert_same
        >>> avals = [hpmoe.ShapeDtypeStruct(*a) for a in [((3, 4), "float32"), ((3, 1), "int32"), ((3, 1), "float32"),
        ...                                   ((2, 4, 6), "float32"), ((2, 3, 4), "float32")]]
        >>> assert_same(hpmoe.overlap_comm(signal="peer"), hpmoe.moe_ffn, avals, hpmoe.Mesh(2), orders=2)
        >>> from hpmoe.rewriting import map_equations, primitives
        >>> @hpmoe.transform(requires="program")
        ... def double_rows(program):
        ...     def rule(builder, eqn):
        ...         if eqn.primitive is primitives.dispatch:
        ...             return [builder.add(primitives.mul, builder.keep(eqn), 2.0)]
        ...     return map_equations(program, rule)
        >>> assert_same(double_rows, hpmoe.moe_ffn, avals, hpmoe.Mesh(2))
        Traceback (most recent call last):
        ...
        AssertionError: double_rows: output of rank 0 differs first at [0, 0]: ... by the kernel; it must be ...
        >>> def of_doubled_rows(x, ids, weights, gate_up_weight, down_weight):
        ...     return hpmoe.moe_ffn(x * 2.0, ids, weights, gate_up_weight, down_weight)
        >>> assert_same(double_rows, hpmoe.moe_ffn, avals, hpmoe.Mesh(2), orders=2, reference=of_doubled_rows)
    """
    _check_arguments(f, orders, routings, tolerance, reference)
    leaves, tree = flatten(tuple(avals))
    local, ranks = unflatten(tree, local_leaves(leaves, mesh)), as_mesh("assert_same", mesh)
    plain = Reference.of(Staged(f), local, ranks)
    tiles = small_tiles(plain.program)
    kernel = completed(applied(transform, f, tiles), tiles)
    programs = Reference.of(kernel.staged, local, ranks)
    wanted = plain if reference is None else _alike(Reference.of(Staged(reference), local, ranks), plain)
    allowed = [max(r.tolerance(grads, dtype) for r in (plain, wanted)) if tolerance is None else tolerance
               for dtype in (None, "float32")]
    check = _Check(wanted, programs, Runs(Staged(reference or f), mesh), Runs(kernel.staged, mesh), grads, *allowed)
    tried, refusals = _distinct(routings, bool(routes_of(plain.program)), mesh), []
    for routing in tried:
        inputs = random_inputs(f, avals, mesh, routing, seed)
        try:
            case = check.case(inputs, seed)
        except ArgumentError as error:
            refusals.append(error)
            continue
        name = name_of(routing) if callable(routing) else repr(routing)
        try:
            check.all_agree(case, range(seed, seed + orders))
        except AssertionError as error:
            note = unfollowed_step(programs, case.args, case.cotangents, inputs.num_tokens, seed) if check.grads else ""
            of = f"random_inputs({name_of(f)}, {list(avals)}, mesh={mesh}, routing={name}, seed={seed})"
            raise AssertionError(f"{shown_transform(transform)}: {error}{note}\n  of {of}") from error.__cause__
    if len(refusals) == len(tried):
        raise refusals[0]


def _check_arguments(f: Function, orders: int, routings: Sequence[str | Draw], tolerance: float | None,
                     reference: Function | None) -> None:
    for name, g, expected in (("f", f, "a plain function, which the transform is applied to"),
                              ("reference", reference or f, "a plain function, or None")):
        is_plain = callable(g) and not isinstance(g, (StagedFunction, Spmd))
        check_argument(is_plain, "assert_same", name, repr(g), expected)
    check_argument(is_int(orders, 0), "assert_same", "orders", repr(orders), "an int that is not negative")
    is_listed = isinstance(routings, (list, tuple)) and len(routings) > 0
    check_argument(is_listed, "assert_same", "routings", repr(routings),
                   f"a list of some of {', '.join(ROUTINGS)}, or functions")
    check_argument(tolerance is None or is_number(tolerance) and tolerance >= 0, "assert_same", "tolerance", repr(tolerance),
                   "a number that is not negative, or None")


def _alike(wanted: Reference, plain: Reference) -> Reference:
    """Returns the reference with the plain function's argument names; raises ArgumentError if results or captures differ."""
    found, expected = ([a.aval for a in r.program.outputs] for r in (wanted, plain))
    check_argument(found == expected and wanted.out_tree == plain.out_tree, "assert_same", "what reference returns", found,
                   f"as what f returns: {expected}")
    captured, own = ([id(t) for t in r.program.captures] for r in (wanted, plain))
    check_argument(captured == own, "assert_same", "reference", f"a function that closes over {len(captured)} tensors",
                   f"a function that closes over the {len(own)} tensors of f in their order", "Pass others as arguments.")
    return Reference(wanted.program.replace(input_names=plain.program.input_names), wanted.out_tree)


def _distinct(routings: Sequence[str | Draw], has_routes: bool, mesh: Mesh | None) -> list[str | Draw]:
    """Returns the routings that make a difference: of ids if there are any, and of tokens if ranks may hold fewer."""
    chosen = list(routings) if has_routes else ["uniform", *(r for r in routings if r == "uneven")]
    return [r for r in chosen if r != "uneven" or mesh is not None] or ["uniform"]


@dataclasses.dataclass(frozen=True)
class _Case:
    """Arguments of a call, and the results and gradients that it must compute."""

    inputs: Inputs  # as a call takes them
    args: Arrays  # the arrays among them, of each rank
    values: Values  # results and gradients
    cotangents: Arrays  # of each rank, what gradients are taken of; empty if they are not compared


class _Check:
    """Compares runs with a reference in float64, whose function `plain` runs.

    `kernel` is a run of the transformed function under the whole chain, and `programs` the transformed function in
    float64, whose tolerance is `exact`.
    """

    def __init__(self, reference: Reference, programs: Reference, plain: Runs, kernel: Runs, grads: bool,
                 tolerance: float, exact: float):
        self.tolerance, self.exact = tolerance, exact
        self.reference, self.programs, self.plain, self.kernel = reference, programs, plain, kernel
        self.grads = grads and bool(reference.linearized.differentiable and reference.linearized.cotangents)

    def case(self, inputs: Inputs, seed: int) -> _Case:
        """Returns inputs with the values they must give; ArgumentError if the reference refuses the inputs."""
        program, num_tokens = self.reference.program, inputs.num_tokens
        arrays = [to_array(x) for x in flatten(tuple(inputs))[0] if isinstance(x, Tensor)]
        parts = [list(a) if self.plain.is_batched else [a] for a in arrays]
        args = [[p[rank] for p in parts] for rank in range(program.ep_size)]
        values = self.reference.forward(args, num_tokens)
        if not self.grads:
            return _Case(inputs, args, values, [])
        rng, drawn = np.random.default_rng([seed, 1]), []
        for i in self.reference.linearized.cotangents:
            wanted, dtype = values[self.reference.outputs[i]], program.outputs[i].aval.dtype
            drawn.append([rounded(rng.standard_normal(w.shape), dtype) for w in wanted])
        cotangents = list(zip(*drawn, strict=True))
        return _Case(inputs, args, values | self.reference.backward(args, cotangents, num_tokens), cotangents)

    def all_agree(self, case: _Case, orders: Sequence[int]) -> None:
        """Raises AssertionError for the first value that a run computes otherwise."""
        inputs, num_tokens = case.inputs, case.inputs.num_tokens
        cotangents = [Tensor(np.stack(d) if self.plain.is_batched else d[0]) for d in zip(*case.cotangents, strict=True)]
        runs = [(self.plain, None, "by the plain function itself"), (self.kernel, None, "by the kernel"),
                *((self.kernel, order, f"by the interpreter, order {order}") for order in orders)]
        for run, order, by in runs:
            if order is None or not self.grads:
                got = run.forward(inputs, num_tokens, order)
                self._compare(zip(self.reference.outputs, got, strict=True), case, self.tolerance, by)
            if self.grads:
                names, got = run.both(inputs, cotangents, num_tokens, order)
                names = self.reference.gradients if run is self.plain else names  # whose arguments may be named otherwise
                self._compare(zip([*self.reference.outputs, *names], got, strict=True), case, self.tolerance, by)
        values = self.programs.forward(case.args, num_tokens)
        if self.grads:
            values |= self.programs.backward(case.args, case.cotangents, num_tokens)
        self._compare(values.items(), case, self.exact, "by its Programs in float64")

    def _compare(self, values: Iterable[tuple[str, Sequence[np.ndarray]]], case: _Case, tolerance: float, by: str) -> None:
        for name, arrays in values:
            assert_close(name, arrays, case.values[name], tolerance, by)


def assert_close(name: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float, by: str) -> None:
    """Raises AssertionError if an array of a rank is off by more than a share of the largest value of all ranks.

    Args:
        name: name of the compared value.
        got, want: arrays of each rank; integers and bools must be equal.
        tolerance: the allowed share.
        by: words for the error, such as "by the kernel".
    """
    is_float = all(np.issubdtype(w.dtype, np.floating) for w in want)
    largest = max((float(np.abs(w[np.isfinite(w)]).max(initial=0.0)) for w in want if is_float), default=0.0)
    for rank, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{name} of rank {rank}" if len(want) > 1 else name
        if g.shape != w.shape:
            raise AssertionError(f"{where} is of shape {g.shape} {by}; it must be {w.shape}")
        g = np.asarray(widen(g), np.float64) if is_float else g
        atol = tolerance * (largest or 1.0) if is_float else 0.0
        try:
            chex.assert_trees_all_close(g, w, rtol=0.0, atol=atol)
        except AssertionError as error:
            raise AssertionError(_difference(where, g, w, atol, by)) from error


def _difference(where: str, got: np.ndarray, want: np.ndarray, atol: float, by: str) -> str:
    is_same = np.isclose(got, want, rtol=0.0, atol=atol, equal_nan=True)
    index = tuple(int(i) for i in np.argwhere(~is_same)[0])
    with np.errstate(invalid="ignore"):
        most = np.abs(np.asarray(got, np.float64) - want).max()
    return (f"{where} differs first at {list(index)}: {got[index]:.9g} {by}; it must be {want[index]:.9g}\n"
            f"  {np.count_nonzero(~is_same)} of {want.size} elements differ, by up to {most:.3g}; {atol:.3g} is allowed")
