"""Element types by name, their NumPy dtypes, and the storage rule: compute in float32, round once.

Arrays of bfloat16 and float16 are stored in that type. Every computation on them, sums and matrix products included,
works on their values in float32 and rounds each result once, to nearest even, where it is stored: in a Program every
output of an equation is stored, in a Taskflow every buffer that a task writes, partial sums in float32.
"""

from __future__ import annotations

import mindspore
import numpy as np
from numpy.typing import ArrayLike

from hpmoe.support.mindspore_private import bfloat16

FLOATS = ("float32", "bfloat16", "float16")
REALS = (*FLOATS, "float64")  # of values that have gradients
HALVES = ("bfloat16", "float16")
INTEGERS = ("int32", "int64")
BYTES = "uint8"  # of quantised rows and weights; what an element of one stands for, its operation says
TENSORS = (*FLOATS, "float64", "complex64", "complex128", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16",
           "uint32", "uint64")

_NUMPY = {name: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "bool", "int8", BYTES)}
_NUMPY["bfloat16"] = np.dtype(bfloat16())
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def numpy_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype of a name; bfloat16 is MindSpore's, of two bytes, converting to and from float32 with astype.
    """
    return _NUMPY.get(name) or np.dtype(name)


def dtype_name(dtype: np.dtype) -> str:
    """Returns the name of a NumPy dtype, the inverse of numpy_dtype; a dtype without a name here gives NumPy's own text."""
    return _NAMES.get(dtype, str(dtype))


def name_of_dtype(dtype: object) -> str | None:
    """Returns the name of a dtype of MindSpore or NumPy, or None for anything else."""
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, (np.generic, bool))):
        return dtype_name(np.dtype(dtype))
    name = str(dtype).lower()
    is_mindspores = name in TENSORS and getattr(mindspore, "bool_" if name == "bool" else name) == dtype
    return name if is_mindspores else None


def storage_dtype(name: str) -> str:
    """Returns the dtype in which a tile buffer stores values of the dtype `name`.

    Dtypes that tile tasks compute with are stored unchanged, and int8, which only quantised weights have, as "uint8". All
    others are stored as "float32": bool values as 0.0 or 1.0; no task computes with the rest.
    """
    return BYTES if name == "int8" else name if name in (*FLOATS, *INTEGERS, BYTES) else "float32"


def stored(array: np.ndarray, name: str) -> np.ndarray:
    """Returns a program's input of a dtype as its tile buffer holds it, contiguous."""
    if storage_dtype(name) == name:
        return np.ascontiguousarray(array)
    if name == "int8":
        return np.ascontiguousarray(array).view(np.uint8)
    return np.ascontiguousarray(array, np.float32) if name == "bool" else np.zeros(array.shape, np.float32)


def widen(array: np.ndarray) -> np.ndarray:
    """Converts a half-precision array to float32; returns any other array unchanged."""
    return array.astype(np.float32) if _NAMES.get(array.dtype) in HALVES else array


def rounded(array: ArrayLike, name: str) -> np.ndarray:
    """Rounds an array to the dtype of a name; values out of range become infinities.

    Example:
        >>> rounded(np.float32([1.0, 1e6]), "float16")
        array([ 1., inf], dtype=float16)
    """
    array, dtype = np.asarray(array), numpy_dtype(name)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)
