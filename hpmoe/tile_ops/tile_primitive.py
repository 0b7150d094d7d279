"""TilePrimitive: a tile operation and its answers to the questions that tiling, proofs, costs, texts and targets ask."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any, TypeVar

from hpmoe.support.dtypes import BYTES, INTEGERS
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import Domain, Once, Slots, Tiles
from hpmoe.tile_ops.frame import Body, Fault
from hpmoe.tile_ops.named import Named
from hpmoe.tile_ops.params import NoParams, Params, Way
from hpmoe.tile_ops.row_modes import RowMode

B = TypeVar("B", bound=Body[Any])  # of whatever params the operation has
F = TypeVar("F", bound=Fault[Any])

ROW_DOMAINS = (Once, Tiles, Slots)
SCALAR_PASSES = 640  # about ten cycles, in each of which a vector instruction works through 64 elements
INTEGER_TARGETS = ("cpu", "ascend")


class Payload(Enum):
    """What an operation moves between ranks."""

    NOTHING = "nothing"
    ROWS = "rows of tokens"
    MATRICES = "weights to copies of experts, or their gradients back"
    NOTICE = "word that rows have been sent"


class Cost(Enum):
    """What an operation's tasks take time for."""

    MOVED = "the bytes that it moves, or the instructions that work through them"
    MATMUL = "a matrix product"
    LAUNCH = "the start of a kernel"


@dataclasses.dataclass(frozen=True)
class Operand:
    """How an operation may touch one of its operands.

    Attributes:
        rows, cols: the modes that it may have; a kernel is told no others.
        is_weight: whether it is the matrix of a product.
        is_cut_by_body: whether its body knows which rows or columns of it a task takes; kernels are told of its own columns.
        is_summed: whether its rows are summed.
        takes_few_bytes: whether a body takes no more than a few bytes of each of its rows, whatever columns it is told of.
        may_be_number: whether a number may stand in its place.
        is_integer: whether its elements are int32.
        may_be_integer: whether they may be int32 or int64 as well as floats; only kernels in INTEGER_TARGETS take these.
        is_bytes, may_be_bytes: whether its elements are bytes, or may be bytes as well as floats.
    """

    rows: tuple[RowMode, ...] = (row_modes.OWN,)
    cols: tuple[ColMode, ...] = (col_modes.OWN,)
    is_weight: bool = False
    is_cut_by_body: bool = False
    is_summed: bool = False
    takes_few_bytes: bool = False
    may_be_number: bool = False
    is_integer: bool = False
    may_be_integer: bool = False
    is_bytes: bool = False
    may_be_bytes: bool = False

    def takes(self, dtype: str) -> bool:
        """Whether its elements may be stored in a dtype."""
        if dtype == BYTES or self.is_bytes:
            return dtype == BYTES and (self.is_bytes or self.may_be_bytes)
        if dtype in INTEGERS and self.may_be_integer:
            return True
        return dtype == "int32" if self.is_integer else dtype not in INTEGERS

    def image_cols(self, mode: ColMode) -> int:
        """What stands for a column mode of it in a kernel's image."""
        return col_modes.OWN.number if self.is_cut_by_body else mode.number


