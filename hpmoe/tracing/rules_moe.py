"""MindSpore's own token permutation, which is a primitive here."""

from __future__ import annotations

from typing import NoReturn

from mindspore import Tensor

from hpmoe.primitives.permute import permute, unpermute
from hpmoe.tracing.calls import call
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Tracer


@call("MoeTokenPermute")
def moe_token_permute(r: Recorder, tokens: Tracer, indices: Tracer, num_out_tokens: int | None = None,
                      padded_mode: bool = False) -> tuple[Tensor, Tensor]:
    return permute(tokens, indices, num_out_tokens or 0, padded_mode)


@call("MoeTokenUnpermute")
def moe_token_unpermute(r: Recorder, permuted_tokens: Tracer, sorted_indices: Tracer, probs: Tracer | None = None,
                        padded_mode: bool = False, restore_shape: object = None) -> Tensor:
    if padded_mode or restore_shape is not None:
        raise not_traceable("moe_token_unpermute with padding", "the primitive keeps every row", "padded_mode=False")
    return unpermute(permuted_tokens, sorted_indices, probs)


@call("GroupedMatmul", "GroupedMatmulV2", "GroupedMatmulV4")
def grouped_matmul(r: Recorder, *args: object, **kwargs: object) -> NoReturn:
    raise not_traceable("ops.grouped_matmul", "its groups are not tied to a route",
                        "rows, route = hpmoe.dispatch(...); hpmoe.grouped_matmul(rows, weight, route)")
