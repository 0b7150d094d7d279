"""K=1 with normalized weights: every weight is the scaling factor, and a layer warns when it is made."""

import warnings

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import MoELayer, TopKRouter

SIZES = {"hidden_size": 4, "num_moe_experts": 3, "moe_router_topk": 1}
MAKERS = {"layer": lambda **options: MoELayer(**SIZES, moe_ffn_hidden_size=2, **options),
          "router": lambda **options: TopKRouter(**SIZES, **options)}


@pytest.mark.parametrize("name", MAKERS)
def test_one_expert_of_weight_one_warns_once(name):
    with pytest.warns(UserWarning, match="norm_topk_prob=False") as caught:
        MAKERS[name]()
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("name", MAKERS)
def test_other_routers_do_not_warn(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MAKERS[name](norm_topk_prob=False)
        MoELayer(hidden_size=4, moe_ffn_hidden_size=2, num_moe_experts=3)
    assert not caught


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
def test_without_normalizing_the_router_has_a_gradient(score):
    z = ms.Tensor(np.random.default_rng(0).standard_normal((5, 3)), ms.float32)
    for normalize in (True, False):
        grad = ms.grad(lambda z, normalize=normalize: hpmoe.route(z, 1, score=score, normalize=normalize)[1].sum())(z)
        assert (np.abs(grad.asnumpy()).max() > 1e-2) != normalize
