"""Encodes arrays as bytes for another process: dtypes and shapes as JSON, then elements. Decoding runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from hpmoe.support.dtypes import TENSORS, dtype_name, numpy_dtype
from hpmoe.support.errors import is_int

LENGTH_BYTES = 8  # of the length of the JSON


def to_bytes(arrays: Sequence[np.ndarray]) -> bytes:
    """Returns arrays as bytes."""
    wholes = [np.asarray(a) for a in arrays]
    head = json.dumps([[dtype_name(a.dtype), a.shape] for a in wholes]).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *(a.tobytes() for a in wholes)])


def from_bytes(data: bytes) -> list[np.ndarray]:
    """Returns the arrays of `to_bytes`.

    Raises:
        ValueError: `data` is not the encoding of arrays.
    """
    at, arrays = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little"), []
    for name, shape in json.loads(data[LENGTH_BYTES:at]):
        if name not in (*TENSORS, "bfloat16") or not all(is_int(d, 0) for d in shape):
            raise ValueError(f"an array is {name}{shape}; its dtype must be one of {', '.join(TENSORS)}")
        dtype = numpy_dtype(name)
        arrays.append(np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape).copy())
        at += arrays[-1].nbytes
    if at != len(data):
        raise ValueError(f"{len(data)} bytes came for arrays of {at}")
    return arrays
