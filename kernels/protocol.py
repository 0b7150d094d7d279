"""The packed image as NumPy dtypes and enums: the Python side of core/protocol.h, and the only one.

>>> TASK.itemsize, OP.itemsize, Opcode.GMM.value
(4, 208, 4)
"""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np

import hpmoe.tile_ops.families  # noqa: F401  every operation has its code
from hpmoe.ir.tile_op import MAX_OPERANDS
from hpmoe.tile_ops.col_modes import BLOCK, ColMode
from hpmoe.tile_ops.domains import Copies, Experts, Once, Slots, Tiles
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.named import Named
from hpmoe.tile_ops.params import Reduction
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive

MAGIC = 0x484D4F45
VERSION = 10
SECTION_ALIGNMENT = 64


def _members(family: Iterable[Named]) -> dict[str, int]:
    return {member.name.upper(): member.number for member in sorted(family)}


# What is defined in tile_ops, by its numbers there; the C++ side is core/tile_ops.h, made from the same.
PRIMITIVES = {primitive.number: primitive for primitive in sorted(TilePrimitive.members.values())}
Opcode = IntEnum("Opcode", _members(TilePrimitive.members.values()))
MapCode = IntEnum("MapCode", _members(Function.members.values()))
Rows = IntEnum("Rows", _members(RowMode.members.values()))
Cols = IntEnum("Cols", _members(mode for mode in ColMode.members.values() if mode is not BLOCK))
_DOMAINS = {domain.__name__.upper(): domain.number for domain in (Once, Tiles, Slots, Experts, Copies)}
Domain = IntEnum("Domain", list(_DOMAINS.items()))


class Index(IntEnum):
    """How a wait or a signal finds its counter from the event it names: see core/decode.h."""

    STATIC = 0
    SLOT_EXPERT = 1
    ENTRY_TILE = 2
    UNIT = 3
    EXPERT = 4
    PEER = 5
    PEER_UNIT = 6


class Amount(IntEnum):
    """What a signal adds: the rows made ready, or one."""

    ROWS = 0
    COUNT = 1


class Remote(IntEnum):
    """On which rank a signal's counter lives."""

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
    """What happens to entries over an expert's capacity; NONE where experts take everything."""

    NONE = 0
    ERROR = 1
    POSITION = 2
    PROBS = 3


class Code(IntEnum):
    """How a launch ended."""

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
    NO_ROOM = 11
    PEER_DIED = 12
    PEER_LEFT = 13
    PEER_LATE = 14
    PEER_FAILED = 15
    OTHER_CALL = 16
    IDS_CHANGED = 17
    NOT_SHARED = 18
    PEER_LOST = 19


ENUMS = (Opcode, MapCode, Domain, Rows, Cols, Index, Amount, Remote, Extent, Dtype, Reduction, DropPolicy, Code)


def _words(names):
    return [(name, "<i4") for name in names.split()]


HEADER = np.dtype(
    _words(
        "magic version image_bytes num_tasks num_queues num_templates num_ops num_buffers num_events num_event_runs "
        "num_waits num_signals num_routes num_shares num_stops ep_size tile_rows index_bits "
        "tasks_offset queues_offset templates_offset ops_offset buffers_offset event_runs_offset waits_offset "
        "signals_offset routes_offset shares_offset stops_offset peer_order_offset num_behind most_received"
    )
)
TASK = np.dtype("<u4")
TASK_TEMPLATE = np.dtype(_words("op first_wait num_waits first_signal num_signals"))
WAIT = np.dtype(_words("event kind"))
SIGNAL = np.dtype(_words("event") + [("kind", "<i2"), ("amount", "<i2")] + _words("remote"))
EVENT_RUN = np.dtype(_words("first extent index mult route"))
BUFFER = np.dtype(_words("cols rows_per_expert dtype rows"))
ROUTE = np.dtype(
    _words("ids_buffer num_experts num_local_experts top_k num_slots num_tokens max_rows drop_policy")
    + _words("weights_buffer first_share of over first_stop return_tokens alignment tp_size")
    + [("capacity_factor", "<f8")]
)
SHARE = np.dtype(_words("expert low high"))
OPERAND = np.dtype(
    _words("buffer")
    + [("rows", "<i2"), ("cols", "<i2"), ("offset", "<i4"), ("value", "<f4"), ("reserved", "<i4", (2,))]
)
OP = np.dtype(
    _words("opcode domain route num_rows clipped blocks")
    + [("num_operands", "<i2"), ("num_outputs", "<i2")]
    + _words("first_row num_units num_peers cols tile_cols")
    + [("param", "<i4", (4,)), ("operands", OPERAND, (MAX_OPERANDS,))]
)
STATUS = np.dtype(_words("code rank queue task event wait") + [("value", "<i8"), ("threshold", "<i8")])

DTYPES = {
    "Header": HEADER,
    "TaskTemplate": TASK_TEMPLATE,
    "Wait": WAIT,
    "Signal": SIGNAL,
    "EventRun": EVENT_RUN,
    "Buffer": BUFFER,
    "Route": ROUTE,
    "Share": SHARE,
    "Operand": OPERAND,
    "Op": OP,
    "Status": STATUS,
}

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
