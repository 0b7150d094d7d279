"""MoELayer: router, experts and a shared expert, as one function through the transforms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import mindspore as ms
from mindspore import Tensor, mint, nn, ops

from hpmoe.balance.balancer import Balancer, Move
from hpmoe.balance.optimizer_states import states_of
from hpmoe.machines.machine import Mesh
from hpmoe.nn.counting import check_counted, check_whole, clear, count, is_recomputed
from hpmoe.nn.grouped_mlp import Activation, Experts, GroupedMLP
from hpmoe.nn.on_ranks import FLOATS, check_dtype, known_shape, reshaped, rows_shape, shape_of, transformed
from hpmoe.nn.parameters import Frozen, check_sizes, zeros
from hpmoe.nn.records import rows_of_record
from hpmoe.nn.router_losses import Losses, make_losses
from hpmoe.nn.shared_experts import SharedExperts, run_shared
from hpmoe.nn.sum_of_processes import SumOfProcesses
from hpmoe.nn.top_k_router import Choice, TopKRouter
from hpmoe.primitives.in_float32 import weight_beside
from hpmoe.primitives.outside_graphs import constexpr
from hpmoe.primitives.swiglu import swiglu
from hpmoe.ranks.world import World
from hpmoe.router.counts import tokens_per_expert, update_bias
from hpmoe.router.scores import LEAST_SUM
from hpmoe.runtime.transform import chain
from hpmoe.support.errors import check_argument, check_flags, is_int, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.mindspore_private import keep_whole
from hpmoe.support.trees import Function, PyTree

# of tokens, router, expert_bias, experts, shared expert, number of sequences, recorded ids, unset, output bias, real tokens
IN_AXES = (0, None, None, 0, None, None, 0, None, None, 0)


@suggests_keywords
@keep_whole
class MoELayer(nn.Cell):
    """A mixture-of-experts layer: router, experts and shared expert, by default one forward and one backward kernel.

    Arguments and Parameters have the names of MindFormers, and Parameters the layout of its PyNative layers.

    Args:
        hidden_size: H.
        moe_ffn_hidden_size: I, of an expert.
        num_moe_experts: E, the number of experts of all ranks together.
        moe_router_topk: K, experts of each token.
        moe_router_score_function, norm_topk_prob, moe_router_topk_scaling_factor, moe_router_num_groups,
            moe_router_group_topk, moe_router_group_score, moe_router_norm_epsilon: see `TopKRouter`.
        moe_num_zero_experts: Z, number of experts that return their input, as in LongCat-Flash; the router has E + Z.
        moe_router_enable_expert_bias: whether the router adds a bias to the scores that it chooses by; `update_expert_bias`
            changes the bias.
        moe_router_bias_update_rate: step of the bias in one update.
        moe_aux_loss_coeff, moe_z_loss_coeff: factors of the losses that a call `with_losses` returns; see `hpmoe.router`.
        moe_router_load_balancing_type: the auxiliary loss, over the tokens of all ranks: "aux_loss" or "global_aux_loss",
            E / (K T^2) * sum_i n_i sum_t p_ti; or "seq_aux_loss", the mean of this loss over sequences; see
            `hpmoe.router.losses`.
        moe_shared_expert_intermediate_size: S, width of all shared experts together; None for no shared expert.
        use_shared_expert_gating: whether sigmoid(x @ gate.T) multiplies the shared expert's output.
        activation, gated_linear_unit, moe_apply_probs_on_input, moe_expert_capacity_factor, moe_token_drop_policy: see
            `GroupedMLP`.
        add_bias_linear: whether router, experts and shared expert have biases.
        add_output_bias: whether a bias [H] is added to the output, as in JetMoE.
        init_method_std: standard deviation of the initial weights.
        dtype: dtype of the Parameters. float32 Parameters are rounded for hidden states in half precision.
        transforms: transform of the function of one rank, such as `hpmoe.chain(...)`; None makes one kernel.
        mesh: as for `GroupedMLP`.

    Inputs:
        hidden_states: [..., S, H], float32 or half precision.
        with_losses: True also returns the losses.
        num_tokens: number of real tokens of each rank, a list of ints on a Mesh and one int on `hpmoe.world()`. The tokens
            after them are padding: no expert computes them, and their output is zero. None means no padding.
        padding_mask: [..., S] bool, True for padding, at any place in a batch: no expert computes such a token, counts and
            losses exclude it, and its output and gradient are zero. None means no padding.
        topk_ids: recorded expert ids [..., S, K], or [..., S, layers, K] with `layer`, int32 or int64, that replace the
            router's choice; weights and losses are the router's. None lets the router choose.
        unset: "route" or "mask", for entries of -1 in topk_ids; see `hpmoe.router.replay`.
        layer: the index of this layer in topk_ids [..., S, layers, K].

    Outputs:
        [..., S, H]; with losses a tuple of this and a float32 scalar, the sum of both losses of the tokens of all ranks. On
        `hpmoe.world()` a process returns its part of the sum: the parts, and their gradients, add up over processes.

    Parameters:
        router.weight [E, H]; experts.weight1 [E, H, 2I], the gate's columns first; experts.weight2 [E, I, H];
        shared_experts.linear_fc1.weight [2S, H], rows of gate and up alternating; shared_experts.linear_fc2.weight [H, S];
        shared_experts.shared_experts_gate.weight [1, H]; router.bias [E], experts.bias1 [E, 2I], experts.bias2 [E, H];
        and, not trained, expert_bias [E] and tokens_per_expert [E], what experts got in the last call, both float32,
        counted_tokens [2, E] int64, what experts got in the calls that count since the last update of the bias and since the
        last `rebalance`, router.masked [E] int32, 1 for an expert that no token may choose, and experts.places [E] int32,
        where each expert lies, see `GroupedMLP`.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> layer = hpmoe.nn.MoELayer(hidden_size=16, moe_ffn_hidden_size=8, num_moe_experts=4, moe_router_topk=2,
        ...                           moe_router_enable_expert_bias=True, moe_aux_loss_coeff=0.01)
        >>> out, loss = layer.set_train()(ms.ops.ones((2, 3, 16)), with_losses=True)
        >>> out.shape, loss.shape, int(layer.tokens_per_expert.sum())
        ((2, 3, 16), (), 12)
        >>> layer.update_expert_bias()
        >>> sorted(p.name for p in layer.get_parameters() if not p.requires_grad)
        ['counted_tokens', 'expert_bias', 'experts.places', 'router.masked', 'tokens_per_expert']
    """

    def __init__(self, *, hidden_size: int, moe_ffn_hidden_size: int, num_moe_experts: int, moe_router_topk: int = 2,
                 moe_router_score_function: str = "softmax", norm_topk_prob: bool = True,
                 moe_router_topk_scaling_factor: float | None = None, moe_router_num_groups: int | None = None,
                 moe_router_group_topk: int | None = None, moe_router_group_score: str = "sum_of_two",
                 moe_router_norm_epsilon: float = LEAST_SUM, moe_num_zero_experts: int = 0,
                 moe_router_enable_expert_bias: bool = False,
                 moe_router_bias_update_rate: float = 1e-3, moe_aux_loss_coeff: float = 0.0,
                 moe_z_loss_coeff: float | None = None, moe_router_load_balancing_type: str = "aux_loss",
                 moe_shared_expert_intermediate_size: int | None = None, use_shared_expert_gating: bool = False,
                 activation: Activation = swiglu, gated_linear_unit: bool = True, add_bias_linear: bool = False,
                 add_output_bias: bool = False,
                 moe_apply_probs_on_input: bool = False, moe_expert_capacity_factor: float | None = None,
                 moe_token_drop_policy: str = "probs", init_method_std: float = 0.02, dtype: object = ms.float32,
                 transforms: Function | None = None, mesh: Mesh | None = None):
        super().__init__()
        self.who = who = "hpmoe.nn.MoELayer"
        drawn = {"add_bias_linear": add_bias_linear, "init_method_std": init_method_std, "dtype": dtype,
                 "transforms": transforms}
        total = all_experts(who, num_moe_experts, moe_num_zero_experts)
        self.router = TopKRouter(
            hidden_size=hidden_size, num_moe_experts=total, moe_router_topk=moe_router_topk,
            moe_router_score_function=moe_router_score_function, norm_topk_prob=norm_topk_prob,
            moe_router_topk_scaling_factor=moe_router_topk_scaling_factor, moe_router_num_groups=moe_router_num_groups,
            moe_router_group_topk=moe_router_group_topk, moe_router_group_score=moe_router_group_score,
            moe_router_norm_epsilon=moe_router_norm_epsilon, **drawn)
        self.experts = GroupedMLP(
            hidden_size=hidden_size, moe_ffn_hidden_size=moe_ffn_hidden_size, num_moe_experts=num_moe_experts,
            activation=activation, gated_linear_unit=gated_linear_unit, moe_apply_probs_on_input=moe_apply_probs_on_input,
            moe_expert_capacity_factor=moe_expert_capacity_factor, moe_token_drop_policy=moe_token_drop_policy, mesh=mesh,
            **drawn)
        check_flags(who, use_shared_expert_gating=use_shared_expert_gating,
                    moe_router_enable_expert_bias=moe_router_enable_expert_bias, add_output_bias=add_output_bias)
        self.has_output_bias, self.num_zero_experts = add_output_bias, moe_num_zero_experts
        if add_output_bias:
            self.output_bias = zeros("output_bias", (hidden_size,), dtype)
        self.has_shared = moe_shared_expert_intermediate_size is not None
        if moe_shared_expert_intermediate_size is not None:
            check_sizes(who, moe_shared_expert_intermediate_size=moe_shared_expert_intermediate_size)
            self.shared_experts = SharedExperts(hidden_size, moe_shared_expert_intermediate_size, gated_linear_unit,
                                                use_shared_expert_gating, add_bias_linear, init_method_std, dtype)
        self.has_expert_bias = moe_router_enable_expert_bias
        if self.has_expert_bias:
            self.expert_bias = zeros("expert_bias", (total,), ms.float32, requires_grad=False)
        check_argument(is_number(moe_router_bias_update_rate), who, "moe_router_bias_update_rate",
                       repr(moe_router_bias_update_rate), "a finite float32 number")
        self.rate = float(moe_router_bias_update_rate)
        self.tokens_per_expert = zeros("tokens_per_expert", (total,), ms.float32, requires_grad=False)
        self.counted_tokens = zeros("counted_tokens", (2, total), ms.int64, requires_grad=False)
        self.ep_size, self.mesh, self.has_mesh = self.experts.ep_size, mesh, mesh is not None
        self.num_processes = mesh.size if isinstance(mesh, World) else 1
        self.losses = make_losses(who, moe_router_load_balancing_type, moe_aux_loss_coeff, moe_z_loss_coeff, moe_router_topk)
        self.sum_of_processes = cast(SumOfProcesses, SumOfProcesses(mesh) if isinstance(mesh, World) else None)
        f = per_rank_function(self.router.choice, self.experts.run, self.losses, gated_linear_unit, moe_num_zero_experts)

        def make(copies: Function) -> Function:
            return transformed(who, copies(f), transforms, mesh, IN_AXES, Frozen(self))
        self.make = make
        self.compute = make(chain())
        self.balancer: Balancer | None = None

    def construct(self, hidden_states: Tensor, with_losses: bool = False,
                  num_tokens: Sequence[int] | int | None = None, topk_ids: Tensor | None = None, unset: str | None = None,
                  layer: int | None = None, padding_mask: Tensor | None = None) -> PyTree:
        given = shape_of(hidden_states)
        rows = reshaped(hidden_states, rows_shape(self.who, given, self.router.hidden_size, self.ep_size))
        check_dtype(self.who, "hidden_states", rows.dtype, FLOATS)
        shape = hidden_states.shape
        expert_bias = self.expert_bias if self.has_expert_bias else None
        shared_experts = self.shared_experts.tensors() if self.has_shared else None
        num_sequences = sequences_of_rank(self.who, shape, self.ep_size, self.losses.by_sequence) if with_losses else 0
        check_ranks(self.who, num_tokens, self.has_mesh)
        record = rows_of_record(self.who, topk_ids, unset, layer, shape, self.router.choice.top_k, self.ep_size)
        output_bias = self.output_bias if self.has_output_bias else None
        is_real = None if padding_mask is None else real_tokens(self.who, padding_mask, shape, self.ep_size)
        args = (rows, self.router.tensors(), expert_bias, self.experts.tensors(), shared_experts, num_sequences, record,
                unset, output_bias, is_real)
        if num_tokens is None:
            out, counts, losses = self.compute(*args)
        else:
            out, counts, losses = self.compute(*args, num_tokens=num_tokens)
        tokens = counts.astype(ms.int64)
        tokens = mint.sum(tokens, 0) if self.ep_size else tokens
        if not is_recomputed():
            ops.assign(self.tokens_per_expert, tokens.astype(ms.float32))
        loss = self.sum_of(losses) if with_losses else mint.zeros((), dtype=ms.float32)
        out, loss = count(self.training, reshaped(out, shape), loss, tokens, self.counted_tokens)
        return (out, loss) if with_losses else out

    def sum_of(self, sums: Sequence[Tensor]) -> Tensor:
        """Returns the loss of the tokens of all ranks from the sums of each; on a process its part of the loss."""
        counts, more_counts, balance, z = sums
        if self.ep_size:
            counts, more_counts, balance, z = mint.sum(counts, 0), mint.sum(more_counts), mint.sum(balance, 0), mint.sum(z)
        if self.num_processes > 1:
            both = mint.cat((mint.reshape(counts, (-1,)), mint.reshape(more_counts, (1,))))
            both = self.sum_of_processes(both)
            counts, more_counts = mint.reshape(both[:-1], counts.shape), both[-1]
        return self.losses.total(counts, more_counts, balance, z)

    def update_expert_bias(self, counts: Tensor | None = None) -> None:
        """Raises the bias of experts with fewer tokens than the mean, and lowers the bias of experts with more, by the rate.

        Masked experts are left out of the mean, and their bias stays. Without `counts` the tokens are those of all calls
        since the last update that count: in training mode (`layer.set_train()`), or with a gradient taken through the call.

        Args:
            counts: [E], the tokens of each expert since the last update; they replace those that the layer has counted.

        If ranks are processes, all call it together, each with the counts of its own tokens.

        Raises:
            ArgumentError: counts are no Tensor [E] of whole numbers, the layer has no such bias, or no call has counted
                since the last update. A compiled graph leaves the bias as it is in the last case, and reads no counts.

        Formula: Wang et al., Auxiliary-loss-free load balancing (arXiv 2408.15664); `hpmoe.router.update_bias`.
        """
        is_given = counts is not None
        counts = counts if is_given else self.counted_tokens[0]
        check_counts(self.who, self.has_expert_bias, shape_of(counts), self.tokens_per_expert.shape)
        if is_given:
            check_whole(f"{self.who}.update_expert_bias", counts)
        n = counts.astype(ms.int64)
        if self.num_processes > 1:
            n = self.sum_of_processes(n)
        if not is_given:
            check_counted(f"{self.who}.update_expert_bias", n)
        clear(self.counted_tokens, 0)
        ops.assign(self.expert_bias, update_bias(self.expert_bias, n, rate=self.rate, where=self.router.masked == 0))

    def mask_experts(self, experts: Sequence[int]) -> None:
        """Masks experts, such as those whose weights are lost: no token chooses them, since their logits are -inf.

        The other experts take those tokens. Outputs, losses, counts and the bias are those of a layer of the other experts.
        A group of experts has the score of its others; a token whose best groups have fewer than K others chooses from all.

        Args:
            experts: ids; an empty sequence includes all experts again.

        The mask is a Parameter, router.masked: checkpoints have it, and compiled graphs follow it.

        Raises:
            ArgumentError: an id is out of range, or fewer experts than a token chooses are left.

        Example:
            >>> import mindspore as ms, hpmoe
            >>> layer = hpmoe.nn.MoELayer(hidden_size=16, moe_ffn_hidden_size=8, num_moe_experts=4)
            >>> layer.mask_experts([1])
            >>> layer(ms.ops.ones((2, 3, 16))).shape, float(layer.tokens_per_expert[1])
            ((2, 3, 16), 0.0)
        """
        who, num_experts = f"{self.who}.mask_experts", self.tokens_per_expert.shape[0]
        is_ids = isinstance(experts, (list, tuple, range)) and all(is_int(e, 0, num_experts - 1) for e in experts)
        check_argument(is_ids, who, "experts", repr(experts), f"a list of ids in 0..{num_experts - 1}")
        left = num_experts - len(set(experts))
        check_argument(left >= self.router.choice.top_k, who, "experts", f"{len(set(experts))} of {num_experts}",
                       f"at most {num_experts - self.router.choice.top_k}: a token chooses {self.router.choice.top_k}")
        ops.assign(self.router.masked, Tensor([int(e in set(experts)) for e in range(num_experts)], ms.int32))

    def balance(self, *, every: int, **options: PyTree) -> None:
        """Lets `rebalance` move experts between the ranks of the mesh, and copy hot ones.

        Args:
            every: number of calls of `rebalance` between two decisions.
            options: replicas, min_load and min_gain of `hpmoe.balance.Balancer`; the attribute `balancer` is this Balancer.

        Raises:
            ArgumentError: the layer has no mesh, or an option has a wrong type or value.
        """
        check_argument(self.ep_size > 0, f"{self.who}.balance", "mesh", repr(self.mesh),
                       "an hpmoe.Mesh: experts move between virtual ranks")
        clear(self.counted_tokens, 1)
        self.balancer = Balancer(self.make, num_experts=self.experts.places.shape[0], ep_size=self.experts.num_groups,
                                 every=every, places=self.experts.places, **options)

    def rebalance(self, optimizer: nn.Optimizer, tensors: Iterable[Tensor] = ()) -> Move | None:
        """Ends a training step; every `every` steps experts may move, by the tokens that chose them since.

        Args:
            optimizer: the optimizer of the experts' weights, whose states of experts move along; None for none.
            tensors: other arrays with a part for each expert, [E, ...], such as main gradients or averages of weights.

        Returns:
            An `hpmoe.balance.Move`, or None if no expert moved.

        Raises:
            ArgumentError: the layer is not balanced, no call has counted since the last `rebalance` (see
                `update_expert_bias`), or the optimizer does not have the layer's weights.
        """
        check_argument(self.balancer is not None, f"{self.who}.rebalance", "self", "not balanced",
                       "balanced first: layer.balance(every=100)")
        weights = [p for p in self.experts.get_parameters() if p is not self.experts.places]
        trained = [weight for weight in weights if weight.requires_grad]
        balancer = cast(Balancer, self.balancer)
        tokens = self.counted_tokens[1]
        check_counted(f"{self.who}.rebalance", tokens)
        move = balancer.step(tokens[:self.experts.places.shape[0]], [*weights, *states_of(optimizer, trained), *tensors])
        clear(self.counted_tokens, 1)
        self.compute = balancer.layer
        return move


def per_rank_function(choice: Choice, run_experts: Experts, losses: Losses, gated: bool, num_zero: int) -> Function:
    """Returns the function of one rank, whose results are (output [T, H], counts [E], losses)."""

    def moe_layer(hidden_states: Tensor, router: Mapping[str, Tensor], expert_bias: Tensor | None,
                  experts: Mapping[str, Tensor], shared_experts: Mapping[str, Tensor] | None,
                  num_sequences: int, record: Tensor | None, unset: str | None,
                  output_bias: Tensor | None = None, is_real: Tensor | None = None) -> tuple[PyTree, ...]:
        if is_real is not None:
            hidden_states = mint.where(is_real > 0, hidden_states, ops.zeros_like(hidden_states))
        logits, ids, weights = choice(hidden_states, router, expert_bias, record, unset)
        if is_real is not None:
            ids = mint.where(is_real > 0, ids, -1)
        if num_zero:
            is_zero = ids >= logits.shape[1] - num_zero
            out = run_experts(hidden_states, mint.where(is_zero, -1, ids), weights, experts)
            share = mint.sum(mint.where(is_zero, weights, 0.0), -1, True)
            out = out + hidden_states * share.astype(hidden_states.dtype)
        else:
            out = run_experts(hidden_states, ids, weights, experts)
        if shared_experts is not None:
            out = out + run_shared(hidden_states, shared_experts, run_experts.activation, gated)
        if output_bias is not None:
            out = out + weight_beside(out, output_bias)
        if is_real is not None:
            out = mint.where(is_real > 0, out, ops.zeros_like(out))
        counts = tokens_per_expert(ids, num_experts=logits.shape[1])
        return out, counts, losses.sums(logits, choice.score, num_sequences, is_real) if num_sequences else ()
    return moe_layer


def all_experts(who: str, num_moe_experts: int, num_zero: int) -> int:
    """Returns the number of experts of a router."""
    check_sizes(who, num_moe_experts=num_moe_experts)
    check_argument(is_int(num_zero, 0), who, "moe_num_zero_experts", repr(num_zero), "an int of at least 0")
    return num_moe_experts + num_zero


@constexpr
def sequences_of_rank(who: str, shape: Sequence[int], ep_size: int, by_sequence: bool) -> int:
    """Returns the number of sequences of [..., S, H] of a rank; 1 if no loss needs it, or if there are no tokens."""
    if 0 in shape[:-1]:
        return 1
    sequences = math.prod(shape[:-2]) if by_sequence else ep_size or 1
    check_argument(sequences % (ep_size or 1) == 0, who, "hidden_states", f"of shape {tuple(shape)}, {sequences} sequences",
                   f"of a number of sequences that {ep_size} ranks divide")
    return sequences // (ep_size or 1)


def real_tokens(who: str, padding_mask: Tensor, shape: Sequence[int], ep_size: int) -> Tensor:
    """Returns 1 for each token that is no padding, float32 [T, 1]; with a rank axis if there are ranks."""
    check_mask(who, shape_of(padding_mask), getattr(padding_mask, "dtype", None), shape)
    return reshaped(mint.sub(1.0, padding_mask.astype(ms.float32)), (ep_size, -1, 1) if ep_size else (-1, 1))


@constexpr
def check_mask(who: str, shape: Sequence[int] | None, dtype: object, tokens: Sequence[int]) -> None:
    shape = known_shape(who, "padding_mask", shape, "a bool mindspore.Tensor")
    is_mask = tuple(shape) == tuple(tokens[:-1]) and dtype == ms.bool_
    check_argument(is_mask, who, "padding_mask", f"{str(dtype).lower()} of shape {tuple(shape)}",
                   f"bool of shape {tuple(tokens[:-1])}, True for padding", "Write padding_mask=attention_mask == 0.")


@constexpr
def check_ranks(who: str, num_tokens: Sequence[int] | int | None, has_mesh: bool) -> None:
    check_argument(num_tokens is None or has_mesh, who, "num_tokens", repr(num_tokens), "None if the layer has no mesh",
                   "Pass padding_mask, or give the layer a mesh.")


@constexpr
def check_counts(who: str, has_expert_bias: bool, shape: Sequence[int] | None, expected: Sequence[int]) -> None:
    check_argument(has_expert_bias, who, "moe_router_enable_expert_bias", "False", "True",
                   "A layer without it has no bias to update.")
    who, wanted = f"{who}.update_expert_bias", f"a Tensor of shape {tuple(expected)}"
    shape = known_shape(who, "counts", shape, wanted)
    check_argument(tuple(shape) == tuple(expected), who, "counts", f"of shape {tuple(shape)}", wanted)
