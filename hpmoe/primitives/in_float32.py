"""Half precision on MindSpore tensors: computed in float32 and rounded once, as at every other stage; and beside float32.

MindSpore's CPU has next to no kernels for bfloat16; it can cast it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeGuard

from mindspore import Tensor, dtype as ms_dtype

from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument

HALVES = (ms_dtype.bfloat16, ms_dtype.float16)


def in_float32(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns an eager rule that computes half-precision tensors in float32, its result in the dtype of its first argument.

    Example:
        >>> import mindspore as ms
        >>> double = in_float32(lambda x: (x + x).sum(keepdims=True))
        >>> double(Tensor([1.0, 1.0], ms.bfloat16))
        Tensor(shape=[1], dtype=BFloat16, value= [4])
    """
    @functools.wraps(rule)
    def computed(x: Tensor, *args: object, **params: object) -> Tensor:
        operands = (x, *args)
        if not any(map(is_half, operands)):
            return rule(*operands, **params)
        out = rule(*(a.astype(ms_dtype.float32) if is_half(a) else a for a in operands), **params)
        return out.astype(x.dtype)
    return computed


def is_half(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.dtype in HALVES


def check_dtypes(who: str, rows: str, rows_dtype: object, weight: str, weight_dtype: object) -> None:
    """Raises ArgumentError unless rows and their weight have one dtype; the text says which of both to cast.

    Example:
        >>> check_dtypes("matmul", "rows", "float64", "weight", "float32")
        Traceback (most recent call last):
        ...
        hpmoe.ArgumentError: matmul: rows is of dtype float64; it must be float32, as weight is. Cast rows with ...
    """
    given, other = str(rows_dtype).lower(), str(weight_dtype).lower()
    if given == other:
        return
    is_weight_wrong = given in FLOATS
    also = f", or {rows} with .astype(mindspore.{other})" if is_weight_wrong and other in FLOATS else ""
    wrong, found, right, expected = (weight, other, rows, given) if is_weight_wrong else (rows, given, weight, other)
    check_argument(False, who, wrong, f"of dtype {found}", f"{expected}, as {right} is",
                   f"Cast {wrong} with .astype(mindspore.{expected}){also}.")


def weight_beside(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns a weight, a float32 one beside half-precision rows rounded to their dtype, as `auto_mixed_precision` does."""
    is_master = is_half(rows) and isinstance(weight, Tensor) and weight.dtype == ms_dtype.float32
    return weight.astype(rows.dtype) if is_master else weight


def factor_beside(rows: Tensor, factor: Tensor) -> Tensor:
    """Converts a factor in another half precision than the rows' dtype to float32, exactly."""
    return factor.astype(ms_dtype.float32) if is_half(factor) and factor.dtype != rows.dtype else factor
