"""guard_values: NaN, infinities and values out of a range are counted, and raised or replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping, Sequence

import numpy as np

from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import Atom, Builder, Literal, Program, Var, is_differentiable, substitute
from hpmoe.ir.token_rows import token_vars
from hpmoe.primitives.guard import LARGEST, count_and_fill, count_outside
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import LaunchError, check_argument, is_name, is_number

FILLS = ("raise", "zero", "mean")


@dataclasses.dataclass(frozen=True)
class _Report:
    """Report of a guard's findings: raises an error or adds them to counts.

    Attributes:
        function, value: names of what it guards.
        must_raise: True if a finding raises an error.
        counts: dict to which the number of findings is added, or None.
    """

    function: str
    value: str
    must_raise: bool
    counts: MutableMapping[str, int] | None

    def __call__(self, found: np.ndarray, has_ranks: bool) -> LaunchError | None:
        """Returns the error to raise for the findings in rows, whose first word is a number of values; adds them to
        `counts`."""
        found = found[..., :1]
        total = int(found.sum())
        if self.counts is not None:
            self.counts[self.value] = self.counts.get(self.value, 0) + total
        if not total or not self.must_raise:
            return None
        rank, *row = np.argwhere(found.reshape(len(found) if has_ranks else 1, -1))[0].tolist()
        return LaunchError(f"guard_values: {self.value} of {self.function} has {total} value{'s' * (total > 1)} that "
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


@transform(requires="program", once=True, check=_check)
def guard_values(program: Program, *, of: Sequence[str] | None = None, low: float | None = None, high: float | None = None,
                 fill: str = "raise", counts: MutableMapping[str, int] | None = None) -> Program:
    """Counts NaN, infinite and out-of-range values in the inputs and outputs of a layer, and raises or replaces them.

    Tile tasks of the same kernel check each row. The gradient of a replaced value is zero. With fill="mean" the gradient of
    the replacement is divided among the values that the mean is taken of.

    Rewrite:
        b = dispatch x a
        ->
        b, c = count_and_fill[fill=zero] x low high     d = dispatch b a
        c (the count of each row and a bit for each value) becomes an output; fill="raise" has c = count_outside x low high

    Requires: a plain function, or one under transforms of the traced Program.
    Ensures: values in range give the same results.

    Args:
        f: the function.
        of: names of checked values: floating-point arguments of two or more dimensions, as in the printed program; "output",
            the result of f; "layer_input", the rows that dispatch sends; "routing_weights" and "layer_output", the weights
            and the result of combine. The last three are valid only if f computes these values. By default all checked
            values with a row for each token, except "layer_output".
        low, high: the range, both ends included. Without `low` or `high` that end is unlimited; infinity is never in range.
        fill: "raise" raises LaunchError; "zero" writes 0; "mean" writes the mean of the row's values in range, or 0 if the
            row has no value in range.
        counts: a dict. A call adds the number of values found on all ranks to `counts[name]`, before it raises. If f has
            several outputs or layers, the name ends in a number: "routing_weights 1".

    Raises:
        LaunchError: fill is "raise" and a value is found; raised after the call, with the name, the rank and the first row.
        ArgumentError: an option is none of these.
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
        hpmoe.LaunchError: guard_values: x of <lambda> has 1 value that is NaN, infinite or out of range, the first in row 1.
    """
    guards = _Guards(program.name, -LARGEST if low is None else low, LARGEST if high is None else high, fill, counts)
    names, computed = _chosen(program, of), _of_layers(program)
    instead = {v: guards.add(n, v) for n, v in zip(program.input_names, program.inputs, strict=True) if n in names}
    for eqn in program.equations:
        is_route = isinstance(eqn.outputs[0].aval, RouteAval)  # which reads what is given
        guards.builder.equations.append(eqn if is_route else substitute([eqn], instead)[0])
        for v in eqn.outputs:
            name, place = computed.get(v, ("", ""))
            if name in names:
                instead[v] = guards.add(name + place, v)
    outputs = [instead.get(v, v) if isinstance(v, Var) else v for v in program.outputs[:program.num_results]]
    if "output" in names:
        places = _numbered(outputs)
        outputs = [guards.add(f"output{place}", v) if _has_rows(v) else v for v, place in zip(outputs, places, strict=True)]
    return program.replace(equations=tuple(guards.builder.equations), reports=(*program.reports, *guards.reports),
                           outputs=(*outputs, *program.outputs[program.num_results:], *guards.found))


class _Guards:
    """The equations of a guarded program, the findings of its guards, and the report of each."""

    def __init__(self, function: str, low: float, high: float, fill: str, counts: MutableMapping[str, int] | None):
        self.function, self.fill, self.counts = function, fill, counts
        self.limits = Literal(float(low)), Literal(float(high))
        self.builder = Builder()
        self.found: list[Var] = []
        self.reports: list[_Report] = []

    def add(self, name: str, value: Atom) -> Atom:
        """Guards a value; what stands in its place."""
        must_raise = self.fill == "raise"
        made, count = ((value, self.builder.add(count_outside, value, *self.limits)) if must_raise else
                       self.builder.add(count_and_fill, value, *self.limits, fill=self.fill))
        self.found.append(count)
        self.reports.append(_Report(self.function, name, must_raise, self.counts))
        return made


def _has_rows(value: Atom) -> bool:
    return is_differentiable(value) and len(value.aval.shape) > 1


def _numbered(values: Sequence[object]) -> list[str]:
    """Returns the suffix for the name of each of several values."""
    return [""] if len(values) == 1 else [f" {i}" for i in range(len(values))]


def _of_layers(program: Program) -> dict[Atom, tuple[str, str]]:
    """Returns the variables that are a layer's input, routing weights or output, with role and layer."""
    combines = [eqn for eqn in program.equations if eqn.primitive.name == "combine"]
    sent = {eqn.inputs[1]: eqn.inputs[0] for eqn in program.equations if eqn.primitive.name == "dispatch"}
    computed: dict[Atom, tuple[str, str]] = {}
    for eqn, place in zip(combines, _numbered(combines), strict=True):
        values = ("layer_input", sent.get(eqn.inputs[1])), ("layer_output", eqn.outputs[0]), *(
            ("routing_weights", weights) for weights in eqn.inputs[2:])
        for name, value in values:
            if isinstance(value, Var) and value not in program.inputs and _has_rows(value):
                computed.setdefault(value, (name, place))
    return computed


def _chosen(program: Program, of: Sequence[str] | None) -> list[str]:
    """Returns the names of the guarded values."""
    rows = {name: v for name, v in zip(program.input_names, program.inputs, strict=True) if _has_rows(v)}
    of_layers = dict.fromkeys(name for name, _ in _of_layers(program).values())
    if of is None:
        tokens = token_vars(program)
        return [*(name for name, v in rows.items() if v in tokens), *(n for n in of_layers if n != "layer_output"), "output"]
    others = [*rows, *of_layers, "output"]
    for name in of:
        check_argument(name in others, "guard_values", "a name in of", repr(name),
                       f"a floating-point argument of {program.name} with rows, or what it computes: {', '.join(others)}")
    return list(of)
