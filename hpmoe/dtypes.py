"""Element types by name, and what each is in NumPy: the one place that knows where bfloat16 comes from."""

from __future__ import annotations

import numpy as np
from mindspore.common import np_dtype

FLOATS = ("float32", "bfloat16", "float16")

_NUMPY = {name: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "bool")}
_NUMPY["bfloat16"] = np.dtype(np_dtype.bfloat16)
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; bfloat16 is MindSpore's, of two bytes, converting to and from float32 with astype.

    Example:
        >>> numpy_dtype("float16"), numpy_dtype("bfloat16").itemsize
        (dtype('float16'), 2)
    """
    return _NUMPY[name]


def dtype_name(dtype: np.dtype) -> str:
    """The inverse of numpy_dtype; a dtype without a name here gives NumPy's own text for it.

    Example:
        >>> dtype_name(numpy_dtype("bfloat16"))
        'bfloat16'
    """
    return _NAMES.get(dtype, str(dtype))


def storage_dtype(name: str) -> str:
    """The dtype in which a tile buffer holds values of a dtype: a truth value is stored as 0.0 or 1.0.

    Example:
        >>> storage_dtype("bool"), storage_dtype("bfloat16")
        ('float32', 'bfloat16')
    """
    return "float32" if name == "bool" else name
