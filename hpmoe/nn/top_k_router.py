"""TopKRouter: a router's weight and its choice of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import mindspore as ms
from mindspore import Tensor, mint, nn

from hpmoe.nn.on_ranks import FLOATS, check_dtype, reshaped, rows_shape, shape_of, transformed
from hpmoe.nn.parameters import Frozen, check_sampled, check_sizes, normal, zeros
from hpmoe.nn.records import without_masked
from hpmoe.primitives.matmul import matmul
from hpmoe.router.choice import NUM_SUMMED
from hpmoe.router.replay import replay
from hpmoe.router.route import route
from hpmoe.router.scores import LEAST_SUM
from hpmoe.router.weights import weigh
from hpmoe.support.errors import check_argument, check_flags, is_int, is_name, is_number, warn
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.mindspore_private import keep_whole
from hpmoe.support.trees import Function

SCORES = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrt_softplus",
          "sparsemixer": "sparsemixer"}  # as hpmoe.route calls them


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice of experts, by the options of `hpmoe.route`."""

    top_k: int
    score: str
    num_groups: int
    topk_groups: int
    normalize: bool
    scale: float
    group_score: str
    epsilon: float

    def __call__(self, hidden_states: Tensor, router: Mapping[str, Tensor], expert_bias: Tensor | None,
                 record: Tensor | None = None, unset: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (logits [T, E], topk_ids, topk_weights) of hidden states, in float32; ids of a record are replayed."""
        weight = _wide(router["weight"])
        if "masked" in router:  # 1 for an expert that no token may choose; a NaN in its row would reach the gradient of x
            weight = mint.where(router["masked"].reshape(-1, 1) > 0, 0.0, weight)
        logits = matmul(_wide(hidden_states), weight, transpose=True)
        if "bias" in router:
            logits = logits + _wide(router["bias"])
        if "masked" in router:
            logits = mint.where(router["masked"] > 0, float("-inf"), logits)
        ids, weights = route(logits, self.top_k, score=self.score, bias=expert_bias,
                             num_groups=self.num_groups, topk_groups=self.topk_groups, normalize=self.normalize,
                             scale=self.scale, group_score=self.group_score, epsilon=self.epsilon)
        if record is not None:
            record = without_masked(record, logits) if "masked" in router else record
            ids = replay(ids, record, unset=cast(str, unset))
            weights = weigh(logits, ids, score=self.score, normalize=self.normalize, scale=self.scale,
                            epsilon=self.epsilon)
        return logits, ids, weights


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == ms.float32 else x.astype(ms.float32)


@suggests_keywords
@keep_whole
class TopKRouter(nn.Cell):
    """Chooses the experts of each token and computes their weights from logits x @ weight.T, as `hpmoe.route` does.

    Args:
        hidden_size: H.
        num_moe_experts: E.
        moe_router_topk: K, experts of each token.
        moe_router_score_function: "softmax", "sigmoid" or "sqrtsoftplus" of the logits, or "sparsemixer"; see `hpmoe.route`.
        norm_topk_prob: True divides the weights of a token by their sum. With moe_router_topk=1 each weight is then constant
            and the router has no gradient, so the constructor warns.
        moe_router_topk_scaling_factor: factor of the weights; None is 1.
        moe_router_num_groups: number of groups of experts; None is 1.
        moe_router_group_topk: number of groups that a token's experts are chosen from; None is 1.
        moe_router_group_score: the score of a group: "sum_of_two", of its two best experts, or "largest".
        moe_router_norm_epsilon: number added to the sum that norm_topk_prob divides by.
        add_bias_linear: whether a bias is added to the logits.
        init_method_std: standard deviation of the initial weight.
        dtype: dtype of the Parameters; logits are always float32.
        transforms: transform of the function that chooses experts; None makes one kernel.

    Inputs:
        hidden_states: [..., H], float32 or half precision.
        expert_bias: None, or [E] float32, added to the scores for the choice of experts, but not for their weights.

    Outputs:
        (topk_ids int32 [..., K], topk_weights float32 [..., K]), best first.

    Parameters:
        weight [E, H]; bias [E] if add_bias_linear; and, not trained, masked [E] int32, 1 for an expert that no token
        may choose, see `MoELayer.mask_experts`.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> router = hpmoe.nn.TopKRouter(hidden_size=8, num_moe_experts=4, moe_router_topk=2)
        >>> ids, weights = router(ms.ops.ones((5, 8)))
        >>> ids.shape, weights.asnumpy().sum(-1).round(3).tolist()
        ((5, 2), [1.0, 1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, *, hidden_size: int, num_moe_experts: int, moe_router_topk: int = 2,
                 moe_router_score_function: str = "softmax", norm_topk_prob: bool = True,
                 moe_router_topk_scaling_factor: float | None = None, moe_router_num_groups: int | None = None,
                 moe_router_group_topk: int | None = None, moe_router_group_score: str = "sum_of_two",
                 moe_router_norm_epsilon: float = LEAST_SUM, add_bias_linear: bool = False, init_method_std: float = 0.02,
                 dtype: object = ms.float32, transforms: Function | None = None):
        super().__init__()
        self.who = "hpmoe.nn.TopKRouter"
        check_sizes(self.who, hidden_size=hidden_size, num_moe_experts=num_moe_experts)
        check_flags(self.who, norm_topk_prob=norm_topk_prob, add_bias_linear=add_bias_linear)
        check_sampled(self.who, init_method_std, dtype)
        self.choice = make_choice(self.who, num_moe_experts, moe_router_topk, moe_router_score_function, norm_topk_prob,
                                  moe_router_topk_scaling_factor, moe_router_num_groups, moe_router_group_topk,
                                  moe_router_group_score, moe_router_norm_epsilon)
        if moe_router_topk == 1 and norm_topk_prob:
            warn(f"{self.who}: moe_router_topk=1 with norm_topk_prob=True makes every weight the scaling factor, whatever "
                 "the logits, so the output gives the router no gradient. Write norm_topk_prob=False.")
        self.hidden_size = hidden_size
        self.weight = normal("weight", (num_moe_experts, hidden_size), init_method_std, dtype)
        self.has_bias = add_bias_linear
        if add_bias_linear:
            self.bias = zeros("bias", (num_moe_experts,), dtype)
        self.masked = zeros("masked", (num_moe_experts,), ms.int32, requires_grad=False)
        choice = self.choice

        def top_k_router(hidden_states: Tensor, router: Mapping[str, Tensor], expert_bias: Tensor | None
                         ) -> tuple[Tensor, ...]:
            return choice(hidden_states, router, expert_bias)[1:]
        self.compute = transformed(self.who, top_k_router, transforms, None, (), Frozen(self, "router_"))

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns the tensors that the choice reads, by name."""
        found = {"weight": self.weight, "masked": self.masked}
        if self.has_bias:
            found["bias"] = self.bias
        return found

    def construct(self, hidden_states: Tensor, expert_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = reshaped(hidden_states, rows_shape(self.who, shape_of(hidden_states), self.hidden_size, 0))
        check_dtype(self.who, "hidden_states", rows.dtype, FLOATS)
        ids, weights = self.compute(rows, self.tensors(), expert_bias)
        shape = (*hidden_states.shape[:-1], -1)
        return reshaped(ids, shape), reshaped(weights, shape)


def make_choice(who: str, num_moe_experts: int, moe_router_topk: int, moe_router_score_function: str, norm_topk_prob: bool,
                moe_router_topk_scaling_factor: float | None, moe_router_num_groups: int | None,
                moe_router_group_topk: int | None, moe_router_group_score: str = "sum_of_two",
                moe_router_norm_epsilon: float = LEAST_SUM) -> Choice:
    """Returns a Choice from MindFormers' names of its options."""
    check_argument(is_name(moe_router_score_function, tuple(SCORES)), who, "moe_router_score_function",
                   repr(moe_router_score_function), f"one of {', '.join(SCORES)}")
    scale = 1.0 if moe_router_topk_scaling_factor is None else moe_router_topk_scaling_factor
    check_argument(is_number(scale), who, "moe_router_topk_scaling_factor", repr(scale), "a finite float32 number, or None")
    groups = 1 if moe_router_num_groups is None else moe_router_num_groups
    best = 1 if moe_router_group_topk is None else moe_router_group_topk
    check_argument(is_int(groups, 1, num_moe_experts) and num_moe_experts % groups == 0, who, "moe_router_num_groups",
                   repr(groups), f"an int that divides the {num_moe_experts} experts, or None")
    check_argument(is_int(best, 1, groups), who, "moe_router_group_topk", repr(best), f"an int in 1..{groups}, or None")
    most = num_moe_experts // groups * best
    check_argument(is_int(moe_router_topk, 1, most), who, "moe_router_topk", repr(moe_router_topk), f"an int in 1..{most}")
    check_argument(is_name(moe_router_group_score, NUM_SUMMED), who, "moe_router_group_score", repr(moe_router_group_score),
                   f"one of {', '.join(NUM_SUMMED)}")
    check_argument(is_number(moe_router_norm_epsilon) and moe_router_norm_epsilon >= 0, who, "moe_router_norm_epsilon",
                   repr(moe_router_norm_epsilon), "a float32 number of at least 0")
    return Choice(moe_router_topk, SCORES[moe_router_score_function], groups, best, norm_topk_prob, float(scale),
                  moe_router_group_score, float(moe_router_norm_epsilon))
