"""guard_values: NaN, infinities and values out of a range are counted, and raised or replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping, Sequence

import numpy as np

from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import Atom, Builder, Literal, Program, Var, substitute
from hpmoe.ir.token_rows import token_vars
from hpmoe.primitives.differentiable import is_differentiable
from hpmoe.primitives.guard import LARGEST, count_outside, fill_outside
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import LaunchError, check_argument, is_name, is_number

FILLS = ("raise", "zero", "mean")


@dataclasses.dataclass(frozen=True)
class _Report:
    """What is done with how many values of each row a guard has found.

    Attributes:
        function, value: names of what it guards.
        must_raise: whether finding any is an error.
        counts: what their number is added to.
    """

    function: str
    value: str
    must_raise: bool
    counts: MutableMapping[str, int] | None

    def __call__(self, found: np.ndarray, has_ranks: bool) -> None:
        """Takes the counts of each row, on all ranks where the first dimension is theirs."""
        total = int(found.sum())
        if self.counts is not None:
            self.counts[self.value] = self.counts.get(self.value, 0) + total
        if total and self.must_raise:
            rank, *row = np.argwhere(found.reshape(len(found) if has_ranks else 1, -1))[0].tolist()
            raise LaunchError(f"guard_values: {self.value} of {self.function} has {total} value{'s' * (total > 1)} that "
                              f"{'are' if total > 1 else 'is'} NaN, infinite or out of range, the first in row {row[0]}"
                              + (f" of rank {rank}" if has_ranks else ""))


def _check(of: Sequence[str] | None = None, low: float | None = None, high: float | None = None, fill: str = "raise",
           counts: MutableMapping[str, int] | None = None) -> None:
    is_named = isinstance(of, (tuple, list)) and len(of) > 0 and all(isinstance(name, str) for name in of)
    check_argument(of is None or is_named, "guard_values", "of", repr(of), "a tuple of names, at least one, or None")
    for name, limit in (("low", low), ("high", high)):
        check_argument(limit is None or (is_number(limit) and abs(limit) <= LARGEST), "guard_values", name, repr(limit),
                       "a finite float32 number, or None")
    check_argument(low is None or high is None or low <= high, "guard_values", "low", low, f"at most high, {high}")
    check_argument(is_name(fill, FILLS), "guard_values", "fill", repr(fill), f"one of {', '.join(FILLS)}")
    check_argument(counts is None or isinstance(counts, MutableMapping), "guard_values", "counts", repr(counts),
                   "a dict, which counts are added to, or None")


@transform(requires="program", once=True, check=_check, before_vjp=True)
def guard_values(program: Program, *, of: Sequence[str] | None = None, low: float | None = None, high: float | None = None,
                 fill: str = "raise", counts: MutableMapping[str, int] | None = None) -> Program:
    """Detects values that are NaN, infinite or out of a range in what a layer takes and returns, counts and replaces them.

    Tile tasks of the same kernel look at each row: a pass that only reads, and a copy where values are to be replaced.
    Gradients are those of what is computed: a replaced value has none, and with "mean" the others have their share of what
    stands in its place.

    Rewrite:
        b = dispatch x a
        ->
        b = count_outside x low high     c = fill_outside[fill=zero] x x b low high     d = dispatch c a
        and b, how many of each row, leaves the program too; with "raise" nothing is filled: d = dispatch x a

    Requires: a plain function; the innermost of a chain, but for others of its kind.
    Ensures: the same function of values that are in range.

    Args:
        f: the function.
        of: names of floating-point arguments of two dimensions or more, as the printed program has them, and "output"
            for what is returned; by default all that have a row for each token, and the output.
        low, high: the range, with both ends; without one all finite numbers are in it.
        fill: "raise"; "zero"; or "mean", that of the row's values in range, 0 where there are none.
        counts: a dict for this layer; a call adds to `counts[name]` how many values it found, on all ranks.

    Raises:
        LaunchError: fill is "raise" and there are such values; after the call, with the name, the rank and the first row.
        ArgumentError: an option is none of these; or a call with a guard is compiled into a graph, which cannot count.
        TransformError: applied to a function that is staged already, or twice.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> counts = {}
        >>> f = hpmoe.guard_values(lambda x: x * 2.0, high=10.0, fill="mean", counts=counts)
        >>> f(ms.Tensor([[1.0, np.nan, 3.0], [1.0, 2.0, 99.0]])).asnumpy().tolist(), counts
        ([[2.0, 4.0, 6.0], [2.0, 4.0, 3.0]], {'x': 2, 'output': 0})
        >>> hpmoe.guard_values(lambda x: x * 2.0)(ms.Tensor([[1.0], [np.inf]]))
        Traceback (most recent call last):
        ...
        hpmoe.LaunchError: guard_values: x of <lambda> has 1 value that is NaN, infinite or out of range, the first in row 1
    """
    limits = [Literal(float(limit)) for limit in (-LARGEST if low is None else low, LARGEST if high is None else high)]
    builder, reports, found = Builder(), [], []

    def guarded(name: str, value: Atom) -> Atom:
        found.append(builder.add(count_outside, value, *limits))
        reports.append(_Report(program.name, name, fill == "raise", counts))
        return value if fill == "raise" else builder.add(fill_outside, value, value, found[-1], *limits, fill=fill)
    names = _chosen(program, of)
    instead = {v: guarded(n, v) for n, v in zip(program.input_names, program.inputs, strict=True) if n in names}
    for eqn in program.equations:
        is_route = isinstance(eqn.outputs[0].aval, RouteAval)  # which reads what is given
        builder.equations.append(eqn if is_route else substitute([eqn], instead)[0])
    outputs = [instead.get(v, v) if isinstance(v, Var) else v for v in program.outputs]
    if "output" in names:
        places = [""] if len(outputs) == 1 else [f" {i}" for i in range(len(outputs))]
        outputs = [guarded(f"output{i}", v) if _has_rows(v) else v for i, v in zip(places, outputs, strict=True)]
    return program.replace(equations=tuple(builder.equations), outputs=(*outputs, *found), reports=tuple(reports))


def _has_rows(value: Atom) -> bool:
    return is_differentiable(value) and len(value.aval.shape) > 1


def _chosen(program: Program, of: Sequence[str] | None) -> list[str]:
    """The names of what is guarded."""
    rows = {name: v for name, v in zip(program.input_names, program.inputs, strict=True) if _has_rows(v)}
    if of is None:
        tokens = token_vars(program)
        return [*(name for name, v in rows.items() if v in tokens), "output"]
    for name in of:
        check_argument(name in rows or name == "output", "guard_values", "a name in of", repr(name),
                       f"a floating-point argument of {program.name} with rows, or output: {', '.join([*rows, 'output'])}")
    return list(of)
