"""Script of test_world.py on several ranks: hpmoe.nn.MoELayer, eager and in graphs, trained beside virtual ranks."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn
from whole_lines import say

import hpmoe

mode, STEPS = sys.argv[1], int(sys.argv[2])
mesh = hpmoe.world()
EP, S, H = mesh.ep, 6, 16
LAYER = {"hidden_size": H, "moe_ffn_hidden_size": 8, "num_moe_experts": 2 * EP, "moe_router_topk": 2, "init_method_std": 0.3,
         "moe_aux_loss_coeff": 0.01, "moe_z_loss_coeff": 0.001, "moe_shared_expert_intermediate_size": 8,
         "moe_router_enable_expert_bias": True}


class Model(nn.Cell):
    """A layer and its loss, of the tokens that it is given."""

    def __init__(self, ranks):
        super().__init__()
        self.layer = hpmoe.nn.MoELayer(**LAYER, mesh=ranks)

    def construct(self, x):
        out, loss = self.layer(x, with_losses=True)
        return (out * out).sum() + loss


def make(ranks):
    ms.set_seed(7)
    model = Model(ranks)
    weights = list(model.trainable_params())
    grad = ms.value_and_grad(model, None, weights)
    return model, weights, ms.jit(grad) if mode == "graph" else grad, nn.AdamWeightDecay(weights, 0.01)


def own(name, array):
    """This rank's part of a Parameter or gradient of virtual ranks."""
    return np.split(array, EP)[mesh.ep_rank] if "experts.weight" in name else array


rng = np.random.default_rng(0)
(mine, weights, step, optimizer), (whole, all_weights, whole_step, whole_optimizer) = make(mesh), make(hpmoe.Mesh(EP))
for i in range(STEPS):
    x = rng.standard_normal((EP, S, H)).astype(np.float32)
    loss, grads = step(ms.Tensor(x[mesh.ep_rank:mesh.ep_rank + 1]))
    alike = [j for j, weight in enumerate(weights) if "experts.weight" not in weight.name]
    loss, summed = hpmoe.all_reduce_gradients((loss, [grads[j] for j in alike]), mesh)
    grads = list(grads)
    for j, grad in zip(alike, summed, strict=True):
        grads[j] = grad
    whole_loss, whole_grads = whole_step(ms.Tensor(x))
    for weight, a, b in zip(weights, grads, whole_grads, strict=True):
        assert a.asnumpy().tobytes() == own(weight.name, b.asnumpy()).tobytes(), (i, weight.name)
    assert abs(float(loss) - float(whole_loss)) < 1e-5 * abs(float(whole_loss))
    optimizer(tuple(grads))
    whole_optimizer(whole_grads)
    mine.layer.update_expert_bias()
    whole.layer.update_expert_bias()
    for a, b in zip(mine.get_parameters(), whole.get_parameters(), strict=True):
        is_own = a.name.endswith(("tokens_per_expert", "counted_tokens"))  # counts of this rank's tokens
        assert is_own or a.asnumpy().tobytes() == own(a.name, b.asnumpy()).tobytes(), (i, a.name)
say(f"rank {mesh.rank} is as virtual ranks after {STEPS} steps")
