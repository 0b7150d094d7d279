"""Params: what the body of a tile operation is told beside its operands, by name."""

from __future__ import annotations

import dataclasses
import functools
from enum import IntEnum
from typing import ClassVar, get_type_hints

import numpy as np

from hpmoe.tile_ops.functions import Function


class Leg(IntEnum):
    """Direction of rows: dispatch or combine."""

    DISPATCH = 0
    COMBINE = 1


class Reduction(IntEnum):
    """Reduction of the columns of a row."""

    SUM = 0
    MAX = 1

    def numpy(self, x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
        return (np.max if self is Reduction.MAX else np.sum)(x, axis=axis, keepdims=keepdims)


class Fill(IntEnum):
    """Replacement of a value that is out of range; see `hpmoe.tile_ops.guards`."""

    ZERO = 0
    MEAN = 1
    SPREAD = 2


class LaidOut(IntEnum):
    """Rows that a kernel of an unfused program sorts again before it computes."""

    NO_ROWS = 0
    SENT_ROWS = 1
    RECEIVED_ROWS = 2


@functools.cache
def _types(params: type[Params]) -> dict[str, type]:
    hints = get_type_hints(params)
    return {field.name: hints[field.name] for field in dataclasses.fields(params)}  # type: ignore[arg-type]


class Params:
    """Params of a body beside its operands: attributes of a class, and `words` in a kernel's image."""

    in_image: ClassVar[tuple[str, ...]] = ()
    is_transposed: ClassVar[bool] = False
    is_early: ClassVar[bool] = False
    function: ClassVar[Function | None] = None
    leg: ClassVar[Leg | None] = None
    buffer: ClassVar[int] = -1
    route: ClassVar[int] = -1
    block: ClassVar[int] = 0
    height: ClassVar[int] = 0
    row_bytes: ClassVar[int] = 0
    is_collective: ClassVar[bool] = False
    syncs_host: ClassVar[bool] = False

    def are_of_their_types(self) -> bool:
        """Returns True if each attribute is of its class, and none is a number where a member is expected."""
        return all(type(getattr(self, name)) is cls for name, cls in _types(type(self)).items())

    @property
    def kind(self) -> str:
        """Part of the params that the time of a body depends on."""
        return ""

    @property
    def inputs(self) -> int | None:
        """Number of inputs that the operation has with these params; None if the params do not decide it."""
        return None

    @property
    def passes(self) -> int:
        """Passes of NPU vector instructions over float32 elements, see Function."""
        return self.function.passes if self.function else 0

    @property
    def npu_passes(self) -> int:
        """Passes over elements if the scalar unit of an NPU works element by element."""
        return self.function.npu_passes if self.function else 0

    @classmethod
    def names_in_image(cls) -> tuple[str, ...]:
        """Returns the names of the attributes that a kernel's image holds, in the order of their words."""
        return cls.in_image or tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def words(self) -> tuple[int, ...]:
        return tuple(int(getattr(self, name)) for name in self.names_in_image())


@dataclasses.dataclass(frozen=True)
class NoParams(Params):
    """Params of an operation without parameters."""


NO_PARAMS = NoParams()


@dataclasses.dataclass(frozen=True)
class Elementwise(Params):
    """Elementwise function of an operation."""

    function: Function

    @property
    def kind(self) -> str:
        return self.function.name

    @property
    def inputs(self) -> int:
        return self.function.inputs


@dataclasses.dataclass(frozen=True)
class ByColumns(Params):
    """Reduction of the columns of a row."""

    reduction: Reduction

    @property
    def kind(self) -> str:
        return self.reduction.name.lower()


@dataclasses.dataclass(frozen=True)
class ByGroups(ByColumns):
    """Reduction along an axis of each row: the size of the axis, and the columns between two of its elements."""

    size: int
    inner: int


@dataclasses.dataclass(frozen=True)
class AlongAxis(Params):
    """Axis of each row of the output: its size, and the columns between two of its elements. PICK reads elements `start`,
    `start + step`, ... of the input's axis; PLACE writes the input to these elements of the output's axis."""

    size: int
    inner: int
    start: int
    step: int


@dataclasses.dataclass(frozen=True)
class Choice(Params):
    """Choice of the largest elements of a row, or of the smallest."""

    largest: bool


@dataclasses.dataclass(frozen=True)
class Filled(Params):
    """Replacement of values that are out of range."""

    fill: Fill


@dataclasses.dataclass(frozen=True)
class Running(Params):
    """Direction of running sums: from the last column to the first if `reverse`."""

    reverse: bool


@dataclasses.dataclass(frozen=True)
class Stream(Params):
    """Stream of random numbers; several kinds of noise share a seed and differ in their stream."""

    stream: int


@dataclasses.dataclass(frozen=True)
class Matmul(Params):
    """Matrix product; the weight is transposed if `is_transposed`."""

    is_transposed: bool

    @property
    def kind(self) -> str:
        return "T" if self.is_transposed else ""


@dataclasses.dataclass(frozen=True)
class EarlyMatmul(Matmul):
    """Matrix product whose workers read the weight while they wait for rows, if `is_early`."""

    is_early: bool = False


@dataclasses.dataclass(frozen=True)
class WeightBlock(Params):
    """Rows of a weight's gradient that one task computes."""

    block: int


@dataclasses.dataclass(frozen=True)
class MatrixBlock(Params):
    """Rows of a matrix that one task moves (`block`), and rows of the matrix (`height`)."""

    block: int
    height: int


@dataclasses.dataclass(frozen=True)
class CompletionFlag(Params):
    """Direction of the rows that a completion flag is about, and the buffer that their put writes."""

    leg: Leg
    buffer: int
    in_image = ("leg",)


@dataclasses.dataclass(frozen=True)
class Relayed(Params):
    """Route whose rows came back to a relay."""

    route: int


@dataclasses.dataclass(frozen=True)
class Launched(Params):
    """Extra work of a launch: rows that it sorts again, of `row_bytes` bytes each, a collective, and a host that waits."""

    rows: LaidOut
    row_bytes: int
    is_collective: bool
    syncs_host: bool
    in_image = ("rows",)

