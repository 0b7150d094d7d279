"""states_of: what an optimizer keeps of each expert, found by the Parameter that the optimizer keeps it for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from mindspore import Parameter, nn

from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords

WHO = "hpmoe.balance.states_of"


@suggests_keywords
def states_of(optimizer: nn.Cell, parameters: Iterable[Parameter]) -> list[Parameter]:
    """Returns the states that a MindSpore optimizer keeps for each expert: moments, accumulators, statistics of rows.

    An optimizer keeps its states in tuples that are parallel to `optimizer.parameters`; names play no part.

    Args:
        optimizer: of `mindspore.nn`, `mindspore.mint.optim` or `mindspore.experimental.optim`, or one that keeps states like
            these.
        parameters: the weights of experts, [E, ...].

    Returns:
        The states with an axis of experts, in the order of the optimizer; not the parameters themselves. A state without
        that axis, such as a factor of Adafactor that is a mean over experts, does not depend on their order.

    Raises:
        ArgumentError: the optimizer is no Cell or does not update a parameter, or a state cannot be matched.

    Example:
        >>> import mindspore as ms
        >>> from mindspore.mint import optim
        >>> weight = ms.Parameter(ms.Tensor([[0.0], [1.0]]), name="experts.weight1")
        >>> [state.name for state in states_of(optim.AdamW([weight]), [weight])]
        ['exp_avg.experts.weight1', 'exp_avg_sq.experts.weight1']
    """
    check_argument(isinstance(optimizer, nn.Cell), WHO, "optimizer", f"a {type(optimizer).__name__}",
                   "an optimizer of MindSpore, which is a Cell")
    wanted = list(parameters)
    trained = list(getattr(optimizer, "parameters", ()))
    for parameter in wanted:
        check_argument(any(p is parameter for p in trained), WHO, "parameters", getattr(parameter, "name", parameter),
                       "parameters that the optimizer updates")
    owners = {id(state): (state, weight) for state, weight in _pairs(optimizer, trained)}
    rates = getattr(optimizer, "learning_rate", None)  # a Cell if there is a rate for each step
    ignored = {id(p) for p in (*trained, *(rates.get_parameters() if isinstance(rates, nn.Cell) else ()))}
    states = []
    for state in {id(p): p for p in [*optimizer.get_parameters(), *(state for state, _ in owners.values())]}.values():
        if id(state) in ignored or state.size <= 1:
            continue
        if id(state) not in owners:
            is_none = not any(_axes(state, weight) & {True} for weight in wanted)
            check_argument(is_none, WHO, "optimizer", f"one whose {state.name} {state.shape} is kept for no parameter",
                           "one that keeps its states in tuples parallel to `optimizer.parameters`")
        elif any(owners[id(state)][1] is weight for weight in wanted) and _has_experts(state, owners[id(state)][1]):
            states.append(state)
    return states


def _pairs(optimizer: nn.Cell, trained: Sequence[Parameter]) -> Iterator[tuple[Parameter, Parameter]]:
    """Yields (state, the parameter that it is kept for), by the states' places in tuples."""
    for _, cell in optimizer.cells_and_names():
        kept: list[tuple[object, Sequence[Parameter]]] = [(value, trained) for value in vars(cell).values()]
        for group in getattr(cell, "param_groups", ()):
            kept += [(value, group["params"]) for value in group.values()]
        for values, weights in kept:
            if isinstance(values, (tuple, list)) and len(values) == len(weights):
                yield from ((v, w) for v, w in zip(values, weights, strict=True) if isinstance(v, Parameter) and v is not w)


def _has_experts(state: Parameter, weight: Parameter) -> bool:
    """Returns True if the first axis of a weight's state indexes experts."""
    found = _axes(state, weight)
    check_argument(len(found) == 1, WHO, "optimizer", f"one whose {state.name} is {state.shape} for {weight.name} "
                   f"{weight.shape}", "one whose states have all dimensions of their weight, "
                   "or some that no other dimension equals")
    return True in found


def _axes(state: Parameter, weight: Parameter) -> set[bool]:
    """Returns each possible answer to: does a state, shaped like some dimensions of a weight, keep the first one?"""
    dims, found = weight.shape, set()
    for kept in itertools.product((True, False), repeat=len(dims)):
        left = tuple(n for n, is_kept in zip(dims, kept, strict=True) if is_kept)
        reduced = tuple(n if is_kept else 1 for n, is_kept in zip(dims, kept, strict=True))
        if state.shape in (left, reduced):
            found.add(kept[0])
    return {True} if state.shape == dims else found
