"""The packed image as NumPy dtypes and enums: the Python side of protocol.h, and the only one.

>>> TASK.itemsize, OP.itemsize, Opcode.GMM.value
(4, 208, 4)
"""

from enum import IntEnum

import numpy as np

MAGIC = 0x484D4F45
VERSION = 5
SECTION_ALIGNMENT = 64
MAX_OPERANDS = 6


class Opcode(IntEnum):
    """What a task's body does."""

    PUT = 1
    PUT_BACK = 2
    REDUCE = 3
    GMM = 4
    WGRAD = 5
    MAP = 6
    SWIGLU = 7
    SWIGLU_GRAD = 8
    ROW_REDUCE = 9
    ROW_DOT = 10
    COL_SUM = 11
    ALL_TO_ALL = 12
    ALL_TO_ALL_BACK = 13
    NOTIFY = 14
    GATHER = 15
    KEEP = 16
    DROP_COUNTS = 17
    LAUNCH = 18
    REPLICATE = 19
    RETURN_GRADS = 20
    FAN_OUT = 21
    FAN_IN = 22


class MapCode(IntEnum):
    """The scalar function of a MAP: one input below 32, two below 64, three for SELECT; FILL takes its immediate."""

    COPY = 0
    NEG = 1
    EXP = 2
    LOG = 3
    SQRT = 4
    RSQRT = 5
    SIGMOID = 6
    TANH = 7
    SILU = 8
    RELU = 9
    ERF = 10
    ABS = 11
    RECIPROCAL = 12
    SQUARE = 13
    SIN = 14
    COS = 15
    SIGN = 16
    SOFTPLUS = 17
    FLOOR = 18
    ADD = 32
    SUB = 33
    MUL = 34
    DIV = 35
    POW = 36
    MAXIMUM = 37
    MINIMUM = 38
    GREATER = 39
    GREATER_EQUAL = 40
    LESS = 41
    LESS_EQUAL = 42
    EQUAL = 43
    NOT_EQUAL = 44
    SELECT = 64
    FILL = 65


class Domain(IntEnum):
    """What a task's `row` counts."""

    ONCE = 0
    TILES = 1
    SLOTS = 2
    EXPERTS = 3
    COPIES = 4


class Rows(IntEnum):
    """Which rows of an operand a task touches."""

    OWN = 0
    ALL = 1
    ONE = 2
    SLOT_EXPERT = 3
    EXPERT = 4
    PEER = 5
    ENTRIES = 6
    TOKENS = 7
    REPLICA = 8
    RETURNED = 9
    FAN = 10


class Cols(IntEnum):
    """Which columns of an operand a task touches."""

    OWN = 0
    ALL = 1
    ONE = 2


class Index(IntEnum):
    """How a wait or a signal finds its counter from the event it names: see decode.h."""

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


class Dtype(IntEnum):
    """The element type of a buffer."""

    FLOAT32 = 0
    INT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3


class Reduction(IntEnum):
    """What a ROW_REDUCE computes."""

    SUM = 0
    MAX = 1


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


ENUMS = (Opcode, MapCode, Domain, Rows, Cols, Index, Amount, Remote, Extent, Dtype, Reduction, DropPolicy, Code)


def _words(names):
    return [(name, "<i4") for name in names.split()]


HEADER = np.dtype(
    _words(
        "magic version image_bytes num_tasks num_queues num_forms num_ops num_buffers num_events num_event_runs num_waits "
        "num_signals num_routes num_shares ep_size tile_rows index_bits "
        "tasks_offset queues_offset forms_offset ops_offset buffers_offset event_runs_offset waits_offset signals_offset "
        "routes_offset shares_offset peer_order_offset"
    )
)
TASK = np.dtype("<u4")
FORM = np.dtype(_words("op first_wait num_waits first_signal num_signals"))
WAIT = np.dtype(_words("event kind"))
SIGNAL = np.dtype(_words("event") + [("kind", "<i2"), ("amount", "<i2")] + _words("remote"))
EVENT_RUN = np.dtype(_words("first extent index mult route"))
BUFFER = np.dtype(_words("cols rows_per_expert dtype rows"))
ROUTE = np.dtype(
    _words("ids_buffer num_experts num_local_experts top_k num_slots num_tokens max_rows drop_policy")
    + _words("weights_buffer first_share once_of return_tokens")
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
    "Form": FORM,
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
    "forms": FORM,
    "ops": OP,
    "buffers": BUFFER,
    "event_runs": EVENT_RUN,
    "waits": WAIT,
    "signals": SIGNAL,
    "routes": ROUTE,
    "shares": SHARE,
    "peer_order": np.dtype("<i4"),
}
