"""The arrays that the sides of a bench compute with."""

from __future__ import annotations

import numpy as np
from layer_problem import LayerProblem

from hpmoe.routing.workload import sampled_ids
from hpmoe.support.dtypes import numpy_dtype


def make_arrays(problem: LayerProblem, routing: str, seed: int) -> dict[str, np.ndarray]:
    """Random inputs, float32 holding values of the dtype."""
    rng = np.random.default_rng(seed)
    n, h, i, e = problem.num_tokens, problem.hidden, problem.intermediate, problem.experts

    def rounded(array: np.ndarray) -> np.ndarray:
        return array.astype(numpy_dtype(problem.dtype)).astype(np.float32)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return rounded(rng.standard_normal(shape, np.float32) * np.float32(scale))

    ids = sampled_ids(1, n, problem.top_k, e, is_zipf=routing == "zipf", seed=rng)[0]
    weights = rng.random((n, problem.top_k), np.float32) + np.float32(0.1)
    return {"hidden_states": normal(n, h), "topk_ids": ids,
            "topk_weights": rounded(weights / weights.sum(-1, keepdims=True)),
            "gate_up_weight": normal(e, h, 2 * i, scale=h ** -0.5),
            "down_weight": normal(e, i, h, scale=i ** -0.5),
            "cotangent": normal(n, h)}
