"""Router replay: the expert ids of a record, with unset entries left to the router or masked."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint, ops

from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.scores import check_ids, described
from hpmoe.support.errors import check_argument, is_int, is_name, tensor_advice
from hpmoe.support.keywords import suggests_keywords

UNSET = -1
WHO = "hpmoe.router.replay"


@suggests_keywords
def replay(topk_ids: Tensor, record: Tensor, *, unset: str, layer: int | None = None) -> Tensor:
    """Returns the recorded expert ids, with the unset entries (-1) routed or masked.

    vLLM, SGLang, Megatron and verl record the ids of each token and write -1 where they recorded none. Elsewhere in hpmoe an
    id of -1 is a masked entry, so `unset` has no default. Each entry is decided by itself: a recorded id keeps its column,
    and the unset entries of a row take, from left to right, the best routed experts that the row does not record. So a row
    without a record has the routed ids, and recorded and routed ids are never equal.

    The record is an argument of the call. A call that runs again, by recomputation, reads the same ids; a microbatch passes
    its own rows of the record.

    Args:
        topk_ids: [T, K] int32 or int64, the ids that the router chose, best first, by `hpmoe.route`.
        record: [T, K] int32 or int64, or [T, layers, K] with `layer`.
        unset: "route" gives an unset entry to a routed expert; "mask" keeps -1, an entry without an expert.
        layer: the index into the layers of a record [T, layers, K]; None for a record [T, K].

    Returns:
        [T, K], of the record's dtype. Their weights are `router.weigh`'s, with gradients by the logits. An unset entry stays
        -1 if the router chose no expert for it.

    Raises:
        ArgumentError: an argument does not fit. `router.weigh` and `hpmoe.dispatch` raise if a recorded id is no expert.

    Source: Ma et al., Stabilizing MoE reinforcement learning by aligning training and inference routers (arXiv 2510.11370).

    Example:
        >>> import mindspore as ms
        >>> routed = ms.Tensor([[5, 7], [5, 7], [5, 7]], ms.int32)
        >>> record = ms.Tensor([[1, 2], [-1, 5], [-1, -1]], ms.int32)
        >>> replay(routed, record, unset="route").asnumpy().tolist()
        [[1, 2], [7, 5], [5, 7]]
    """
    outside_graphs(WHO)
    check_argument(is_name(unset, ("route", "mask")), WHO, "unset", repr(unset), "\"route\" or \"mask\"")
    check_ids(WHO, topk_ids)
    ids = _of_layer(record, layer, tuple(topk_ids.shape))
    if unset == "mask":
        return ids
    chosen, is_unset = topk_ids.astype(ms.int32), mint.eq(ids, UNSET)
    num_equal = mint.sum(mint.unsqueeze(chosen, 2) == mint.unsqueeze(ids, 1), 2)  # recorded ids that equal a routed one
    is_free = mint.logical_and(chosen >= 0, num_equal == 0).astype(ms.int32)
    nth_free, nth_unset = ops.cumsum(is_free, -1) * is_free, ops.cumsum(is_unset.astype(ms.int32), -1)
    takes = mint.unsqueeze(nth_unset, 2) == mint.unsqueeze(nth_free, 1)  # [T, entry, routed id]
    taken = mint.sum(mint.where(takes, mint.unsqueeze(chosen, 1) - UNSET, 0), 2) + UNSET
    return mint.where(is_unset, taken.astype(ids.dtype), ids)


def _of_layer(record: Tensor, layer: int | None, shape: tuple[int, ...]) -> Tensor:
    is_ids = isinstance(record, Tensor) and record.dtype in (ms.int32, ms.int64)
    check_argument(is_ids, WHO, "record", described(record), "an int32 or int64 Tensor", tensor_advice("record", record))
    expected = [shape[0], shape[1]] if layer is None else [shape[0], "layers", shape[1]]
    fits = record.ndim == len(expected) and (record.shape[0], record.shape[-1]) == shape
    check_argument(fits, WHO, "record", described(record), f"[{', '.join(map(str, expected))}]",
                   "Write layer= to choose one of [T, layers, K]." if layer is None and record.ndim == 3 else "")
    if layer is None:
        return record
    check_argument(is_int(layer, 0, record.shape[1] - 1), WHO, "layer", repr(layer), f"an int in 0..{record.shape[1] - 1}")
    return record[:, int(layer)]
