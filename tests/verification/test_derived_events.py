"""The signals that are derived for each event add up to what it waits for, whatever the routing."""

import pytest
from mutation_subjects import SUBJECTS, lowered
from schedule_oracle import inexact_events


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name, layer, options", SUBJECTS, ids=[f"{name} {i}" for i, (name, *_) in enumerate(SUBJECTS)])
@pytest.mark.parametrize("stage", ["tiles", "overlap"])
def test_what_is_derived_adds_up(name, layer, options, direction, stage):
    flow = lowered(name, layer, options, direction, (stage, None, None))
    assert len(flow.events) and not inexact_events(flow)
