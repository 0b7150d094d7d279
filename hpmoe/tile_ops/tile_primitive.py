"""TilePrimitive: a tile operation and its answers to the questions that tiling, proofs, costs, texts and targets ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import BYTES, INTEGERS
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import Domain, Once, Slots, Tiles
from hpmoe.tile_ops.frame import Body, Buffers, Frame, Operation
from hpmoe.tile_ops.named import Named
from hpmoe.tile_ops.params import Launched, Leg, NoParams, Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.shapes import Rule, Shapes, fault_of

B = TypeVar("B", bound=Body[Any])  # a body with the operation's params
R = TypeVar("R", bound=Rule)
RowBody = Callable[..., np.ndarray | float | tuple[np.ndarray, ...]]

ROW_DOMAINS = (Once, Tiles, Slots)
SCALAR_PASSES = 640  # about ten cycles, in each of which a vector instruction works through 64 elements


class Payload(Enum):
    """Data that an operation moves between ranks."""

    NOTHING = "nothing"
    ROWS = "rows of tokens"
    MATRICES = "weights to copies of experts, or their gradients back"
    NOTICE = "word that rows have been sent"


class Result(Enum):
    """Dtype rule of an operation's outputs."""

    EXACT = "as they are computed"
    ROUNDED = "rounded to the dtype of their buffer"
    MOVED = "elements of the first input, in their dtype"


@dataclasses.dataclass(frozen=True)
class Work:
    """Cost of an operation's tasks; by default the bytes of its operands."""

    like: str = ""  # the operation, and its kind, whose measured tasks stand for those of this operation; "" for its own
    passes: int = 0  # passes of an NPU's vector instructions over float32 elements; 0 if the bytes moved say enough
    npu_passes: int = 0  # passes over the elements of operand `npu_operand`, for a body that is another one on an NPU
    npu_operand: int = 1
    integer_passes: int = 0  # npu_passes for integers


@dataclasses.dataclass(frozen=True)
class Operand:
    """Accesses that an operation allows to one of its operands."""

    rows: tuple[RowMode, ...] = (row_modes.OWN,)  # the modes that it may have; a kernel is told no others
    cols: tuple[ColMode, ...] = (col_modes.OWN,)
    is_weight: bool = False  # it is the matrix of a product
    is_cut_by_body: bool = False  # its body knows which rows or columns a task takes; kernels are told of its own columns
    is_summed: bool = False  # its rows are summed
    takes_few_bytes: bool = False  # a body takes no more than a few bytes of each of its rows, for any number of columns
    may_be_number: bool = False
    is_integer: bool = False  # its elements are int32
    may_be_integer: bool = False  # they may be int32 or int64 as well as floats
    is_bytes: bool = False
    may_be_bytes: bool = False  # its elements may be bytes as well as floats

    def takes(self, dtype: str) -> bool:
        """Returns True if its elements may be stored in a dtype."""
        if dtype == BYTES or self.is_bytes:
            return dtype == BYTES and (self.is_bytes or self.may_be_bytes)
        if dtype in INTEGERS and self.may_be_integer:
            return True
        return dtype == "int32" if self.is_integer else dtype not in INTEGERS

    def image_cols(self, mode: ColMode) -> int:
        """Returns the number of its column mode in a kernel's image."""
        return col_modes.OWN.number if self.is_cut_by_body else mode.number


DEFAULT_WORK = Work()


