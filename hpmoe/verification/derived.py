"""Checks that events, waits and signals are those that follow from a taskflow's operations and queues."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.verification.fault import fail

TABLES = "events", "waits", "signals", "blocks"


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
