import json
import struct

import numpy as np
import pytest

from hpmoe.support.array_bytes import from_bytes, to_bytes
from hpmoe.support.dtypes import numpy_dtype


def test_arrays_of_every_dtype_and_shape_come_back():
    arrays = [np.arange(6).reshape(2, 3).astype(numpy_dtype(name))[:, ::step]
              for name in ("float32", "bfloat16", "float16", "int32", "int64", "uint8", "bool") for step in (1, 2, -1)]
    arrays += [np.zeros((0, 4), np.float32), np.float64(3), np.zeros((2, 0), np.int32)]
    for got, given in zip(from_bytes(to_bytes(arrays)), arrays, strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (given.dtype, given.shape, given.tobytes())


def as_bytes(head, data=b""):
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("data", [b"", b"\0" * 8, as_bytes([["object", [1]]], b"\0" * 8),
                                  as_bytes([["float32", [2]]], b"\0" * 4),
                                  as_bytes([["float32", [1]]], b"\0" * 5), as_bytes([["float32", [-1]]], b"\0" * 4)])
def test_bytes_of_no_arrays_are_refused(data):
    with pytest.raises(ValueError):
        from_bytes(data)