class TilePrimitive(Named):
    """A tile operation; the body in NumPy is registered beside it: `@SWIGLU.reference def _(frame): ...`.

    Attributes:
        outputs, inputs: how it may touch its operands, in order; the last inputs may be missing.
        required: fewest operands.
        domains: what its tasks' row coordinate may count.
        unit: "aic" or "aiv", which an NPU runs it on.
        params: the class of what its body is told beside its operands.
        payload, way: what it moves between ranks, and which way.
        is_blocking: whether it exchanges the rows of all ranks at once, and blocks meanwhile.
        needs_route: whether it is about rows that a route brings.
        sums_rows: whether it sums over rows.
        sums_choices: whether it sums what the experts of a token sent back.
        rounds: whether its results may be rounded where they are stored.
        cost: what its tasks take time for.
        measured_as: the operation whose measured tasks stand for its own.
        only_moves: whether its results are elements of its first input, in their dtype.
        passes: how often instructions of an NPU pass over float32 elements; 0 where the bytes moved say enough.
        npu_passes: the same of a body that is another one on an NPU than `measured_as` says, over the elements of operand
            `npu_operand`; an NPU's scalar unit takes SCALAR_PASSES for an element.
        integer_passes: the same of integers.
        ends_product: whether unfused programs run it in the kernel of the product before it, on the vector units.
        verb: printed instead of the label that its program gave it.
        targets: those whose kernels have a body for it; none where nothing is said.
        fault: what does not fit together of an operation, see `fits`.
        body: the reference, of a TaskFrame; it returns the rows made ready, or what was moved.
    """

    def __init__(self, name: str, number: int, *, outputs: tuple[Operand, ...] = (), inputs: tuple[Operand, ...] = (),
                 required: int | None = None, domains: tuple[type[Domain], ...] = ROW_DOMAINS, unit: str = "aiv",
                 params: type[Params] = NoParams, payload: Payload = Payload.NOTHING, way: Way = Way.OUT,
                 is_blocking: bool = False, needs_route: bool = False, sums_rows: bool = False, sums_choices: bool = False,
                 rounds: bool = False, only_moves: bool = False, cost: Cost = Cost.MOVED,
                 measured_as: str = "", passes: int = 0, npu_passes: int = 0, npu_operand: int = 1,
                 integer_passes: int = 0, ends_product: bool = False, verb: str = "", targets: tuple[str, ...] = ()):
        super().__init__(name, number)
        self.outputs, self.inputs = outputs, inputs
        self.required = len(outputs) + len(inputs) if required is None else required
        self.domains, self.unit, self.params, self.payload, self.way = domains, unit, params, payload, way
        self.is_blocking, self.needs_route, self.sums_rows = is_blocking, needs_route, sums_rows
        self.sums_choices = sums_choices
        self.rounds, self.cost, self.only_moves = rounds, cost, only_moves
        self.measured_as, self.passes, self.verb, self.targets = measured_as or name, passes, verb, targets
        self.npu_passes, self.npu_operand, self.integer_passes = npu_passes, npu_operand, integer_passes
        self.ends_product = ends_product
        self.body: Body[Any] | None = None
        self.fault: Fault[Any] = lambda op, buffers, plan: ""

    def reference(self, body: B) -> B:
        """Registers the body in NumPy."""
        self.body = body
        return body

    def fits(self, fault: F) -> F:
        """Registers what may be wrong with an operation's sizes: of (TileOp, buffers, RoutePlan), a text or ""."""
        self.fault = fault
        return fault

    def operand(self, i: int) -> Operand:
        """How operand i may be touched; of one more than there are, anyhow."""
        known = self.outputs + self.inputs
        return known[i] if i < len(known) else Operand()

    @property
    def moves_rows(self) -> bool:
        """Whether it moves rows of tokens to other ranks, by a collective or by puts."""
        return self.payload is Payload.ROWS

    @property
    def returns_rows(self) -> bool:
        """Whether it sends rows back to the tokens that they are of."""
        return self.moves_rows and self.is_back

    @property
    def is_put(self) -> bool:
        """Whether its tasks write rows of tokens into other ranks' memory, one-sided."""
        return self.moves_rows and not self.is_blocking

    @property
    def sends_rows(self) -> bool:
        """Whether it puts rows of tokens to the ranks of their experts."""
        return self.is_put and not self.is_back

    @property
    def puts_back(self) -> bool:
        """Whether it puts rows back to the ranks of their tokens."""
        return self.is_put and self.is_back

    @property
    def moves_copies(self) -> bool:
        """Whether it moves weights to copies of experts, or their gradients back."""
        return self.payload is Payload.MATRICES

    @property
    def is_remote(self) -> bool:
        """Whether its tasks write other ranks' memory."""
        return self.moves_rows or self.moves_copies

    @property
    def is_notice(self) -> bool:
        """Whether it only tells that rows were sent."""
        return self.payload is Payload.NOTICE

    @property
    def is_back(self) -> bool:
        """Whether it is about rows, or gradients, on their way back."""
        return self.way is Way.BACK

    @property
    def is_matmul(self) -> bool:
        return self.cost is Cost.MATMUL

    @property
    def makes_blocks(self) -> bool:
        """Whether its tasks compute blocks of rows of a weight's gradient."""
        return self.is_matmul and self.sums_rows

    @property
    def is_launch(self) -> bool:
        return self.cost is Cost.LAUNCH
