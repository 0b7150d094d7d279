"""The packed image as NumPy dtypes and enums, from which `hpmoe.kernels.schema` writes core/generated/structs.h and enums.h.

>>> TASK.itemsize, OP.itemsize, Opcode.GMM.value
(4, 208, 4)
"""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np

import hpmoe.tile_ops.families  # noqa: F401  every operation has its code
from hpmoe.ir.tile_op import MAX_OPERANDS
from hpmoe.routing.capacity import ABSENT
from hpmoe.routing.placement import WHOLE
from hpmoe.tile_ops.col_modes import BLOCK, ColMode
from hpmoe.tile_ops.domains import Copies, Experts, Once, Slots, Tiles
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.named import Named
from hpmoe.tile_ops.params import Fill, LaidOut, Leg, Reduction
from hpmoe.tile_ops.row_formats import BlockScale, Element
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive

MAGIC = 0x484D4F45
VERSION = 10
SECTION_ALIGNMENT = 64
CONSTANTS = (  # of C++: name, value, meaning
    ("Magic", MAGIC, "first word of an image"),
    ("Version", VERSION, "of the layout of an image"),
    ("SectionAlignment", SECTION_ALIGNMENT, "bytes"),
    ("MaxOperands", MAX_OPERANDS, "of an op"),
    ("Whole", WHOLE, "the share of an expert that has no copies"),
    ("Absent", ABSENT, "the id of no expert: its entry goes nowhere"),
)


def _members(family: Iterable[Named]) -> dict[str, int]:
    return {member.name.upper(): member.number for member in sorted(family)}


# What is defined in tile_ops, by its numbers there.
PRIMITIVES = {primitive.number: primitive for primitive in sorted(TilePrimitive.members.values())}
Opcode = IntEnum("Opcode", _members(TilePrimitive.members.values()))
MapCode = IntEnum("MapCode", _members(Function.members.values()))
Rows = IntEnum("Rows", _members(RowMode.members.values()))
Cols = IntEnum("Cols", _members(mode for mode in ColMode.members.values() if mode is not BLOCK))
_DOMAINS = {domain.__name__.upper(): domain.number for domain in (Once, Tiles, Slots, Experts, Copies)}
Domain = IntEnum("Domain", list(_DOMAINS.items()))


class Index(IntEnum):
    """Rule by which a wait or a signal finds its counter from its event: see core/decode.h."""

    STATIC = 0
    SLOT_EXPERT = 1
    ENTRY_TILE = 2
    UNIT = 3
    EXPERT = 4
    PEER = 5
    PEER_UNIT = 6


class Amount(IntEnum):
    """Amount that a signal adds: the rows made ready, or one."""

    ROWS = 0
    COUNT = 1


class Remote(IntEnum):
    """Rank of a signal's counter."""

    LOCAL = 0
    PEER = 1
    EVERY = 2


class Extent(IntEnum):
    """The row count an event's threshold is a multiple of."""

    ONE = 0
    SLOT = 1
    EXPERT = 2
    RECEIVED = 3
    TILE = 4
    STATIC_TILE = 5
    TOKENS = 6
    ENTRIES = 7
    TILE_ENTRIES = 8
    SENT_TO = 9
    SENT_TO_EXPERT = 10
    RETURNED_TO = 11
    RETURNED_TO_FROM_EXPERT = 12
    REPLICA = 13
    REPLICAS = 14
    RELAYED = 15


class Dtype(IntEnum):
    """The element type of a buffer."""

    FLOAT32 = 0
    INT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3
    INT64 = 4
    UINT8 = 5


class DropPolicy(IntEnum):
    """Policy for entries over an expert's capacity; NONE if experts take every entry."""

    NONE = 0
    ERROR = 1
    POSITION = 2
    PROBS = 3


class Code(IntEnum):
    """Status of a launch."""

    OK = 0
    TIMEOUT = 1
    ABORTED_PEER = 2
    OUT_OF_MEMORY = 3
    BAD_IMAGE = 4
    INTERRUPTED = 5
    WRONG_COUNT = 6
    SLOT_OVERFLOW = 7
    INDEX_OUT_OF_RANGE = 8
    OVER_CAPACITY = 9
    NOT_A_NUMBER = 10
    NO_ROW_CAPACITY = 11
    PEER_DIED = 12
    PEER_LEFT = 13
    PEER_LATE = 14
    PEER_FAILED = 15
    OTHER_CALL = 16
    IDS_CHANGED = 17
    NOT_SHARED = 18
    PEER_LOST = 19


ENUMS: tuple[type[IntEnum], ...] = (
    Opcode, MapCode, Domain, Rows, Cols, Index, Amount, Remote, Extent, Dtype, Reduction, Fill, Leg, LaidOut, Element,
    BlockScale, DropPolicy, Code)
DTYPES: dict[str, np.dtype] = {}
ABOUT: dict[str, str] = {}  # the comment of each struct in C++


def _words(names: str) -> list[tuple]:
    return [(name, "<i4") for name in names.split()]


def _struct(name: str, fields: list[tuple], about: str) -> np.dtype:
    DTYPES[name], ABOUT[name] = np.dtype(fields), about
    return DTYPES[name]


