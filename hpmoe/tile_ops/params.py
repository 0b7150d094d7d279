"""Params: what the body of a tile operation is told beside its operands, by name."""

from __future__ import annotations

import dataclasses
import functools
from enum import IntEnum
from typing import ClassVar, get_type_hints

import numpy as np

from hpmoe.tile_ops.functions import Function


class Way(IntEnum):
    """Which way rows go: from tokens to experts, or back."""

    OUT = 0
    BACK = 1


class Reduction(IntEnum):
    """What the columns of a row are reduced by."""

    SUM = 0
    MAX = 1

    def numpy(self, x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
        return (np.max if self is Reduction.MAX else np.sum)(x, axis=axis, keepdims=keepdims)


class Fill(IntEnum):
    """What stands in place of a value that is out of range; see `hpmoe.tile_ops.guards`."""

    ZERO = 0
    MEAN = 1
    SPREAD = 2


class LaidOut(IntEnum):
    """Whose rows, besides the launch itself, a kernel of an unfused program lays out anew."""

    NO_ROWS = 0
    SENT_ROWS = 1
    RECEIVED_ROWS = 2


@functools.cache
def _types(params: type[Params]) -> dict[str, type]:
    hints = get_type_hints(params)
    return {field.name: hints[field.name] for field in dataclasses.fields(params)}  # type: ignore[arg-type]


class Params:
    """What a body is told beside its operands; the attributes of a class, and as `words` in a kernel's image."""

    in_image: ClassVar[tuple[str, ...]] = ()
    is_transposed: ClassVar[bool] = False
    is_early: ClassVar[bool] = False
    function: ClassVar[Function | None] = None
    way: ClassVar[Way | None] = None
    buffer: ClassVar[int] = -1
    route: ClassVar[int] = -1
    block: ClassVar[int] = 0
    height: ClassVar[int] = 0
    row_bytes: ClassVar[int] = 0
    is_collective: ClassVar[bool] = False
    syncs_host: ClassVar[bool] = False

    def are_of_their_types(self) -> bool:
        """Whether each attribute is of its class, and no number in place of another's member."""
        return all(type(getattr(self, name)) is cls for name, cls in _types(type(self)).items())

    @property
    def kind(self) -> str:
        """What tells bodies apart that take unlike long."""
        return ""

    @property
    def inputs(self) -> int | None:
        """How many inputs the operation has then; None where they do not say."""
        return None

    @property
    def passes(self) -> int:
        """How often instructions of an NPU pass over float32 elements, see Function."""
        return self.function.passes if self.function else 0

    @property
    def npu_passes(self) -> int:
        """The same where an NPU's scalar unit works element by element."""
        return self.function.npu_passes if self.function else 0

    @classmethod
    def names_in_image(cls) -> tuple[str, ...]:
        """The attributes that a kernel's image has a word of, in order."""
        return cls.in_image or tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def words(self) -> tuple[int, ...]:
        return tuple(int(getattr(self, name)) for name in self.names_in_image())


@dataclasses.dataclass(frozen=True)
class NoParams(Params):
    """Nothing."""


NO_PARAMS = NoParams()


@dataclasses.dataclass(frozen=True)
class Elementwise(Params):
    """The function that is applied."""

    function: Function

    @property
    def kind(self) -> str:
        return self.function.name

    @property
    def inputs(self) -> int:
        return self.function.inputs


@dataclasses.dataclass(frozen=True)
class ByColumns(Params):
    """What a row's columns are reduced by."""

    reduction: Reduction

    @property
    def kind(self) -> str:
        return self.reduction.name.lower()


@dataclasses.dataclass(frozen=True)
class ByGroups(ByColumns):
    """What the elements along an axis of each row are reduced by, its size, and the columns from one to the next."""

    size: int
    inner: int


@dataclasses.dataclass(frozen=True)
class AlongAxis(Params):
    """The size of an axis of each row of the output, the columns from one of its elements to the next, and where elements
    of the input stand: `step` apart, the first at `start`; picked from the input's axis, or placed along the output's."""

    size: int
    inner: int
    start: int
    step: int


@dataclasses.dataclass(frozen=True)
class Choice(Params):
    """Whether the largest of a row are chosen, or the smallest."""

    largest: bool


@dataclasses.dataclass(frozen=True)
class Filled(Params):
    """What stands in place of a value that is out of range."""

    fill: Fill


@dataclasses.dataclass(frozen=True)
class Running(Params):
    """Whether sums run from the last column to the first."""

    reverse: bool


@dataclasses.dataclass(frozen=True)
class Stream(Params):
    """Which of a seed's numbers are drawn, as several kinds of noise have one seed."""

    stream: int


@dataclasses.dataclass(frozen=True)
class Matmul(Params):
    """Whether the matrix is multiplied turned."""

    is_transposed: bool

    @property
    def kind(self) -> str:
        return "T" if self.is_transposed else ""


@dataclasses.dataclass(frozen=True)
class EarlyMatmul(Matmul):
    """Whether the matrix is multiplied turned, and whether workers that wait for its rows read it meanwhile."""

    is_early: bool = False


@dataclasses.dataclass(frozen=True)
class WeightBlock(Params):
    """Rows of the block of a weight's gradient that one task computes."""

    block: int


@dataclasses.dataclass(frozen=True)
class MatrixBlock(Params):
    """Rows that a task moves of a matrix, and those of a matrix."""

    block: int
    height: int


@dataclasses.dataclass(frozen=True)
class Paced(Params):
    """Picoseconds that a link takes for a row with all that is put with it: no row is put before those of the slots before
    its own could be there; 0 for at once."""

    row_ps: int = 0


@dataclasses.dataclass(frozen=True)
class Notice(Params):
    """Which way the rows go that a notice is of, and the buffer that their put writes, by which it is found."""

    way: Way
    buffer: int
    in_image = ("way",)


@dataclasses.dataclass(frozen=True)
class Relayed(Params):
    """The route of the rows that came back to a relay."""

    route: int


@dataclasses.dataclass(frozen=True)
class Launched(Params):
    """What a launch costs beside itself: rows laid out anew, of so many bytes, a collective, and a host that waits."""

    rows: LaidOut
    row_bytes: int
    is_collective: bool
    syncs_host: bool
    in_image = ("rows",)

