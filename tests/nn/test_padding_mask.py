"""A padding mask: what a layer computes of padded batches is what it computes of the real tokens alone."""

import mindspore as ms
import numpy as np
import pytest

import hpmoe

H, E = 8, 4
OPTIONS = {"hidden_size": H, "moe_ffn_hidden_size": 6, "num_moe_experts": E, "moe_router_topk": 2,
           "moe_shared_expert_intermediate_size": 5, "moe_router_score_function": "sigmoid",
           "moe_router_enable_expert_bias": True, "moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.2, "init_method_std": 0.4}
MASK = np.zeros((2, 6), bool)
MASK[0, [0, 3]] = MASK[1, [4, 5]] = True  # as many in both halves, for two ranks


def make(options, seed=0):
    ms.set_seed(seed)
    np.random.seed(seed)
    return hpmoe.nn.MoELayer(**OPTIONS | options)


def results(layer, x, **kwargs):
    """Output, loss, gradients of hidden states and of weights, and the counted tokens."""
    weights, cotangent = layer.trainable_params(), np.cos(np.arange(H)).astype(np.float32)

    def loss_of(x):
        out, loss = layer(x, with_losses=True, **kwargs)
        return (out * ms.Tensor(cotangent)).sum() + loss, out, loss
    (_, out, loss), (x_grad, grads) = ms.value_and_grad(loss_of, 0, weights, has_aux=True)(ms.Tensor(x))
    return out.asnumpy(), float(loss), x_grad.asnumpy(), [g.asnumpy() for g in grads], layer.tokens_per_expert.asnumpy()


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss"])
@pytest.mark.parametrize("ranks", [None, 2, "op by op"])
@pytest.mark.parametrize("filler", [1.0, np.nan])
def test_masked_tokens_count_nowhere(kind, ranks, filler):
    """Masked tokens may hold any value, also NaN."""
    x = np.random.default_rng(0).standard_normal((2, 6, H)).astype(np.float32)
    x[MASK] = filler
    options = {"moe_router_load_balancing_type": kind}
    on = {None: {}, 2: {"mesh": hpmoe.Mesh(2)}, "op by op": {"transforms": lambda f: f}}[ranks]
    layer = make(options | on)
    alone = make(options)
    ms.load_param_into_net(alone, {p.name: p for p in layer.get_parameters()})
    out, loss, x_grad, grads, counts = results(layer, x, padding_mask=ms.Tensor(MASK))
    expected, loss_alone, x_grad_alone, grads_alone, counts_alone = results(alone, x[~MASK].reshape(2, 4, H))
    assert (out[MASK] == 0).all() and (x_grad[MASK] == 0).all()
    np.testing.assert_allclose(out[~MASK], expected.reshape(-1, H), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, loss_alone, rtol=1e-5)
    np.testing.assert_allclose(x_grad[~MASK], x_grad_alone.reshape(-1, H), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(grads, grads_alone, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(counts, counts_alone)
    assert counts.sum() == 2 * (~MASK).sum()


def test_a_mask_of_no_padding_changes_no_bit():
    x = np.random.default_rng(0).standard_normal((2, 6, H)).astype(np.float32)
    layer = make({})
    masked, plain = results(layer, x, padding_mask=ms.Tensor(np.zeros((2, 6), bool))), results(layer, x)
    for mine, theirs in zip([*masked[:3], *masked[3], masked[4]], [*plain[:3], *plain[3], plain[4]], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_compiled_graph_takes_a_mask():
    x = ms.Tensor(np.random.default_rng(0).standard_normal((2, 6, H)).astype(np.float32))
    layer = make({})
    expected = layer(x, padding_mask=ms.Tensor(MASK)).asnumpy()

    def masked(x, mask):
        return layer(x, padding_mask=mask)
    np.testing.assert_array_equal(ms.jit(masked)(x, ms.Tensor(MASK)).asnumpy(), expected)
