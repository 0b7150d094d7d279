"""LoRA on experts: their weights stay frozen, two thin matrices for each are trained, and only these cost a gradient.

    python examples/13_lora_on_experts.py

The layer is a plain function, in which an adapted weight is W + A B for each expert: x W + (x A) B, two more grouped
matmuls. Frozen are the parameters with `requires_grad=False`; MindSpore tells a kernel so, and the backward kernel leaves
out their gradients, most of its work. What that saves is measured here, beside the same layer with all weights trained.
"""

import argparse
import statistics
import time

import mindspore as ms
import numpy as np

import hpmoe

NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, TOP_K, RANK = 1024, 512, 512, 8, 2, 8

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


@to_kernel
def moe_with_lora(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight, up_a, up_b, down_a, down_b):
    """A MoE-FFN with adapters: up_a [E, H, r], up_b [E, r, 2I], down_a [E, I, r], down_b [E, r, H]."""
    rows, route = hpmoe.dispatch(hidden_states, topk_ids, num_local_experts=NUM_EXPERTS)

    def adapted(x, weight, a, b):
        low = hpmoe.grouped_matmul(x, a, route)
        return hpmoe.grouped_matmul(x, weight, route) + hpmoe.grouped_matmul(low, b, route)
    hidden = hpmoe.swiglu(adapted(rows, gate_up_weight, up_a, up_b))
    return hpmoe.combine(adapted(hidden, down_weight, down_a, down_b), route, topk_weights)


class Layer(ms.nn.Cell):
    """The experts' weights, frozen or trained, and their adapters."""

    def __init__(self, rng, freeze):
        super().__init__()

        def weight(name, *shape, trained=True):
            value = rng.standard_normal((NUM_EXPERTS, *shape)).astype(np.float32) / np.sqrt(shape[0])
            return ms.Parameter(ms.Tensor(value), name=name, requires_grad=trained)
        self.gate_up_weight = weight("gate_up_weight", HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE, trained=not freeze)
        self.down_weight = weight("down_weight", INTERMEDIATE_SIZE, HIDDEN_SIZE, trained=not freeze)
        self.up_a, self.up_b = weight("up_a", HIDDEN_SIZE, RANK), weight("up_b", RANK, 2 * INTERMEDIATE_SIZE)
        self.down_a, self.down_b = weight("down_a", INTERMEDIATE_SIZE, RANK), weight("down_b", RANK, HIDDEN_SIZE)

    def construct(self, hidden_states, topk_ids, topk_weights):
        return moe_with_lora(hidden_states, topk_ids, topk_weights, self.gate_up_weight, self.down_weight,
                             self.up_a, self.up_b, self.down_a, self.down_b)


def make_step(layer):
    """A function that computes the gradients of what is trained, by name."""
    trained = layer.trainable_params()
    grads = ms.grad(lambda *batch: (layer(*batch) ** 2).mean(), None, ms.ParameterTuple(trained))
    return lambda *batch: dict(zip([p.name for p in trained], grads(*batch), strict=True))


def main():
    rng = np.random.default_rng(0)
    batch = [ms.Tensor(rng.standard_normal((NUM_TOKENS, HIDDEN_SIZE)).astype(np.float32)),
             ms.Tensor(np.argsort(rng.random((NUM_TOKENS, NUM_EXPERTS)))[:, :TOP_K].astype(np.int32)),
             ms.Tensor(rng.dirichlet(np.ones(TOP_K), NUM_TOKENS).astype(np.float32))]
    layers = {"all weights trained": Layer(np.random.default_rng(1), freeze=False),
              "adapters alone": Layer(np.random.default_rng(1), freeze=True)}
    steps = {name: make_step(layer) for name, layer in layers.items()}
    grads = {name: step(*batch) for name, step in steps.items()}
    everything, adapters = grads.values()
    assert adapters.keys() == {"up_a", "up_b", "down_a", "down_b"}
    assert all((g.asnumpy() == everything[name].asnumpy()).all() for name, g in adapters.items())
    print(f"gradients of {', '.join(adapters)} are bitwise those with all weights trained")

    times = {name: [] for name in steps}
    for _ in range(9):  # in turn, so that both meet the same machine
        for name, step in steps.items():
            start = time.perf_counter()
            step(*batch)
            times[name].append(time.perf_counter() - start)
    full, lean = (statistics.median(t) for t in times.values())
    for name, seconds in times.items():
        print(f"{name:<20} {statistics.median(seconds) * 1e3:6.1f} ms forward and backward")
    print(f"a step with frozen experts takes {lean / full:.2f} of the time")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
