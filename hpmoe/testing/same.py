"""assert_same: a function under a transform computes what it computes alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged import Staged, name_of
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.runtime.transform import shown_transform
from hpmoe.support.dtypes import rounded
from hpmoe.support.errors import ArgumentError, check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree, flatten, unflatten
from hpmoe.testing.compare import assert_close
from hpmoe.testing.inputs import ROUTINGS, Draw, Inputs, local_leaves, random_inputs
from hpmoe.testing.kernels import Runs, applied, completed, small_tiles
from hpmoe.testing.reference import Reference, Values


@suggests_keywords
def assert_same(transform: Function, f: Function, avals: Sequence[PyTree], mesh: Mesh | None = None,
                grads: bool = True, orders: int = 20, *, routings: Sequence[str | Draw] = tuple(ROUTINGS), seed: int = 0,
                tolerance: float | None = None) -> None:
    """Asserts that a function computes the same under a transform as alone, forward and in every gradient.

    The plain function is traced and differentiated before the transform sees it, and NumPy computes both in float64. With
    that must agree, on each routing: the plain function in its own dtypes; the kernel of the transform, run natively, with
    and without saving for gradients; and its tasks by the reference interpreter, in several legal orders. `hpmoe.verify`
    proves each schedule besides. Gradients are those of a random cotangent of each result; where `accumulate_grads` adds
    one to a main gradient, it is what that grows by.

    Args:
        transform: of any level, or a chain of some. What it lacks is put around it: before it what makes its level
            (tile_partition with tiles so small that there are several, overlap_comm, assign_queues for two workers), and
            after it what leads to a kernel. A transform of tiles stands right after tile_partition; for one about puts, give
            `chain(tile_partition(rows=2), overlap_comm, mine)`.
        f: the plain function of one rank's arrays.
        avals: its arguments on one rank, as for `random_inputs`; small ones do, of odd sizes.
        mesh: the ranks; without one, a single rank whose arrays have no rank axis.
        grads: compare gradients of all floating-point arguments too.
        orders: how many orders of tasks the interpreter tries on each routing.
        routings: as `random_inputs` takes one. One that the plain function refuses is left out, such as "uneven" for a mean
            over tokens, and of a function that dispatches nothing those of its ids are.
        seed: of inputs, cotangents and orders.
        tolerance: how far a value may be off, relative to the largest of its array; by default a rounding in the coarsest
            dtype (2**-8 in bfloat16, 2**-11 in float16, in float32 2**-19 for sums in another order) for each equation on
            the longest path through the program.

    Raises:
        AssertionError: a value differs; it says which one, the rank and the first differing element, and of what inputs.
        VerifyError, TransformError, ...: what the transform makes is no correct schedule, or does not apply.
        ArgumentError: an argument is none of these, or f refuses every routing.

    Example:
        >>> import hpmoe
        >>> from hpmoe.testing import assert_same
        >>> avals = [hpmoe.Aval(*a) for a in [((3, 4), "float32"), ((3, 1), "int32"), ((3, 1), "float32"),
        ...                                   ((2, 4, 6), "float32"), ((2, 3, 4), "float32")]]
        >>> assert_same(hpmoe.overlap_comm(signal="peer"), hpmoe.moe_ffn, avals, hpmoe.Mesh(2), orders=2)
        >>> from hpmoe.rewriting import map_equations, primitives
        >>> @hpmoe.transform(requires="program", before_vjp=True)
        ... def double_rows(program):
        ...     def rule(builder, eqn):
        ...         if eqn.primitive is primitives.dispatch:
        ...             return [builder.add(primitives.mul, builder.keep(eqn), 2.0)]
        ...     return map_equations(program, rule)
        >>> assert_same(double_rows, hpmoe.moe_ffn, avals, hpmoe.Mesh(2))
        Traceback (most recent call last):
        ...
        AssertionError: double_rows: output of rank 0 differs first at [0, 0]: ... by the kernel; it must be ...
    """
    _check_arguments(f, orders, routings, tolerance)
    leaves, tree = flatten(tuple(avals))
    local = unflatten(tree, local_leaves(leaves, mesh))
    reference = Reference(f, local, as_mesh("assert_same", mesh))
    tiles = small_tiles(reference.program)
    kernel = completed(applied(transform, f, tiles), tiles)
    tolerance = reference.tolerance(grads) if tolerance is None else tolerance
    check = _Check(reference, Runs(Staged(f), mesh), Runs(kernel.staged, mesh), grads, tolerance)
    tried, refusals = _distinct(routings, bool(routes_of(reference.program)), mesh), []
    for routing in tried:
        inputs = random_inputs(f, avals, mesh, routing, seed)
        try:
            wanted = check.wanted(inputs, seed)
        except ArgumentError as error:
            refusals.append(error)
            continue
        name = name_of(routing) if callable(routing) else repr(routing)
        try:
            check.all_agree(inputs, wanted, range(seed, seed + orders))
        except AssertionError as error:
            of = f"random_inputs({name_of(f)}, {list(avals)}, mesh={mesh}, routing={name}, seed={seed})"
            raise AssertionError(f"{shown_transform(transform)}: {error}\n  of {of}") from error.__cause__
    if len(refusals) == len(tried):
        raise refusals[0]


def _check_arguments(f: Function, orders: int, routings: Sequence[str | Draw], tolerance: float | None) -> None:
    is_plain = callable(f) and not isinstance(f, (StagedFunction, Spmd))
    check_argument(is_plain, "assert_same", "f", repr(f), "a plain function, which the transform is applied to")
    check_argument(is_int(orders, 0), "assert_same", "orders", repr(orders), "an int that is not negative")
    is_listed = isinstance(routings, (list, tuple)) and len(routings) > 0
    check_argument(is_listed, "assert_same", "routings", repr(routings),
                   f"a list of some of {', '.join(ROUTINGS)}, or functions")
    check_argument(tolerance is None or is_number(tolerance) and tolerance >= 0, "assert_same", "tolerance", repr(tolerance),
                   "a number that is not negative, or None")


def _distinct(routings: Sequence[str | Draw], has_routes: bool, mesh: Mesh | None) -> list[str | Draw]:
    """The routings that make a difference: those of ids where there are some, and of tokens where ranks may hold fewer."""
    chosen = list(routings) if has_routes else ["uniform", *(r for r in routings if r == "uneven")]
    return [r for r in chosen if r != "uneven" or mesh is not None] or ["uniform"]


class _Check:
    """Compares what runs compute with what a reference wants.

    Attributes:
        reference: the plain function in float64.
        plain, kernel: runs of the plain function, and of it under the whole chain.
        grads: whether gradients are compared.
        tolerance: relative to the largest value of an array.
    """

    def __init__(self, reference: Reference, plain: Runs, kernel: Runs, grads: bool, tolerance: float):
        self.reference, self.plain, self.kernel, self.tolerance = reference, plain, kernel, tolerance
        self.grads = grads and bool(reference.linearized.differentiable and reference.linearized.cotangents)

    def wanted(self, inputs: Inputs, seed: int) -> tuple[Values, list[Tensor]]:
        """What must come out of inputs, and the cotangents that gradients are of."""
        program = self.reference.program
        arrays = [to_array(x) for x in flatten(tuple(inputs))[0] if isinstance(x, Tensor)]
        shared = [to_array(x) for x in program.captures]
        parts = [list(a) if self.plain.is_batched else [a] for a in arrays]
        of_ranks = [[*(p[rank] for p in parts), *shared] for rank in range(program.ep_size)]
        values = self.reference.forward(of_ranks, inputs.num_tokens)
        if not self.grads:
            return values, []
        rng, drawn = np.random.default_rng([seed, 1]), []
        for i in self.reference.linearized.cotangents:
            wanted, dtype = values[self.reference.outputs[i]], program.outputs[i].aval.dtype
            drawn.append([rounded(rng.standard_normal(w.shape), dtype) for w in wanted])
        values |= self.reference.backward(of_ranks, list(zip(*drawn, strict=True)), inputs.num_tokens)
        return values, [Tensor(np.stack(d) if self.plain.is_batched else d[0]) for d in drawn]

    def all_agree(self, inputs: Inputs, wanted: tuple[Values, list[Tensor]], orders: Sequence[int]) -> None:
        """Raises AssertionError for the first value that a run computes otherwise."""
        values, cotangents = wanted
        runs = [(self.plain, None, "by the plain function itself"), (self.kernel, None, "by the kernel"),
                *((self.kernel, order, f"by the interpreter, order {order}") for order in orders)]
        for run, order, by in runs:
            if order is None or not self.grads:
                self._compare(self.reference.outputs, run.forward(inputs, inputs.num_tokens, order), values, by)
            if self.grads:
                names, got = run.both(inputs, cotangents, inputs.num_tokens, order)
                self._compare([*self.reference.outputs, *names], got, values, by)

    def _compare(self, names: Sequence[str], got: Sequence[Sequence[np.ndarray]], want: Values, by: str) -> None:
        for name, arrays in zip(names, got, strict=True):
            assert_close(name, arrays, want[name], self.tolerance, by)
