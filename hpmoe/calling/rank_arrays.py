"""Arrays of all ranks: from tensors, and back to one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.dtypes import TENSORS, dtype_name, rounded, widen

Arrays = list[list[np.ndarray]]  # for each rank, its arrays


def is_tensor_like(array: np.ndarray) -> bool:
    """Whether a tensor can hold what an array says: its element type is one of MindSpore's, and nothing is masked."""
    return str(array.dtype) in TENSORS and not isinstance(array, np.ma.MaskedArray)


def to_arrays(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """The tensors' values, sharing their memory."""
    return [x.asnumpy() for x in tensors]


def summed(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The ranks' gradients of a capture, summed in float32 in rank order and rounded once."""
    return rounded(np.asarray(sum(map(widen, parts))), dtype_name(parts[0].dtype))


def stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The ranks' arrays as one; without a copy where they lie one after the other in one piece of memory."""
    first = parts[0]
    follows = (p.ctypes.data == first.ctypes.data + i * first.nbytes and p.flags.c_contiguous for i, p in enumerate(parts))
    if first.size and all(follows) and len({id(_owner(p)) for p in parts}) == 1:
        return np.lib.stride_tricks.as_strided(first, (len(parts), *first.shape), (first.nbytes, *first.strides))
    return np.stack(parts)


def _owner(array: np.ndarray) -> object:
    """The object whose memory an array views."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner
