"""Checks that events, waits and signals are those that follow from a taskflow's operations and queues, and that operations,
buffers and routes are those that they were made for."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.errors import VerifyError
from hpmoe.verification.fault import fail

TABLES = "events", "waits", "signals", "blocks"
PRINTED = "label", "equation"  # fields of an operation that no task depends on


def check_tables(flow: tf.Taskflow, expected: tf.Taskflow) -> None:
    """Raises VerifyError unless the tables of a taskflow are those that are expected, row by row."""
    for name in TABLES:
        found, wanted = getattr(flow.deps, name), getattr(expected.deps, name)
        if found is wanted or _are_equal(found, wanted):
            continue
        differ = (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b)
        row = next(differ, min(len(found), len(wanted)))
        fail(expected, f"{name}[{row}] is {_shown(found, row) or 'missing'}; the operations and queues need "
             f"{_shown(wanted, row) or f'only {len(wanted)} rows'}. "
             "Do not edit tables: use hpmoe.rewriting.rebuild or hpmoe.rewriting.requeue", _task_of(wanted, row))


def _are_equal(found: np.ndarray | tuple, wanted: np.ndarray | tuple) -> bool:
    if isinstance(wanted, tuple) or not isinstance(found, np.ndarray):
        return found == wanted
    return found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


def _shown(table: np.ndarray | tuple[tf.EventBlock, ...], row: int) -> str:
    """Returns a row of a table in words; "" if the table has fewer rows."""
    if row >= len(table):
        return ""
    if isinstance(table, np.ndarray):
        columns = zip(table.dtype.names or (), table[row].item(), strict=True)
        return ", ".join(f"{column}={value}" for column, value in columns)
    return str(table[row])


def _task_of(table: np.ndarray | tuple[tf.EventBlock, ...], row: int) -> int | None:
    """Returns the task that a row of a WAIT or SIGNAL array is about; None for other tables."""
    if isinstance(table, np.ndarray) and "task" in (table.dtype.names or ()) and row < len(table):
        return int(table["task"][row])
    return None


def check_fingerprint(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless what the tables were derived from, `flow.deps.origin`, is what the taskflow has."""
    origin = flow.deps.origin
    for name in [f.name for f in dataclasses.fields(origin)] if origin is not None else ():
        new, old = getattr(flow, name), getattr(origin, name)
        if _is_alike(new, old):
            continue
        if not isinstance(new, tuple) or not isinstance(old, tuple) or len(new) != len(old):
            now, then = (f"{len(x)} long" if isinstance(x, tuple) else x for x in (new, old))
            raise VerifyError(f"verify: {name} is {now}, the tasks were made for {then}; recreate them with "
                              "hpmoe.rewriting.rebuild")
        _refuse(name, new, old, [_is_alike(*pair) for pair in zip(new, old, strict=True)].index(False))


def _is_alike(x: object, y: object) -> bool:
    """Returns True if two values differ at most in fields that are only printed."""
    if _is_same(x, y):
        return True
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_is_alike, x, y))
    return isinstance(x, tf.TileOp) and isinstance(y, tf.TileOp) and all(
        _is_same(getattr(x, f.name), getattr(y, f.name)) for f in dataclasses.fields(y) if f.name not in PRINTED)


def _is_same(x: object, y: object) -> bool:
    """Returns True if two values are equal and print equally, so that 2.0 is not 2, and True is not 1."""
    return x is y or (x == y and repr(x) == repr(y))


def _refuse(name: str, new: tuple[object, ...], old: tuple[object, ...], i: int) -> NoReturn:
    then, now = ", ".join(_unlike(old[i], new[i])), ", ".join(_unlike(new[i], old[i]))
    raise VerifyError(f"verify: {name}[{i}] is not what the tasks were made for; recreate them with "
                      f"hpmoe.rewriting.rebuild\n  made for {then}\n  now      {now}")


def _unlike(x: object, other: object) -> list[str]:
    """Returns the fields in which an operation, buffer or route differs from another; an index as it is."""
    if not dataclasses.is_dataclass(x):
        return [str(x)]
    pairs = ((f.name, getattr(x, f.name), getattr(other, f.name, None)) for f in dataclasses.fields(x))
    return [f"{name} {mine}" for name, mine, theirs in pairs if not _is_same(mine, theirs)]