HEADER = _struct("Header", _words(
    "magic version image_bytes num_tasks num_queues num_templates num_ops num_buffers num_events num_event_runs "
    "num_waits num_signals num_routes num_shares num_stops ep_size tile_rows index_bits "
    "tasks_offset queues_offset templates_offset ops_offset buffers_offset event_runs_offset waits_offset "
    "signals_offset routes_offset shares_offset stops_offset peer_order_offset num_behind most_received"), """
    Images of other plans of the same program may follow, num_behind of them, of which a launch takes one: the first
    that is for as many rows as the fullest rank receives, most_received or fewer, or else the last.
    """)
TASK_ABOUT = """
    A task is one word of its queue: the low index_bits are its place in the grid of its op's tasks, the rest its
    template.
    """
TASK = np.dtype("<u4")
TASK_TEMPLATE = _struct("TaskTemplate", _words("op first_wait num_waits first_signal num_signals"), """
    The waits and signals of tasks of one op that differ only in their place: events are relative to it, see
    decode.h.
    """)
WAIT = _struct("Wait", _words("event kind"), """
    An event that tasks of a template wait for, and how a task finds it from there.
    """)
SIGNAL = _struct("Signal", [*_words("event"), ("kind", "<i2"), ("amount", "<i2"), *_words("remote")], """
    An event that tasks of a template signal, how a task finds it from there, what it adds and on which rank.
    """)
EVENT_RUN = _struct("EventRun", _words("first extent index mult route"), """
    Events first .. up to the next run's: event first + i has threshold mult * extent(index + i), known once the
    rank's routing is.
    """)
BUFFER = _struct("Buffer", _words("cols rows_per_expert dtype rows"), """
    A row-major array: cols is its last dimension; rows counts all rows before it, 0 where the host does not say.
    """)
ROUTE = _struct("Route", [
    *_words("ids_buffer num_experts num_local_experts top_k num_slots num_tokens max_rows drop_policy "
            "weights_buffer first_share of over first_stop return_tokens alignment tp_size"),
    ("capacity_factor", "<f8")], """
    max_rows is the most rows a rank's received arrays hold; 0 means num_slots * tile_rows. Of the entries of one
    rank an expert takes ceil(num_tokens * top_k / num_experts * capacity_factor), num_tokens those of the launch,
    unless drop_policy is NONE; weights_buffer is read where it is PROBS. Where a rank has more local experts than
    num_experts / ep_size, the rest are room for copies, and the shares of all ranks' local experts begin at
    first_share. Over stops a row stands for a token: each rank counts as one expert and gets a token once at most.
    `of` is then an earlier route, to the token's experts, and from first_stop on there is a table of stops,
    [source][dest]: the rank that a row of `source` for experts on `dest` comes to. Both are -1 of a route by ids,
    whose rows come to `dest`. `over` is the route whose stops have a route's rows before and pass them on, or -1
    where the ranks of tokens send them. An event for rows that come back is for those of return_tokens tokens.
    Where a local expert has rows, zeros fill them up to a multiple of `alignment`. An expert of the model lies in
    tp_size shards, on ranks g * tp_size to (g + 1) * tp_size - 1. Each is one of num_experts, and of the top_k
    entries of a token that chooses it; ids and weights are of the top_k / tp_size choices.
    """)
SHARE = _struct("Share", _words("expert low high"), """
    A local expert of a rank: of a rank's entries for `expert` it takes those from low / kWhole to high / kWhole of
    them. -1 where there is room and no copy.
    """)
OPERAND = _struct("Operand", [
    *_words("buffer"), ("rows", "<i2"), ("cols", "<i2"), *_words("offset"), ("value", "<f4"), ("reserved", "<i4", (2,))], """
    A buffer, or the number `value` where buffer is -1, and which rows and columns of it a task touches.
    """)
OP = _struct("Op", [
    *_words("opcode domain route num_rows clipped blocks"), ("num_operands", "<i2"), ("num_outputs", "<i2"),
    *_words("first_row num_units num_peers cols tile_cols"),
    ("param", "<i4", (4,)), ("operands", OPERAND, (MAX_OPERANDS,))], """
    Its operands are num_operands, of which it writes the first num_outputs. Its tasks are a grid: units first_row
    .. first_row + num_units - 1, peers 0 .. num_peers - 1 (none where 0), and columns 0 .. cols - 1 in tiles of
    tile_cols. A task of an op without columns has whole rows: those of a slot or tile are divided among `blocks` tasks.
    A put of peer j is for those at j, j + num_peers, ... of the rank's peer order.
    """)
STATUS = _struct("Status", [*_words("code rank queue task event wait"), ("value", "<i8"), ("threshold", "<i8")], """
    `wait` is the expert where the code is OVER_CAPACITY, the route where it is NO_ROW_CAPACITY or IDS_CHANGED. `rank` is
    the one that the code tells of.
    """)

SECTIONS = {
    "tasks": TASK,
    "queues": np.dtype("<i4"),
    "templates": TASK_TEMPLATE,
    "ops": OP,
    "buffers": BUFFER,
    "event_runs": EVENT_RUN,
    "waits": WAIT,
    "signals": SIGNAL,
    "routes": ROUTE,
    "shares": SHARE,
    "stops": np.dtype("<i4"),
    "peer_order": np.dtype("<i4"),
}
