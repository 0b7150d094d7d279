"""Constant: where a number of a machine comes from, and how sure it is."""

from __future__ import annotations

from typing import NamedTuple


class Constant(NamedTuple):
    """One number of a Machine with its source and range.

    Attributes:
        source: document or measurement that the number comes from.
        low, high: range of the number, in the unit of the Machine.
        unit: unit in which files have the number.
        date: date on which it was read, measured or assumed, such as 2026-11-23 or 2026-11; "" if it is unknown.
    """

    source: str
    low: float
    high: float
    unit: str
    date: str = ""

    @property
    def is_sure(self) -> bool:
        return self.low == self.high


FACTORS = {  # of each base unit, which a Machine has its numbers in: what else they may be written in
    "flops/us": {"flops/us": 1.0, "GFLOP/s": 1e3, "TFLOP/s": 1e6},
    "bytes/us": {"bytes/us": 1.0, "MB/s": 1.0, "GB/s": 1e3, "TB/s": 1e6},
    "us": {"us": 1.0, "ns": 1e-3, "ms": 1e3},
    "bytes": {"bytes": 1.0, "KB": 1e3, "MB": 1e6, "KiB": 2.0**10, "MiB": 2.0**20},
}
COUNTS = {"cube.efficiency": "share", "cube.float32_ratio": "share", "cube.int8_ratio": "share", "cube.granule": "rows",
          "tile_rows": "rows", "tile_cols": "columns", "num_aic": "workers", "num_aiv": "workers", "host.cores": "cores",
          "link.near_size": "ranks", "link.node_size": "ranks", "memory.write_cost": "bytes",
          "operators.spread": "share", "operators.read_share": "share", "operators.combine_share": "share",
          "operators.overlap": "exponent", "operators.row_overlap": "exponent"}


def units_of(name: str) -> dict[str, float]:
    """Returns the units that a constant of a Machine may be written in, the base unit first, in base units.

    Example:
        >>> units_of("link.bytes_per_us"), units_of("num_aic")
        ({'bytes/us': 1.0, 'MB/s': 1.0, 'GB/s': 1000.0, 'TB/s': 1000000.0}, {'workers': 1.0})
    """
    if name in COUNTS:
        return {COUNTS[name]: 1.0}
    ending = next(end for end in ("flops_per_us", "bytes_per_us", "bytes", "us") if name.endswith(end))
    return FACTORS[ending.replace("_per_", "/")]
