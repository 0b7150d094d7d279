"""The capability table of the Ascend kernel, on an NPU and on its emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.runtime.bodies import Bodies
from hpmoe.tile_ops.tile_primitive import TilePrimitive


class Limit(NamedTuple):
    """A number that the kernel takes up to `most`.

    Attributes:
        of: the number of a route, given how many ranks there are; 0 for a route that the limit is not about.
    """

    what: str
    most: int
    of: Callable[[RoutePlan, int], int]


LIMITS = (
    Limit("top_k", 512, lambda plan, _: plan.top_k),
    Limit("num_experts, with copies,", 1024,
          lambda plan, ep_size: max(plan.num_experts, plan.num_local_experts * ep_size)),
    Limit("the ranks among which relays pass rows on", 448, lambda plan, ep_size: ep_size if plan.kind.is_to_relays else 0),
    Limit("the copies of a rank's experts", 64, lambda plan, _: plan.placement.most_copies if plan.placement else 0),
    Limit("the rows of a tile", 2**20 - 1, lambda plan, _: min(plan.tile_rows, plan.max_rows)),
)
MOST_COLUMNS = 65_535  # of a matmul's operand: a parameter of 16 bits
MOST_QUANTISED = 8192  # columns of a row that is quantised: two buffers of UB hold it in float32
MOST_ROW_BYTES = 8192  # of rows that are sorted, or picked from and added up by an index: a piece of UB
MOST_GUARDED = 16_384  # columns of a row in which other values come in the place of some

# Operations of hpmoe.moe_ffn in both passes, for a small build.
OF_MOE_FFN = {"GMM", "KEEP", "MAP", "NOTIFY", "PUT", "PUT_BACK", "REDUCE", "ROW_DOT", "SWIGLU", "SWIGLU_GRAD", "WGRAD"}

BODIES = Bodies(
    operations=frozenset(TilePrimitive.members) - {"ALL_TO_ALL", "ALL_TO_ALL_BACK", "LAUNCH", "GMM_DEQUANTIZED"},
    at_most={
        **{limit.what.strip(","): limit.most for limit in LIMITS},
        "columns of a product's operand": MOST_COLUMNS,
        "columns of a row that is quantised, as int8, on a 950 also fp8, with a scale a row, or as mxfp8, of any":
            MOST_QUANTISED,
        "columns of a guarded row": MOST_GUARDED,
        "bytes of a row of TOP_K, TAKE_COLS, ADD_COLS, CUMSUM": MOST_ROW_BYTES,
    },
)
