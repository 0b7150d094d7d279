"""Launches of the Ascend kernel compute the same while its counters wrap at 2^31 and 2^32."""

import numpy as np
import pytest
from ascend_helpers import LayerRun, capped
from helpers import Layer
from mindspore import float32

import hpmoe
from hpmoe.kernels.ascendc.emulator import native
from hpmoe.kernels.ascendc.emulator.target import EMULATOR

LAYERS = {
    "direct": (hpmoe.moe_ffn, {}), "signals of experts": (hpmoe.moe_ffn, {"signal": "expert"}),
    "signals of peers": (hpmoe.moe_ffn, {"signal": "peer"}), "dropped by weight": (capped(0.5, "probs"), {}),
    "deduplicated": (hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"),
                     {}), "hierarchical": (hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical"), {}),
    "copies": (hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1, 1, 1], replicas=2), {}),
}
LAUNCHES = 2  # in a row, the first of which comes to the wrap


def as_words(numbers):
    return (np.asarray(numbers, np.int64) % 2**32).astype(np.uint32).view(np.int32)


class Kernel:
    """The counters of a kernel that has been launched once."""

    def __init__(self, state, num_events):
        self.state, self.counters = state, state.counters[:, ::native.load().hpmoe_emulator_counter_words()]
        self.num_prologue = self.counters.shape[1] - num_events
        self.grown = self.counters[:, :self.num_prologue].astype(np.int64)

    def set_as_after(self, num_launches, events):
        """Sets the counters to their values after `num_launches` launches, and events to `events`."""
        self.state.num_launches = int(as_words(num_launches))
        self.counters[:, :self.num_prologue] = as_words(self.grown * num_launches)
        self.counters[:, self.num_prologue:] = as_words(events)
        self.state.targets[...] = as_words(events)


@pytest.mark.parametrize("name", LAYERS)
def test_launches_across_a_wrap_compute_the_same(monkeypatch, name):
    states, new_state = [], EMULATOR.new_state
    monkeypatch.setattr(EMULATOR, "new_state", lambda made: states.append((new_state(made), len(made.flow.deps.events)))
                        or states[-1][0])
    f, options = LAYERS[name]
    relays = {"ep": 4, "node_size": 2} if name == "hierarchical" else {"ep": 2}
    run = LayerRun(Layer(T=5, H=16, I=16, E=4, K=2, **relays), float32, f, rows=4, **options)
    want = run()
    kernels = [Kernel(*state) for state in states]
    assert len(kernels) == 2
    rates = sorted({int(rate) for kernel in kernels for rate in kernel.grown.flat} - {0})
    for wrap, rate in [*((2**31, rate) for rate in rates), (2**32, rates[0])]:
        for kernel in kernels:
            kernel.set_as_after(wrap // rate - 1, wrap - 3)
        for _ in range(LAUNCHES):
            for got, expected in zip(run(), want, strict=True):
                np.testing.assert_array_equal(got, expected)
