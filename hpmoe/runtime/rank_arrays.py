"""Arrays of all ranks: from tensors, and back to one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mindspore
import numpy as np
from mindspore import Tensor

from hpmoe.support.dtypes import FLOATS, TENSORS, dtype_name, numpy_dtype, rounded, widen
from hpmoe.support.loading import address, array_at
from hpmoe.support.mindspore_private import wait_for_calls

Arrays = list[list[np.ndarray]]  # for each rank, its arrays
_DTYPES = {getattr(mindspore, name): numpy_dtype(name) for name in (*FLOATS, "int32", "int64")}


def is_tensor_like(array: np.ndarray) -> bool:
    """Returns True if a tensor can hold an array: its element type is one of MindSpore's, and no element is masked."""
    return str(array.dtype) in TENSORS and not isinstance(array, np.ma.MaskedArray)


def to_array(tensor: Tensor) -> np.ndarray:
    """Returns a tensor's values as `asnumpy` does, sharing its memory; without a copy it takes a third of the time."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.has_init or not tensor.is_contiguous():
        return tensor.asnumpy()
    wait_for_calls()  # of writes in place, too: untyped_storage waits only for the call that makes the tensor
    storage = tensor.untyped_storage()
    if storage.device != "CPU":
        return tensor.asnumpy()
    return array_at(storage.data_ptr() + tensor.storage_offset() * dtype.itemsize, tensor.shape, dtype, storage)


def to_arrays(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    return [to_array(x) for x in tensors]


def summed(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the sum of the ranks' gradients of a capture, in float32 and in rank order, rounded once."""
    return rounded(np.asarray(sum(map(widen, parts))), dtype_name(parts[0].dtype))


def stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the ranks' arrays as one array; without a copy if they follow each other in one piece of memory."""
    first = parts[0]
    if len(parts) == 1:
        return first[None]
    if first.size and first.base is not None and all(p.base is first.base and p.flags.c_contiguous for p in parts):
        start = address(first)
        if all(address(p) == start + i * first.nbytes for i, p in enumerate(parts)):
            return np.lib.stride_tricks.as_strided(first, (len(parts), *first.shape), (first.nbytes, *first.strides))
    return np.stack(parts)