class TilePrimitive(Named):
    """A tile operation. A longer body in NumPy is registered beside it: `@DRAW.reference def _(frame): ...`.

    Attributes:
        outputs, inputs: allowed accesses to its operands, in order; the last inputs may be missing.
        required: fewest operands.
        domains: classes of Domain that its tasks may have.
        unit: "aic" or "aiv", which an NPU runs it on.
        params: the class of the parameters of its body.
        result: dtype rule of its outputs.
        work: cost of its tasks.
        needs_route: True if it works on rows of a route.
        verb: printed instead of the label that its program gave it.
        rules: size rules of the operation, see `hpmoe.tile_ops.shapes`.
        body: the reference, of a TaskFrame; it returns the rows made ready, or what was moved.
        payload, way: data that it moves between ranks, and their direction.
        is_blocking: True if it exchanges the rows of all ranks at once, and blocks until then.
        ends_product: True if unfused programs run it in the kernel of the product before it, on the vector units.
    """

    unit: ClassVar[str] = "aiv"
    payload: Payload = Payload.NOTHING
    leg: Leg = Leg.DISPATCH
    is_blocking: bool = False
    ends_product: ClassVar[bool] = False

    def __init__(self, name: str, number: int, *, outputs: tuple[Operand, ...] = (), inputs: tuple[Operand, ...] = (),
                 optional: tuple[Operand, ...] = (), domains: tuple[type[Domain], ...] = ROW_DOMAINS,
                 params: type[Params] = NoParams, result: Result = Result.EXACT, work: Work = DEFAULT_WORK,
                 numpy: RowBody | None = None, needs_route: bool = False, verb: str = ""):
        """Defines it; inputs after `inputs` are `optional`.

        `numpy` is its body, of the params, if any, and the inputs in float32, or as numbers; it returns an array for each
        output. Pass None for a body that needs more, see `reference`.
        """
        super().__init__(name, number)
        self.outputs, self.inputs, self.required = outputs, inputs + optional, len(outputs + inputs)
        self.domains, self.params, self.result, self.work = domains, params, result, work
        self.needs_route, self.verb = needs_route, verb
        self.body: Body[Any] | None = None if numpy is None else _by_rows(numpy)
        self.rules: Rule = lambda op: iter(())

    def reference(self, body: B) -> B:
        """Registers the body in NumPy."""
        self.body = body
        return body

    def fits(self, rules: R) -> R:
        """Registers the size rules of the operation."""
        self.rules = rules
        return rules

    def fault(self, op: Operation[Params], buffers: Buffers, routes: Sequence[RoutePlan]) -> str:
        """Returns the first size rule that an operation breaks as text, or ""."""
        return fault_of(self.rules, Shapes(op, buffers, routes))

    def operand(self, i: int) -> Operand:
        """Returns the allowed accesses to operand i; any access to an operand past the last."""
        known = self.outputs + self.inputs
        return known[i] if i < len(known) else Operand()

    @property
    def sums_rows(self) -> bool:
        """True if it sums over rows."""
        return all(domain.sums_rows for domain in self.domains)

    @property
    def sums_choices(self) -> bool:
        """True if it sums the rows that the experts of a token sent back."""
        return self.domains == (Tiles,) and self.result is not Result.MOVED and any(
            row_modes.ENTRIES in operand.rows for operand in self.inputs)

    @property
    def moves_rows(self) -> bool:
        """True if it moves rows of tokens to other ranks, by a collective or by puts."""
        return self.payload is Payload.ROWS

    @property
    def returns_rows(self) -> bool:
        """True if it sends rows back to their tokens."""
        return self.moves_rows and self.is_back

    @property
    def is_put(self) -> bool:
        """True if its tasks write rows of tokens into other ranks' memory, one-sided."""
        return self.moves_rows and not self.is_blocking

    @property
    def sends_rows(self) -> bool:
        """True if it puts rows of tokens to the ranks of their experts."""
        return self.is_put and not self.is_back

    @property
    def puts_back(self) -> bool:
        """True if it puts rows back to the ranks of their tokens."""
        return self.is_put and self.is_back

    @property
    def moves_copies(self) -> bool:
        """True if it moves weights to expert replicas, or their gradients back."""
        return self.payload is Payload.MATRICES

    @property
    def is_remote(self) -> bool:
        """True if its tasks write other ranks' memory."""
        return self.moves_rows or self.moves_copies

    @property
    def is_completion_flag(self) -> bool:
        """True if it only signals that rows were sent."""
        return self.payload is Payload.NOTICE

    @property
    def is_back(self) -> bool:
        """True if it belongs to the combine direction."""
        return self.leg is Leg.COMBINE

    @property
    def is_matmul(self) -> bool:
        return isinstance(self, Product)

    @property
    def makes_blocks(self) -> bool:
        """True if its tasks compute blocks of rows of a weight's gradient."""
        return self.is_matmul and self.sums_rows

    @property
    def is_launch(self) -> bool:
        """True if it is the start of a kernel."""
        return self.params is Launched


class Product(TilePrimitive):
    """A matrix product, whose time is that of its multiplications."""

    unit = "aic"


class EndOfProduct(TilePrimitive):
    """Conversion of a product's sums to its result."""

    ends_product = True


class Transfer(TilePrimitive):
    """An operation that moves rows or matrices of a route between ranks, or signals that they were moved."""

    def __init__(self, name: str, number: int, payload: Payload, leg: Leg = Leg.DISPATCH, *, is_blocking: bool = False,
                 outputs: tuple[Operand, ...] = (), inputs: tuple[Operand, ...] = (), domains: tuple[type[Domain], ...],
                 params: type[Params] = NoParams, work: Work = DEFAULT_WORK, verb: str = ""):
        super().__init__(name, number, outputs=outputs, inputs=inputs, domains=domains, params=params, work=work,
                         result=Result.MOVED if outputs else Result.EXACT, needs_route=True, verb=verb)
        self.payload, self.leg, self.is_blocking = payload, leg, is_blocking


def _by_rows(numpy: RowBody) -> Body[Params]:
    """Returns the body of an operation that computes the rows of its outputs from its inputs and params only."""
    def body(frame: Frame[Params]) -> int:
        operands, n = frame.operands(), frame.op.num_outputs
        params = () if isinstance(frame.params, NoParams) else (frame.params,)
        made = numpy(*params, *operands[n:])
        for output, values in zip(operands[:n], made if isinstance(made, tuple) else (made,), strict=True):
            output[...] = values
        return len(operands[0])
    return body
