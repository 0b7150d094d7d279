"""Parts of routers beside `hpmoe.route`: pure functions on tensors, traced and eager.

    weights for ids from elsewhere: weigh, hash_ids (hash layers), balanced_ids and uniform_ids (forced)
    recorded ids, with unset entries routed or masked: replay
    noise that a seed decides: jitter, gumbel, straight_through
    losses and counts: aux_loss, sequence_loss, global_batch_loss, z_loss, tokens_per_expert, drop_counts, update_bias

Example:
    >>> import mindspore as ms, hpmoe
    >>> from hpmoe import router
    >>> logits = ms.Tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    >>> ids, weights = hpmoe.route(logits, 2)
    >>> router.tokens_per_expert(ids, num_experts=3).asnumpy().tolist()
    [2, 1, 1]
    >>> router.weigh(logits, ids).asnumpy().round(2).tolist() == weights.asnumpy().round(2).tolist()
    True
"""

from hpmoe.primitives.route import drop_counts as drop_counts
from hpmoe.router.counts import tokens_per_expert as tokens_per_expert, update_bias as update_bias
from hpmoe.router.forced import balanced_ids as balanced_ids, hash_ids as hash_ids, uniform_ids as uniform_ids
from hpmoe.router.losses import (
    aux_loss as aux_loss,
    global_batch_loss as global_batch_loss,
    sequence_loss as sequence_loss,
    z_loss as z_loss,
)
from hpmoe.router.noise import gumbel as gumbel, jitter as jitter, straight_through as straight_through
from hpmoe.router.replay import replay as replay
from hpmoe.router.weights import weigh as weigh

__all__ = ["aux_loss", "balanced_ids", "drop_counts", "global_batch_loss", "gumbel", "hash_ids", "jitter", "replay",
           "sequence_loss", "straight_through", "tokens_per_expert", "uniform_ids", "update_bias", "weigh", "z_loss"]
