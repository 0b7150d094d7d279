"""Losses and counts over ranks are those of all their tokens together, in value and gradient, against float64."""

import losses_oracle as oracle
import mindspore as ms
import numpy as np
import pytest

import hpmoe

KINDS = ("aux_loss", "global_aux_loss", "seq_aux_loss")
AUX, Z, HIDDEN, EXPERTS = 0.7, 0.3, 4, 6
CASES = {
    "(4, 1)": oracle.Case((4, 1)),
    "(4, 0)": oracle.Case((4, 0), k=1),
    "(0, 0)": oracle.Case((0, 0)),
    "all of two": oracle.Case((8, 8), score="sigmoid"),
    "(8, 3, 0, 5)": oracle.Case((8, 3, 0, 5), score="sqrtsoftplus", k=3),
    "(0, 8, 2)": oracle.Case((0, 8, 2)),
    "(5, 8) of three experts": oracle.Case((5, 8), masked=(0, 3, 4)),
    "(5, 2) of two experts": oracle.Case((5, 2), score="sigmoid", masked=(5, 1, 2, 3)),
    "(5, 7) of five experts": oracle.Case((5, 7), score="sqrtsoftplus", masked=(2,)),
}
MESHES = {2: hpmoe.Mesh(2), 3: hpmoe.Mesh(3), 4: hpmoe.Mesh(2, tp=2)}


def data(case, seed=0):
    """Two sequences of four tokens for each rank, and a router's weight, float32 values in float64."""
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((2 * len(case.num_tokens), 4, HIDDEN)), rng.standard_normal((EXPERTS, HIDDEN))
    return x.astype(np.float32).astype(np.float64), weight.astype(np.float32).astype(np.float64)


def make_layer(kind, case, weight, **options):
    layer = hpmoe.nn.MoELayer(hidden_size=HIDDEN, moe_ffn_hidden_size=2, num_moe_experts=EXPERTS, moe_router_topk=case.k,
                              norm_topk_prob=case.k > 1, moe_router_score_function=case.score, moe_aux_loss_coeff=AUX,
                              moe_z_loss_coeff=Z, moe_router_load_balancing_type=kind, **options)
    layer.router.weight.set_data(ms.Tensor(weight, ms.float32))
    layer.mask_experts(list(case.masked))
    return layer


def taken(loss_of, layer, x):
    """The loss, and its gradients by the tokens and the router's weight."""
    return ms.value_and_grad(loss_of, 0, [layer.router.weight])(ms.Tensor(x, ms.float32))


def assert_loss(case, kind, x, weight, found):
    """The loss and its gradients by the tokens and the router's weight are the oracle's."""
    loss, (dx, (dw,)) = found
    np.testing.assert_allclose(float(loss), case.loss(kind, x, weight, AUX, Z), rtol=2e-6)
    rng = np.random.default_rng(1)
    for grad, at, f in ((dx, x, lambda x: case.loss(kind, x, weight, AUX, Z)),
                        (dw, weight, lambda w: case.loss(kind, x, w, AUX, Z))):
        direction = rng.standard_normal(at.shape)
        want = oracle.along(f, at, direction)
        assert abs((grad.asnumpy() * direction).sum() - want) < 2e-5 * max(1, abs(want))


@pytest.mark.parametrize("name, kind", [
    (name, KINDS[(i + j) % 3]) for i, name in enumerate(CASES) for j in range(1 + i % 2)])
def test_virtual_ranks_have_the_loss_of_all_tokens(name, kind):
    case = CASES[name]
    x, weight = data(case)
    layer = make_layer(kind, case, weight, mesh=MESHES[len(case.num_tokens)])
    assert_loss(case, kind, x, weight, taken(lambda x: layer(x, True, case.num_tokens)[1], layer, x))
    np.testing.assert_array_equal(layer.tokens_per_expert.asnumpy(), case.counts(x, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_agree_with_one_rank_on_all_tokens(kind):
    """Four ranks, one rank, and one rank op by op; and with losses of each rank in the mean another number."""
    case = oracle.Case((8, 8))
    x, weight = data(case)
    for options in ({"mesh": hpmoe.Mesh(2)}, {}, {"transforms": lambda f: f}):
        layer = make_layer(kind, case, weight, **options)
        assert_loss(case, kind, x, weight, taken(lambda x, layer=layer: layer(x, True)[1], layer, x))
    halves = [oracle.Case((8,)).loss("aux_loss", half, weight, AUX, Z) for half in np.split(x, 2)]
    assert abs(np.mean(halves) - case.loss("aux_loss", x, weight, AUX, Z)) > 1e-3
