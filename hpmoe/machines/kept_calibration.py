"""Keeps the measurements of `hpmoe calibrate` in a file from one process to the next."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

from hpmoe.machines.hardware import is_cost
from hpmoe.machines.machine import Body
from hpmoe.support.errors import ArgumentError, is_number
from hpmoe.support.host import cache_folder, cpu_name, num_cores
from hpmoe.support.kept_files import Fields, read_object, write_object

# What is measured; the rest of a Machine is what hpmoe.cpu says.
RATES = ("cube.flops_per_us", "cube.float32_ratio", "vector.bytes_per_us", "vector.copy_bytes_per_us", "l2.bytes",
         "l2.bytes_per_us", "l2.worker_bytes_per_us", "memory.bytes_per_us", "memory.worker_bytes_per_us", "sync.task_us",
         "sync.wait_us", "sync.poll_us", "sync.signal_us", "host.launch_us", "host.cores")


def calibration_key() -> Fields:
    """What a calibration holds for."""
    return {"cpu": cpu_name(), "cores": num_cores(), "hpmoe": metadata.version("hpmoe")}


def calibration_path() -> Path:
    """Where the calibration of this CPU is kept: cpu-<key>.json in hpmoe.support.host.cache_folder()."""
    key = json.dumps(calibration_key(), sort_keys=True)
    return cache_folder() / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def store_calibration(fields: Fields) -> Path:
    """Writes the measured fields of a Machine; the file it wrote. Raises OSError where it cannot."""
    bodies = [list(dataclasses.astuple(b)) for b in fields["bodies"]]
    path = calibration_path()
    write_object(path, {"key": calibration_key(), "machine": {**fields, "bodies": bodies}})
    return path


def load_calibration() -> Fields:
    """The measured fields of a Machine for this CPU.

    Raises:
        ArgumentError: there are none, or the file is not what store_calibration writes.
    """
    where = ""
    try:
        path = calibration_path()
        where = f" in {path}"
        return _fields(read_object(path))
    except FileNotFoundError:
        raise ArgumentError(f"hpmoe.cpu: this CPU is not calibrated: there is no {path}; run `hpmoe calibrate`") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"hpmoe.cpu: the calibration{where} cannot be used ({type(error).__name__}: {error}); "
                            "run `hpmoe calibrate` again") from error


def is_calibrated() -> bool:
    """Whether there is a calibration to load; none in a folder that may not be read."""
    try:
        return os.access(calibration_path(), os.R_OK)
    except OSError:
        return False


def _fields(stored: Fields) -> Fields:
    if stored["key"] != calibration_key():
        raise ValueError(f"it is of {stored['key']}")
    machine = stored["machine"]
    out: Fields = {name: _checked(name, machine[name], *_range_of(name)) for name in RATES}
    out["bodies"] = tuple(_body(*fields) for fields in machine["bodies"])
    return out


def _range_of(name: str) -> tuple[float, float]:
    """What can have been measured: a rate of a byte a microsecond at least, a cost of a second at most, or no cache."""
    if name.endswith("_per_us"):
        return 1.0, 1e12
    return (0.0, 1e6) if is_cost(name) else (0.0, 1e15) if name == "l2.bytes" else (1e-3, 1e6)


def _body(kind: str, dtype: str, share: object, *lost: object) -> Body:
    return Body(kind, dtype, _checked(f"the share of {kind}", share, 1e-6, 1e6),
                *(_checked(f"what {kind} loses", size, 0.0, 1e9) for size in lost))


def _checked(name: str, value: object, least: float, most: float) -> float:
    if not is_number(value) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not from {least:g} to {most:g}")
    return float(value)
