"""Script of test_world.py on several ranks: losses and updates of a layer whose ranks have other numbers of tokens."""

import sys

import losses_oracle as oracle
import mindspore as ms
import numpy as np
from whole_lines import say

import hpmoe

mode = sys.argv[1]
mesh = hpmoe.world(2)  # with four ranks, two groups that share experts
S, H, E, AUX, Z = 4, 4, 6, 0.7, 0.3


def check(kind, case):
    """Parts and their gradients add up to the oracle's; the bias moves by the counts of all ranks."""
    rng = np.random.default_rng(0)  # alike on all ranks
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((2 * mesh.size, S, H), (E, H)))
    layer = hpmoe.nn.MoELayer(hidden_size=H, moe_ffn_hidden_size=2, num_moe_experts=E, moe_router_topk=case.k, mesh=mesh,
                              norm_topk_prob=case.k > 1, moe_router_score_function=case.score, moe_aux_loss_coeff=AUX,
                              moe_z_loss_coeff=Z, moe_router_load_balancing_type=kind, moe_router_enable_expert_bias=True,
                              moe_router_bias_update_rate=1.0)
    layer.router.weight.set_data(ms.Tensor(weight))
    layer.mask_experts(list(case.masked))
    own = case.num_tokens[mesh.rank]

    def loss_of(x):
        return layer(x, True, own)[1]
    grad = ms.value_and_grad(loss_of, 0, [layer.router.weight])
    loss, (dx, (dw,)) = (ms.jit(grad) if mode == "graph" else grad)(ms.Tensor(x[2 * mesh.rank:2 * mesh.rank + 2]))
    loss, dw = hpmoe.all_reduce_gradients((loss, dw), mesh)
    np.testing.assert_allclose(float(loss), case.loss(kind, x.astype(float), weight.astype(float), AUX, Z), rtol=3e-6)
    direction = rng.standard_normal(weight.shape)
    want = oracle.along(lambda w: case.loss(kind, x.astype(float), w, AUX, Z), weight.astype(float), direction)
    assert abs((dw.asnumpy() * direction).sum() - want) < 3e-5 * max(1, abs(want)), (kind, case)
    direction = np.zeros(x.shape)
    direction[2 * mesh.rank:2 * mesh.rank + 2] = mine = rng.standard_normal(dx.shape)
    want = oracle.along(lambda x: case.loss(kind, x, weight.astype(float), AUX, Z), x.astype(float), direction)
    assert abs((dx.asnumpy() * mine).sum() - want) < 3e-5 * max(1, abs(want)), (kind, case)
    layer.update_expert_bias()
    left = np.delete(np.arange(E), case.masked)
    counts, bias = case.counts(x.astype(float), weight.astype(float))[left], np.zeros(E)
    bias[left] = np.sign(counts.mean() - counts)
    np.testing.assert_array_equal(layer.expert_bias.asnumpy(), bias)


ROWS = {2: [(8, 1), (0, 5), (8, 8)], 4: [(8, 1, 0, 5)]}[mesh.size]
for kind in ("aux_loss", "global_aux_loss", "seq_aux_loss"):
    for i, num_tokens in enumerate(ROWS):
        check(kind, oracle.Case(num_tokens, k=1 + i % 2, score=("softmax", "sigmoid")[i % 2], masked=[(), (4,), (0, 1)][i]))
say(f"rank {mesh.rank} has its part of the loss of all tokens")
