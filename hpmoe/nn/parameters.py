"""Parameters of Cells, and the checks of what their constructors are given."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, nn
from mindspore.common.initializer import Normal, initializer

from hpmoe.support.errors import check_argument, is_int, is_number

FLOATS = (ms.float32, ms.bfloat16, ms.float16)


def normal(name: str, shape: Sequence[int], std: float, dtype: object) -> Parameter:
    """Returns a weight drawn from a normal distribution, by `ms.set_seed`."""
    return Parameter(initializer(Normal(std), [int(size) for size in shape], dtype), name=name)


def zeros(name: str, shape: Sequence[int], dtype: object, requires_grad: bool = True) -> Parameter:
    return Parameter(initializer("zeros", [int(size) for size in shape], dtype), name=name, requires_grad=requires_grad)


class Frozen:
    """Names of the Parameters of a Cell that are not trained, each with a prefix, as its function calls its arguments."""

    def __init__(self, cell: nn.Cell, prefix: str = ""):
        self.cell, self.prefix = cell, prefix

    def __call__(self) -> set[str]:
        return {self.prefix + name.replace(".", "_") for name, p in self.cell.parameters_and_names() if not p.requires_grad}


def check_sizes(who: str, **sizes: object) -> None:
    """Raises ArgumentError unless all given sizes, by their names, are positive ints."""
    for name, size in sizes.items():
        check_argument(is_int(size), who, name, repr(size), "a positive int")


def check_sampled(who: str, init_method_std: object, dtype: object) -> None:
    """Raises ArgumentError unless weights can be drawn with this deviation in this dtype."""
    check_argument(is_number(init_method_std) and init_method_std >= 0, who, "init_method_std", repr(init_method_std),
                   "a finite float32 number of at least 0")
    check_argument(any(dtype is known for known in FLOATS), who, "dtype", repr(dtype),
                   "mindspore.float32, bfloat16 or float16")
