"""The bins that dies of Ascend A2 and A3 come in: how many of their cores are there, how fast, and how much L2."""

from __future__ import annotations

from typing import NamedTuple

FLOPS_PER_CYCLE = 8192  # of an AIC in half precision: 16 x 16 x 16 products and their sums


class Bin(NamedTuple):
    """Matrix cores, beside twice as many vector cores; their clock; bytes of L2."""

    num_aic: int
    ghz: float
    l2_bytes: float = 192e6


# From the vendor's platform configurations and documents; of the 910B2C the clock is taken to be that of the 910B2.
BINS = {
    "910B1": Bin(24, 1.85), "910B2": Bin(24, 1.80), "910B2C": Bin(24, 1.80), "910B3": Bin(20, 1.80),
    "910B4": Bin(20, 1.50, 96 * 2.0**20), "910B4-1": Bin(20, 1.50, 168 * 2.0**20),
    "9362": Bin(20, 1.50, 168 * 2.0**20), "9363": Bin(20, 1.50, 168 * 2.0**20), "9372": Bin(20, 1.80),
    "9381": Bin(24, 1.80), "9382": Bin(24, 1.80), "9391": Bin(24, 1.85), "9392": Bin(24, 1.85),
}


def bin_name(chip: str) -> str:
    """Returns the bin in a chip's name as CANN prints it.

    Example:
        >>> bin_name("Ascend910B3"), bin_name("Ascend910_9391")
        ('910B3', '9391')
    """
    return chip.removeprefix("Ascend910_").removeprefix("Ascend")
