"""A MoE-FFN whose experts have rows in groups of a multiple."""

import hpmoe


def aligned(alignment, **options):
    """With other options of dispatch; topk_weights decide what "probs" drops."""
    def moe_ffn(x, topk_ids, topk_weights, gate_up, down):
        weights = {"topk_weights": topk_weights} if options.get("drop_policy") == "probs" else {}
        rows, route = hpmoe.dispatch(x, topk_ids, num_local_experts=gate_up.shape[0], expert_alignment=alignment, **options,
                                     **weights)
        act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route))
        return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, topk_weights)
    return moe_ffn
