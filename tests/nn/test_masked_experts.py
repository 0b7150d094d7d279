"""A layer with masked experts is the layer of the others: output, losses, counts, bias and gradients."""

import itertools

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import MoELayer

HIDDEN, EXPERTS, TOKENS = 6, 6, 10
SIZES = {"hidden_size": HIDDEN, "moe_ffn_hidden_size": 3}


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_layer(num_experts=EXPERTS, **options):
    """With drawn Parameters, the bias among them; zeros of the bias stay where `zero_bias`."""
    zero_bias = options.pop("zero_bias", False)
    layer = MoELayer(**SIZES, num_moe_experts=num_experts, moe_aux_loss_coeff=0.5, moe_z_loss_coeff=0.1, **options)
    for i, p in enumerate(layer.get_parameters()):
        if p.name in WEIGHTS and not (zero_bias and p.name == "expert_bias"):
            p.set_data(ms.Tensor(values(*p.shape, seed=i) / 2))
    return layer


WEIGHTS = ("router.weight", "router.bias", "expert_bias", "experts.weight1", "experts.weight2")


def without(layer, masked, **options):
    """A layer of the other experts, with their Parameters."""
    smaller = make_layer(EXPERTS - len(masked), **options)
    found = {p.name: p for p in layer.get_parameters()}
    for p in smaller.get_parameters():
        if p.name in WEIGHTS:
            p.set_data(ms.Tensor(np.delete(found[p.name].asnumpy(), masked, axis=0)))
    return smaller


def results(layer, x):
    """Output, loss, counts, and gradients by the tokens and Parameters, by name."""
    def objective(x):
        out, loss = layer(x, with_losses=True)
        return (out * ms.Tensor(values(TOKENS, HIDDEN, seed=9))).sum() + loss, out, loss
    weights = [p for p in layer.trainable_params() if p.name in WEIGHTS]
    (_, out, loss), (dx, grads) = ms.value_and_grad(objective, 0, weights, has_aux=True)(x)
    named = {p.name: g.asnumpy() for p, g in zip(weights, grads, strict=True)}
    found = {"out": out, "loss": loss, "dx": dx, "counts": layer.tokens_per_expert}
    return {**{key: tensor.asnumpy() for key, tensor in found.items()}, **named}


