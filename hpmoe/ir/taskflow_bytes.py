"""A Taskflow as bytes and back: a line of JSON for all that is small, then its arrays. Nothing in it is code."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import get_type_hints

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.plain import Json, Read, Written
from hpmoe.support.trees import PyTree

INDEX = np.dtype("<i8")
ORDER = np.dtype("<i4")
# Each array and what its elements are; those of `queues` stand one queue after another.
ARRAYS = {"events": tf.EVENT, "waits": tf.WAIT, "signals": tf.SIGNAL, "peer_orders": ORDER,
          "queues": INDEX}
MADE = tuple(f.name for f in dataclasses.fields(tf.Made))
SMALL = tuple(f.name for f in dataclasses.fields(tf.Taskflow) if f.name not in (*ARRAYS, "made"))


_hints = functools.cache(get_type_hints)


def taskflow_bytes(flow: tf.Taskflow) -> bytes:
    """All of a Taskflow; what reads them is `read_taskflow`."""
    written = Written()
    small = {name: written(getattr(flow, name)) for name in SMALL}
    made = None if flow.made is None else {
        name: written(getattr(flow.made, name)) for name in MADE if getattr(flow.made, name) != getattr(flow, name)}
    arrays = {name: array for name, array in _arrays(flow).items() if array is not None}
    head = {"small": small, "made": made, "shapes": {name: array.shape for name, array in arrays.items()},
            "queues": [len(queue) for queue in flow.queues]}
    return b"".join([json.dumps(head).encode(), b"\n",
                     *(np.ascontiguousarray(array, ARRAYS[name]).tobytes() for name, array in arrays.items())])


def _arrays(flow: tf.Taskflow) -> dict[str, np.ndarray | None]:
    """What is kept of the arrays."""
    return {"events": flow.events, "waits": flow.waits, "signals": flow.signals,
            "peer_orders": flow.peer_orders, "queues": np.concatenate(flow.queues) if flow.queues else np.zeros(0, INDEX)}


def read_taskflow(data: bytes) -> tf.Taskflow:
    """The Taskflow of some bytes; whether it is a correct one is to be verified.

    Raises:
        ValueError, KeyError, TypeError: they are not those of a Taskflow.
    """
    line, _, rest = data.partition(b"\n")
    head, read = json.loads(line), Read()
    arrays = _read_arrays(head["shapes"], rest)
    small = {name: read(_hints(tf.Taskflow)[name], head["small"][name]) for name in SMALL}
    queues = _cut(arrays.pop("queues"), head["queues"])
    fields: dict[str, PyTree] = {**small, **arrays, "queues": queues}
    flow = tf.Taskflow(**fields)
    if head["made"] is None:
        return flow
    changed = {name: read(_hints(tf.Made)[name], value) for name, value in head["made"].items()}
    return flow.replace(made=tf.Made(**{**{name: getattr(flow, name) for name in MADE}, **changed}))


def _read_arrays(shapes: dict[str, Json], data: bytes) -> dict[str, np.ndarray]:
    arrays, first = {}, 0
    for name, shape in shapes.items():
        dtype, count = ARRAYS[name], int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, dtype, count, first).reshape(shape)
        first += count * dtype.itemsize
    if first != len(data):
        raise ValueError(f"it has {len(data) - first} bytes too many")
    return arrays


def _cut(queues: np.ndarray, lengths: list[int]) -> tuple[np.ndarray, ...]:
    if sum(lengths) != len(queues):
        raise ValueError(f"its queues have {len(queues)} tasks, not {sum(lengths)}")
    return tuple(np.split(queues, np.cumsum(lengths)[:-1])) if lengths else ()
