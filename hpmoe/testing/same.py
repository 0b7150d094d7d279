"""assert_same: a function under a transform computes what it computes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
from mindspore import Tensor

from hpmoe.machines.machine import Mesh, as_mesh
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged import Staged, name_of
from hpmoe.runtime.staged_function import StagedFunction, staged_of
from hpmoe.runtime.transform import Chain, Curried, Transform
from hpmoe.support.dtypes import rounded
from hpmoe.support.errors import ArgumentError, check_argument, is_int, is_number
from hpmoe.testing.compare import assert_close
from hpmoe.testing.inputs import ROUTINGS, Draw, Inputs, local_leaves, random_inputs
from hpmoe.testing.kernels import Runs, applied, completed, small_tiles
from hpmoe.testing.reference import Reference, Values


def assert_same(transform: Callable[..., Any], f: Callable[..., Any], avals: Sequence[Any], mesh: Mesh | None = None,
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
    _check(transform, f, orders, routings, tolerance)
    local = optree.tree_unflatten(tree := optree.tree_structure(tuple(avals)),
                                  local_leaves(optree.tree_leaves(tuple(avals)), mesh))
    assert tree.num_leaves >= 0
    reference = Reference(f, local, as_mesh("assert_same", mesh))
    tiles = small_tiles(reference.program)
    kernel = completed(applied(transform, f, tiles), tiles)
    check = _Check(transform, reference, kernel, f, mesh, grads, tolerance)
    refusals = []
    for routing in routings if routes_of(reference.program) else [r for r in routings if r in ("uniform", "uneven")]:
        inputs = random_inputs(f, avals, mesh, routing, seed)
        try:
            want = check.wanted(inputs, seed)
        except ArgumentError as error:
            refusals.append(error)
            continue
        check.all_agree(inputs, want, orders, seed, f"routing={name_of(routing) if callable(routing) else routing!r}")
    if len(refusals) == len(routings):
        raise refusals[0]
