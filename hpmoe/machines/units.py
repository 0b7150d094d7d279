"""The units that numbers of a machine are written in."""

from __future__ import annotations

FACTORS = {  # of each base unit, which a Machine has its numbers in: what else they may be written in
    "flops/us": {"flops/us": 1.0, "GFLOP/s": 1e3, "TFLOP/s": 1e6},
    "bytes/us": {"bytes/us": 1.0, "MB/s": 1.0, "GB/s": 1e3, "TB/s": 1e6},
    "us": {"us": 1.0, "ns": 1e-3, "ms": 1e3},
    "bytes": {"bytes": 1.0, "KB": 1e3, "MB": 1e6, "KiB": 2.0**10, "MiB": 2.0**20},
}
COUNTS = {"matmul_efficiency": "share", "matmul_float32_ratio": "share", "matmul_int8_ratio": "share",
          "node_size": "ranks", "near_size": "ranks",
          "tile_cols": "columns",
          "tile_rows": "rows", "matmul_granule": "rows", "num_aic": "workers", "num_aiv": "workers", "host_cores": "cores"}


def units_of(field: str) -> dict[str, float]:
    """What a field of a Machine may be written in, the base unit first, and how many of that each is.

    Example:
        >>> units_of("link_bytes_per_us"), units_of("num_aic")
        ({'bytes/us': 1.0, 'MB/s': 1.0, 'GB/s': 1000.0, 'TB/s': 1000000.0}, {'workers': 1.0})
    """
    if field in COUNTS:
        return {COUNTS[field]: 1.0}
    ending = next(end for end in ("flops_per_us", "bytes_per_us", "bytes", "us") if field.endswith(end))
    return FACTORS[ending.replace("_per_", "/")]
