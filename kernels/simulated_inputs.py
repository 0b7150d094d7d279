"""The inputs of a simulation besides the taskflow: ids of each rank's tokens, weights that decide drops, and lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from mindspore import Tensor

from hpmoe.ir.taskflow import RoutePlan, Taskflow
from hpmoe.routing.capacity import ABSENT, PerRank
from hpmoe.routing.recorded_loads import ids_of_loads
from hpmoe.routing.workload import balanced_ids, imbalanced_ids
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import check_argument, is_int, is_number

Routing = PerRank | float | None


def lengths_of(flow: Taskflow, num_tokens: Sequence[int] | None) -> list[int]:
    """Returns the number of tokens of each rank: the given ones, else the capacity of a rank."""
    most = max([r.num_tokens for r in flow.routes] or [op.domain.clipped_rows for op in flow.ops], default=0)
    if num_tokens is None:
        return [most] * flow.ep_size
    is_ok = _is_list(num_tokens) and len(num_tokens) == flow.ep_size and all(is_int(n, 0, most) for n in num_tokens)
    check_argument(is_ok, "hpmoe.simulate", "num_tokens", repr(num_tokens), f"{flow.ep_size} ints from 0 to {most}")
    return [int(n) for n in num_tokens]


def inputs_of(flow: Taskflow, routing: Routing, seed: int, topk_weights: Sequence[np.ndarray] | None,
              loads: np.ndarray | None = None) -> list[dict[int, np.ndarray]]:
    """Returns the arrays that each rank's routes read, by buffer."""
    check_argument(is_int(seed, 0, 2**63), "hpmoe.simulate", "seed", repr(seed), "an int of at least 0")
    check_argument(loads is None or routing is None, "hpmoe.simulate", "loads", "given with routing", "one of both")
    out: list[dict[int, np.ndarray]] = [{} for _ in range(flow.ep_size)]
    for plan in (p for p in flow.routes if not p.kind.is_of_tokens):
        for mine, ids in zip(out, _ids(plan, routing, seed, loads), strict=True):
            mine[plan.ids] = ids
        for mine, weights in zip(out, _weights(flow, plan, routing, topk_weights), strict=False):
            mine[plan.weights] = weights
    return out


def _ids(plan: RoutePlan, routing: Routing, seed: int, loads: np.ndarray | None) -> PerRank:
    sizes = (plan.ep_size, plan.num_tokens, plan.num_choices, plan.num_model_experts)
    if loads is not None:
        counts = np.asarray(loads)
        check_argument(counts.shape == sizes[3:], "hpmoe.simulate", "loads", f"of shape {counts.shape}",
                       f"[{sizes[3]}] numbers, one for each expert")
        return ids_of_loads(counts, *sizes[:3], seed)
    if routing is None or (is_number(routing) and routing == 1):
        return balanced_ids(*sizes)
    if isinstance(routing, (int, float, np.number)) and is_number(routing):
        return imbalanced_ids(*sizes, imbalance=cast(float, routing), seed=seed)
    return given_ids("hpmoe.simulate", cast(PerRank, routing), *sizes, ", or an imbalance")


def given_ids(who: str, routing: PerRank, ep_size: int, num_tokens: int, top_k: int, num_experts: int,
              other: str = "", name: str = "routing") -> list[np.ndarray]:
    """Returns topk_ids of each rank as int32; raises ArgumentError unless they are ints of these sizes, or `other`."""
    routing = routing.asnumpy() if isinstance(routing, Tensor) else routing
    is_list, shape = _is_list(routing), (num_tokens, top_k)
    check_argument(is_list and len(routing) == ep_size, who, name,
                   f"of {len(routing)} ranks" if is_list else repr(routing), f"topk_ids of {ep_size} ranks{other}")
    out = []
    for rank, ids in enumerate(map(_array, routing)):
        is_ok = ids.shape == shape and (ids.dtype.kind in "iu" or not ids.size)
        check_argument(is_ok and (not ids.size or (ids.min() >= ABSENT and ids.max() < num_experts)), who,
                       f"{name}[{rank}]", _described(ids),
                       f"ints of shape {shape} in 0..{num_experts - 1}, or {ABSENT} for no expert")
        out.append(np.ascontiguousarray(ids, np.int32))
    return out


def _is_list(given: object) -> bool:
    return given.ndim > 0 if isinstance(given, np.ndarray) else isinstance(given, Sequence) and not isinstance(given, str)


def _array(given: object) -> np.ndarray:
    """Converts an argument to an array; an empty one if rows differ in length."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.array(None)


def _described(ids: np.ndarray) -> str:
    values = f" in {ids.min()}..{ids.max()}" if ids.size and ids.dtype.kind in "iuf" else ""
    return f"{ids.dtype} of shape {ids.shape}{values}"


def _weights(flow: Taskflow, plan: RoutePlan, routing: Routing, given: Sequence[np.ndarray] | None
             ) -> Iterator[np.ndarray]:
    """Returns each rank's weights that decide which entries are dropped; none if no policy reads them."""
    if given is not None:
        check_argument(_is_list(given) and len(given) == flow.ep_size, "hpmoe.simulate", "topk_weights",
                       f"of {len(given)} ranks" if _is_list(given) else repr(given), f"of {flow.ep_size} ranks")
    if plan.weights < 0:
        return
    shape, dtype = (plan.num_tokens, plan.num_choices), numpy_dtype(flow.buffers[plan.weights].dtype)
    is_drawn = routing is None or is_number(routing)
    check_argument(is_drawn or given is not None, "hpmoe.simulate", "topk_weights", "None",
                   "given with routing: drop_policy=\"probs\" keeps the entries with the largest")
    for rank in range(flow.ep_size):
        mine = np.zeros(shape) if given is None else _array(given[rank])
        check_argument(mine.shape == shape and mine.dtype.kind != "O", "hpmoe.simulate", f"topk_weights[{rank}]",
                       f"of shape {mine.shape}", f"of shape {shape}")
        yield np.ascontiguousarray(mine, dtype)