OPTIONS = {
    "softmax": {},
    "sigmoid and a bias": {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    "a bias of zeros": {"moe_router_enable_expert_bias": True, "zero_bias": True},
    "sqrtsoftplus, by sequence": {"moe_router_score_function": "sqrtsoftplus",
                                  "moe_router_load_balancing_type": "seq_aux_loss", "moe_router_topk": 3},
    "a bias of the logits": {"add_bias_linear": True, "moe_router_topk": 1, "norm_topk_prob": False},
}


MASKS = [1], [0, 5], [5, 2, 3]


@pytest.mark.parametrize("name, masked", [(name, MASKS[i % 3]) for i, name in enumerate(OPTIONS)], ids=str)
def test_a_layer_with_masks_is_the_layer_of_the_others(name, masked):
    """Masked experts and their rows of the router hold NaN; their gradients are 0."""
    layer = make_layer(**OPTIONS[name])
    smaller = without(layer, masked, **OPTIONS[name])
    for p in (layer.router.weight, layer.experts.weight1, layer.experts.weight2):
        holed = p.asnumpy().copy()
        holed[masked] = np.nan
        p.set_data(ms.Tensor(holed))
    layer.mask_experts(masked)
    x = ms.Tensor(values(TOKENS, HIDDEN, seed=7))
    found, want = results(layer, x), results(smaller, x)
    for key, array in found.items():
        if key in ("counts", *WEIGHTS):
            assert not array[masked].any(), key
            array = np.delete(array, masked, axis=0)
        np.testing.assert_allclose(array, want[key], rtol=2e-5, atol=2e-6, err_msg=key)


def grouped_choice(scores, num_groups, topk_groups, k, masked):
    """The set of experts that a token chooses, from c [E] of it, by the definition."""
    left = [e for e in range(len(scores)) if e not in masked]
    size = len(scores) // num_groups
    of_group = {g: sum(sorted((scores[e] for e in left if e // size == g), reverse=True)[:2])
                for g in range(num_groups) if any(e // size == g for e in left)}
    best = sorted(of_group, key=lambda g: (-of_group[g], g))[:topk_groups]
    among = [e for e in left if e // size in best]
    among = among if len(among) >= k else left
    return set(sorted(among, key=lambda e: (-scores[e], e))[:k])


GROUPS = (3, 1, 2), (3, 2, 2), (3, 2, 3), (2, 1, 3), (2, 1, 1), (6, 2, 2)
SCORES = "softmax", "sigmoid", "sqrtsoftplus"


@pytest.mark.parametrize("score, num_groups, topk_groups, k",
                         [(SCORES[i % 3], *groups) for i, groups in enumerate(GROUPS)])
def test_groups_never_choose_a_masked_expert(score, num_groups, topk_groups, k):
    """Any mask that leaves k experts, whole groups among them; biases of any sign; NaN in the lost weights."""
    x = values(TOKENS, HIDDEN, seed=8)
    layer = make_layer(moe_router_score_function=score, moe_router_num_groups=num_groups, moe_router_group_topk=topk_groups,
                       moe_router_topk=k, norm_topk_prob=False, moe_router_enable_expert_bias=True)
    weight, bias = layer.router.weight.asnumpy().astype(np.float64), layer.expert_bias.asnumpy() - 0.5
    layer.expert_bias.set_data(ms.Tensor(bias))
    clean = layer.experts.weight2.asnumpy().copy()
    masks = [m for n in range(1, EXPERTS - k + 1) for m in itertools.combinations(range(EXPERTS), n)]
    for masked in masks[::max(1, len(masks) // 8)]:
        holed = clean.copy()
        holed[list(masked)] = np.nan
        layer.experts.weight2.set_data(ms.Tensor(holed))
        layer.mask_experts(masked)
        out = layer(ms.Tensor(x)).asnumpy()
        z = x @ weight.T
        z[:, list(masked)] = -np.inf
        e = np.exp(z - z.max(1, keepdims=True))
        s = {"softmax": e / e.sum(1, keepdims=True), "sigmoid": 1 / (1 + np.exp(-z)),
             "sqrtsoftplus": np.sqrt(np.logaddexp(0, z))}[score]
        chosen = [grouped_choice(row + bias, num_groups, topk_groups, k, masked) for row in s]
        want = [sum(e in ids for ids in chosen) for e in range(EXPERTS)]
        assert layer.tokens_per_expert.asnumpy().tolist() == want and np.isfinite(out).all(), masked


IN_GROUPS = {"moe_router_num_groups": 3, "moe_router_group_topk": 2}


@pytest.mark.parametrize("score, groups, masked", [
    ("sigmoid", {}, []), ("sigmoid", IN_GROUPS, [1, 4]), ("sigmoid", {}, [1]), ("softmax", IN_GROUPS, [1]),
    ("sqrtsoftplus", {}, [1, 4])])
def test_a_bias_of_zeros_chooses_as_none(score, groups, masked):
    """Also where scores round to the same: logits of 20 to 30 have the sigmoid 1."""
    x = ms.Tensor(values(64, HIDDEN, seed=8) + 25 * np.eye(HIDDEN, dtype=np.float32)[0])
    counts = []
    for has_bias in (False, True):
        layer = make_layer(moe_router_score_function=score, moe_router_enable_expert_bias=has_bias, zero_bias=True, **groups)
        weight = values(EXPERTS, HIDDEN, seed=3)
        weight[:, 0] = 1
        layer.router.weight.set_data(ms.Tensor(weight))
        layer.mask_experts(masked)
        ids, _ = layer.router(x, layer.expert_bias if has_bias else None)
        counts.append(ids.asnumpy())
    assert np.array_equal(*counts) and not np.isin(counts[0], masked).any()


def test_the_balance_loss_of_three_of_four_is_that_of_three():
    x = ms.Tensor(np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 2, 3]])
    options = {"hidden_size": 4, "moe_ffn_hidden_size": 4, "moe_router_topk": 1, "norm_topk_prob": False,
               "moe_aux_loss_coeff": 1.0}
    weight = values(4, 4)
    losses = []
    for num_experts in (4, 3):
        layer = MoELayer(num_moe_experts=num_experts, **options)
        layer.router.weight.set_data(ms.Tensor(weight[:num_experts]))
        if num_experts == 4:
            layer.mask_experts([3])
        losses.append(float(layer(x, with_losses=True)[1]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_bias_of_masked_experts_stays():
    layer = MoELayer(**SIZES, num_moe_experts=4, moe_router_enable_expert_bias=True, moe_router_bias_update_rate=0.1)
    layer.mask_experts([3])
    layer.update_expert_bias(ms.Tensor([400, 350, 330, 0], ms.float32))
    np.testing.assert_allclose(layer.expert_bias.asnumpy(), [-0.1, 0.1, 0.1, 0], rtol=1e-6)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen"])
def test_dropout_in_groups_leaves_masked_experts_out(score):
    """A logit of -inf is never chosen under any dropout; weights and gradients are finite, gradients of -inf are 0."""
    z = values(200, 8, seed=4)
    z[:, [1, 2, 6]] = -np.inf

    def weights_of(z, seed):
        ids, weights = hpmoe.route(z, 2, score=score, num_groups=4, topk_groups=2, expert_dropout=0.5, seed=seed)
        return (weights * weights).sum(), ids, weights
    for seed in range(2):
        (_, ids, weights), grad = ms.value_and_grad(weights_of, 0, has_aux=True)(ms.Tensor(z), ms.Tensor(seed, ms.int32))
        assert not np.isin(ids.asnumpy(), [1, 2, 6]).any() and (weights.asnumpy() > 0).all()
        assert np.isfinite(grad.asnumpy()).all() and not grad.asnumpy()[:, [1, 2, 6]].any()
    drawn = [hpmoe.route(ms.Tensor(z), 2, score=score, expert_dropout=0.5, seed=s)[0].asnumpy() for s in range(3)]
    assert set(np.concatenate(drawn).ravel()) == {0, 3, 4, 5, 7}
