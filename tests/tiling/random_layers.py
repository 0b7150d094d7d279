"""Random sizes and schedules of a MoE layer."""

from helpers import SMALL_NPU, Layer

import hpmoe

MACHINES = (hpmoe.cpu(1), hpmoe.cpu(3), SMALL_NPU)
SIGNALS, POLICIES = ("tile", "expert", "peer"), ("critical_path", "round_robin", "stage_order")


def random_layer(rng):
    ep = int(rng.choice([1, 2, 3, 4]))
    experts = ep * int(rng.integers(1, 4))
    tokens = int(rng.integers(0, 6))
    lengths = None if rng.random() < 0.5 else tuple(int(n) for n in rng.integers(0, tokens + 1, ep))
    return Layer(ep=ep, T=tokens, H=4, I=3, E=experts, K=int(rng.integers(1, min(experts, 3) + 1)), num_tokens=lengths,
                 routing=str(rng.choice(["random", "one expert", "one rank"])))


def random_options(rng):
    return {"rows": int(rng.integers(1, 4)), "cols": int(rng.choice([1, 2, 3, 100])), "signal": str(rng.choice(SIGNALS)),
            "order": str(rng.choice(["ratr", "sequential"])), "policy": str(rng.choice(POLICIES)),
            "machine": MACHINES[rng.integers(3)], "put_cols": (None, 2)[rng.integers(2)],
            "combine_order": (None, "ratr", "sequential")[rng.integers(3)]}
