"""Keeps the measurements of `hpmoe calibrate` in a file from one process to the next."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

from hpmoe.machines.machine import Body, Machine
from hpmoe.support.cached_files import Fields, read_object, write_object
from hpmoe.support.errors import ArgumentError
from hpmoe.support.host import cache_folder, cpu_name, num_cores


def calibration_key() -> Fields:
    """Returns the CPU, number of cores and version of hpmoe that a calibration is valid for."""
    return {"cpu": cpu_name(), "cores": num_cores(), "hpmoe": metadata.version("hpmoe")}


def calibration_path() -> Path:
    """Returns the path of this CPU's calibration: cpu-<key>.json in hpmoe.support.host.cache_folder()."""
    key = json.dumps(calibration_key(), sort_keys=True)
    return cache_folder() / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def store_calibration(fields: Fields) -> Path:
    """Writes the measured fields of a Machine; returns the path of the file, or raises OSError."""
    machine, path = dict(fields), calibration_path()
    bodies = [dataclasses.astuple(body) for body in machine.pop("bodies")]
    write_object(path, {"key": calibration_key(), "machine": machine, "bodies": bodies})
    return path


def with_calibration(machine: Machine) -> Machine:
    """Returns a machine with the measured constants and bodies of this CPU.

    Raises:
        ArgumentError: nothing was measured, or the file is not what store_calibration writes.
    """
    where = ""
    try:
        path = calibration_path()
        where = f" in {path}"
        stored = read_object(path)
        if stored["key"] != calibration_key():
            raise ValueError(f"it is of {stored['key']}")
        bodies = tuple(Body(*values) for values in stored["bodies"])
        return machine.replace(stored["machine"], bodies=bodies)
    except FileNotFoundError:
        raise ArgumentError(f"hpmoe.cpu: this CPU is not calibrated: there is no {path}; run `hpmoe calibrate`") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"hpmoe.cpu: the calibration{where} cannot be used ({type(error).__name__}: {error}); "
                            "run `hpmoe calibrate` again") from error


def is_calibrated() -> bool:
    """Returns True if a calibration can be loaded."""
    try:
        return os.access(calibration_path(), os.R_OK)
    except OSError:
        return False
