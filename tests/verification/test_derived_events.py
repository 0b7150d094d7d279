"""Events that are derived, which verify trusts: the signals of each add up to what it waits for, whatever the routing."""

import pytest
from mutation_subjects import SUBJECTS, lowered

from hpmoe.verification.counting import Counting
from hpmoe.verification.events import with_blocks
from hpmoe.verification.order import Order


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name, layer, options", SUBJECTS, ids=[f"{name} {i}" for i, (name, *_) in enumerate(SUBJECTS)])
@pytest.mark.parametrize("stage", ["tiles", "overlap"])
def test_what_is_derived_adds_up(name, layer, options, direction, stage):
    flow = with_blocks(lowered(name, layer, options, direction, (stage, None, None)))
    order, counting = Order(flow), Counting(flow)
    wrong = [e for e in range(len(flow.events)) if not counting.is_exact(e, order.producers_of(e))]
    assert len(flow.events) and not wrong
