"""The flags of a layer and of its schedule, defined once for all commands, and what they stand for."""

from __future__ import annotations

from absl import flags

from hpmoe.commands import options
from hpmoe.commands.layer import QUANTISED, ROW_CAPACITY, Layer
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.commands.options import check_flag
from hpmoe.commands.routing_flag import define_routing, routing_of
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS
from hpmoe.transforms.send_rows import SCHEMES

DIRECTIONS = "forward", "backward", "both"
AUTOTUNED = ("tile_rows", "tile_cols", "signal", "order", "combine_order", "put_cols", "returns", "scheme",
             "prefetch")  # flags of what autotune decides
MOST_IDS = 2**28  # of all ranks, a GiB
MOST_DRAWS = 2**30  # one for each expert of each token, half a minute


def define_layer(values: flags.FlagValues, dtype: str = "float32", **sizes: int) -> None:
    """Defines the flags of a layer, with the defaults of a command."""
    with options.grouped(values):
        options.define_sizes(values, **sizes)
        options.define_dtype(values, dtype)
        options.define_integer(values, "seed", 0, "seed of the random inputs and of the routing", least=0)


def define_schedule(values: flags.FlagValues, direction: str = "forward", machine: str = "ascend_a3",
                    row_capacity: str = "received") -> None:
    """Defines the flags of a pass, its routing, a machine, and how its taskflow is ordered."""
    with options.grouped(values):
        options.define_choice(values, "direction", direction, "which pass", DIRECTIONS)
        define_machine(values, machine, "what the schedule is for")
        options.define_number(values, "imbalance", 1.0, "rows that the fullest rank receives, over the mean; 1 is balanced")
        define_routing(values)
        options.define_choice(values, "row_capacity", row_capacity, "received rows that the plan can hold", ROW_CAPACITY)
        options.define_integer(values, "replicas", 0, "copies of hot experts that each rank can hold", least=0)
        options.define_number(values, "min_load", None, "rows that a copy must take; by default what hides its weights")
        options.define_choice(values, "scheme", "direct", "how rows are sent", tuple(SCHEMES))
        options.define_choice(values, "quantize", None, "how rows go", QUANTISED)
        options.define_integer(values, "tile_rows", None,
                               "rows of a tile and of a slot; by default \"auto\" of tile_partition")
        options.define_integer(values, "tile_cols", None, "columns of a tile; by default \"auto\"")
        options.define_choice(values, "order", "ratr", "in which order a rank sends to the others", tuple(ORDERS))
        options.define_choice(values, "combine_order", None, "in which it sends rows back; by default as --order",
                              tuple(ORDERS))
        options.define_choice(values, "signal", "tile", "what one remote signal stands for", SIGNALS)
        options.define_choice(values, "put_cols", "auto", "columns of a put", ("auto", "tile"))
        options.define_integer(values, "returns", 2, "events that count returned rows; 0 for one a tile", least=0)
        options.define_switch(values, "prefetch", "matrix workers read weights while they wait for rows")
        options.define_choice(values, "policy", "critical_path", "how tasks are queued", (*POLICIES, "autotune"))


def define_simulated(values: flags.FlagValues, direction: str = "forward") -> None:
    """Defines the flags of a layer that is simulated, by default one of DeepSeek-V3's size on 8 NPUs."""
    define_layer(values, "bfloat16", ep=8, tokens=4096, hidden=7168, intermediate=2048, experts=64, top_k=8)
    define_schedule(values, direction)


def check_schedule(o: flags.FlagValues) -> None:
    """Raises UsageError if flags of a layer and its schedule do not fit each other."""
    options.check_sizes(o)
    most = min(o.ep, o.experts / o.top_k)
    check_flag(1 <= o.imbalance <= most, "imbalance", f"{o.imbalance:g}", f"from 1 to {most:g} for these sizes")
    tokens = MOST_IDS // (o.ep * o.top_k)
    check_flag(o.tokens <= tokens, "tokens", o.tokens, f"at most {tokens} with --ep={o.ep} and --top_k={o.top_k}")
    for name in AUTOTUNED if o.policy == "autotune" else ():
        check_flag(o[name].using_default_value, name, o[name].value, "left out with --policy=autotune")
    if o.routing != "balanced":
        check_flag(o.imbalance == 1, "imbalance", f"{o.imbalance:g}", f"1 with --routing={o.routing}")
        check_draws(o, o.ep)


def check_one_pass(o: flags.FlagValues) -> None:
    """Raises UsageError unless the flags name one direction."""
    check_flag(o.direction != "both", "direction", o.direction, "forward or backward")


def check_policy(o: flags.FlagValues) -> None:
    """Raises UsageError if the policy is left to autotune."""
    check_flag(o.policy in POLICIES, "policy", o.policy, f"one of {', '.join(POLICIES)}")


def check_copies(min_load: float | None, replicas: int) -> None:
    """Raises UsageError if it is said which copies are worth making, and no copies are made."""
    check_flag(min_load is None or replicas > 0, "min_load", f"{min_load:g}" if min_load is not None else "",
               "left out without --replicas")


def check_draws(o: flags.FlagValues, ep: int) -> None:
    """Raises UsageError if a routing for this number of ranks takes too long to draw."""
    experts = o.experts // o.ep * ep
    tokens = MOST_DRAWS // (ep * experts)
    check_flag(o.tokens <= tokens, "tokens", o.tokens,
               f"at most {tokens} for {experts} experts on {ep} ranks, whose routing is sampled; "
               "lower --tokens or --experts")


def put_cols_of(o: flags.FlagValues) -> str | None:
    """Returns `cols` of overlap_comm."""
    return "auto" if o.put_cols == "auto" else None


def layer_of(o: flags.FlagValues, direction: str | None = None) -> Layer:
    """Returns the layer that flags describe, in their direction or another."""
    return Layer(o, direction or o.direction, machine_of(o, is_calibrated()), routing_of(o, o, o.imbalance), o.replicas,
                 tuned=True, scheme=o.scheme, quantize=o.quantize, row_capacity=o.row_capacity, prefetch=o.prefetch)
