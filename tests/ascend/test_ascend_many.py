"""The most experts and choices that the Ascend kernel accepts, on its emulator: with masked entries, expert capacity,
deduplicated dispatch and expert replicas."""

import numpy as np
import pytest
from ascend_helpers import emulator
from helpers import kept_by_hand
from mindspore import Tensor

import hpmoe

EP, T, H = 2, 4, 16
BY_POSITION, BY_WEIGHT = ({"capacity_factor": 0.5, "drop_policy": policy} for policy in ("position", "probs"))


def same(f):
    return f


def copied(f):
    """Adds 64 replicas to each rank, so that 896 experts become 1024 expert places."""
    return hpmoe.replicate_experts(f, loads=[9] * 20 + [1] * 876, replicas=64)


@pytest.mark.parametrize("num_experts, top_k, limits, wrap", [
    (1024, 512, {}, same), (1024, 64, BY_POSITION, same), (1024, 512, BY_WEIGHT, same),
    (1024, 512, {}, hpmoe.send_rows(scheme="deduplicated")), (1024, 300, BY_POSITION,
                                                              hpmoe.send_rows(scheme="deduplicated")),
    (896, 512, {}, copied), (896, 512, BY_WEIGHT, lambda f: hpmoe.send_rows(scheme="deduplicated")(copied(f)))],
    ids=["all", "by position", "by weight", "once", "once, by position", "copies", "copies, once, by weight"])
def test_as_many_as_the_kernel_takes(num_experts, top_k, limits, wrap):
    def there_and_back(x, ids, weights):
        deciding = {"topk_weights": weights} if limits is BY_WEIGHT else {}
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=num_experts // EP, **limits, **deciding)
        return hpmoe.combine(rows * 2.0, route, weights)

    rng = np.random.default_rng(0)
    ids = np.stack([[rng.permutation(num_experts)[:top_k] for _ in range(T)] for _ in range(EP)]).astype(np.int32)
    ids[:, 1, ::3] = -1
    weights = (np.round(rng.standard_normal((EP, T, top_k)) * 8) / 8).astype(np.float32)
    x = rng.standard_normal((EP, T, H)).astype(np.float32)
    kept = ids >= 0
    if limits:
        kept, dropped = kept_by_hand(ids, weights, limits["capacity_factor"], limits["drop_policy"], num_experts)
        assert dropped.any()
    out = hpmoe.spmd(emulator(wrap(there_and_back)), hpmoe.Mesh(EP))(*map(Tensor, (x, ids, weights))).asnumpy()
    want = 2 * x.astype(np.float64) * (weights * kept).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-4)
