"""The Parameter that says where experts lie, beside the weights that are useless without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Parameter, Tensor

from hpmoe.support.errors import check_argument

WITHDRAWN = 2**30  # a place that no expert has, so that a call of a kernel fails


def places_in_order(num_experts: int) -> Parameter:
    """Returns the places [E] int32 of experts in their own order, a Parameter that is not trained."""
    return Parameter(Tensor(np.arange(num_experts, dtype=np.int32)), name="places", requires_grad=False)


def experts_at(who: str, places: Parameter) -> np.ndarray:
    """Returns the expert at each place, [E]; raises ArgumentError unless each place is taken once."""
    at = places.asnumpy()
    check_argument(sorted(at) == list(range(len(at))), who, places.name, at.tolist(),
                   f"each of 0..{len(at) - 1} once, where an expert lies")
    return np.argsort(at)


def keep_together(who: str, weights: Sequence[Parameter], places: Parameter, replaced: Callable[[str | None], None]) -> None:
    """Withdraws the places of moved experts when `set_data` replaces a weight, until `places` is set, too.

    A checkpoint without places would otherwise put weights in their own order beside the places of moved experts.
    `replaced` receives the name of the weight that was set, and None when places are set.
    """
    def set_weight(weight: Parameter, value: Tensor) -> Tensor:
        is_moved = (places.asnumpy() != np.arange(places.shape[0])).any()
        # The checkpoint of an optimizer has the weights again, without places.
        if is_moved and value.asnumpy().tobytes() != weight.asnumpy().tobytes():
            type(places).assign_value(places, Tensor(np.full(places.shape, WITHDRAWN, np.int32)))
            replaced(weight.name)
        return type(weight).assign_value(weight, value)

    def set_places(value: Tensor) -> Tensor:
        experts_at(who, Parameter(value, name=places.name))
        replaced(None)
        return type(places).assign_value(places, value)

    for weight in weights:
        weight.assign_value = lambda value, weight=weight: set_weight(weight, value)
    places.assign_value = set_places
