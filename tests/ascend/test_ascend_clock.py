"""Times of the Ascend kernel follow the system counter of its chip: 50 MHz on A2 and A3."""

from lost_signals import simulated_wait_us


def test_a_wait_ends_after_its_timeout():
    assert 4_000 <= simulated_wait_us(0.004) < 80_000
    assert simulated_wait_us(25.0) >= 25_000_000
