"""A Taskflow as bytes and back: a line of JSON for all that is small, then its arrays. Nothing in it is code."""

from __future__ import annotations

import dataclasses
import json
from typing import get_type_hints

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.plain import Json, Read, Written
from hpmoe.support.trees import PyTree

INDEX = np.dtype("<i8")
ORDER = np.dtype("<i4")
# Each array and what its elements are; those of `queues` stand one queue after another.
ARRAYS = {"events": tf.EVENT, "waits": tf.WAIT, "signals": tf.SIGNAL, "peer_orders": ORDER, "queues": INDEX}
HINTS = {**get_type_hints(tf.Taskflow), "blocks": get_type_hints(tf.Dependencies)["blocks"]}
SMALL = (*(f.name for f in dataclasses.fields(tf.Taskflow) if f.name not in (*ARRAYS, "deps")), "blocks")


def taskflow_bytes(flow: tf.Taskflow) -> bytes:
    """Returns a Taskflow as bytes, from which `read_taskflow` makes the same again if `verify` accepts it."""
    written, deps = Written(), flow.deps
    arrays = {"events": deps.events, "waits": deps.waits, "signals": deps.signals, "peer_orders": flow.peer_orders,
              "queues": np.concatenate(flow.queues) if flow.queues else np.zeros(0, INDEX)}
    head = {"small": {name: written(getattr(deps if name == "blocks" else flow, name)) for name in SMALL},
            "shapes": {name: array.shape for name, array in arrays.items()},
            "queues": [len(queue) for queue in flow.queues]}
    return b"".join([json.dumps(head).encode(), b"\n",
                     *(np.ascontiguousarray(array, ARRAYS[name]).tobytes() for name, array in arrays.items())])


def read_taskflow(data: bytes) -> tf.Taskflow:
    """Returns the Taskflow of some bytes, which the caller verifies; its dependencies are taken for those of its operations.

    Raises:
        ValueError, KeyError, TypeError: they are not those of a Taskflow.
    """
    line, _, rest = data.partition(b"\n")
    head, read = json.loads(line), Read()
    arrays = _read_arrays(head["shapes"], rest)
    small: dict[str, PyTree] = {name: read(HINTS[name], head["small"][name]) for name in SMALL}
    deps = tf.Dependencies(arrays.pop("events"), arrays.pop("waits"), arrays.pop("signals"), small.pop("blocks"))
    flow = tf.Taskflow(**small, peer_orders=arrays.pop("peer_orders"), queues=_cut(arrays.pop("queues"), head["queues"]))
    return flow.replace(deps=deps.replace(origin=tf.origin_of(flow)))


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
