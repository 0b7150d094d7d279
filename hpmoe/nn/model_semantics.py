"""Checks that models of a type compute the same as a layer."""

from __future__ import annotations

from mindspore import nn

from hpmoe.nn.hugging_face_options import name_of_activation
from hpmoe.nn.model_types import ModelType
from hpmoe.nn.top_k_router import SCORES
from hpmoe.router.scores import LEAST_SUM
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import check_argument

DEFAULTS: Fields = {"moe_router_score_function": "softmax", "norm_topk_prob": True, "moe_router_topk_scaling_factor": 1.0,
                    "moe_router_num_groups": 1, "moe_router_group_topk": 1, "moe_router_group_score": "sum_of_two",
                    "moe_router_norm_epsilon": LEAST_SUM, "moe_num_zero_experts": 0, "moe_apply_probs_on_input": False,
                    "gated_linear_unit": True, "activation": "swiglu"}


def semantics_of(layer: nn.Cell) -> Fields:
    """Returns the options of a layer, and of its parts, that change outputs and that no Parameter shows."""
    found: Fields = {}
    if (choice := getattr(getattr(layer, "router", None), "choice", None)) is not None:
        found |= {"moe_router_score_function": {value: key for key, value in SCORES.items()}[choice.score],
                  "norm_topk_prob": choice.normalize, "moe_router_topk_scaling_factor": choice.scale}
        if choice.normalize:
            found["moe_router_norm_epsilon"] = choice.epsilon
        if choice.topk_groups < choice.num_groups:
            found |= {"moe_router_num_groups": choice.num_groups, "moe_router_group_topk": choice.topk_groups,
                      "moe_router_group_score": choice.group_score}
    if (run := getattr(getattr(layer, "experts", None), "run", None)) is not None:
        weight1, weight2 = layer.experts.weight1, layer.experts.weight2
        found |= {"activation": name_of_activation(run.activation), "moe_apply_probs_on_input": run.on_input,
                  "gated_linear_unit": weight1.shape[-1] == 2 * weight2.shape[1]}
    return found | {"moe_num_zero_experts": getattr(layer, "num_zero_experts", 0)}


def check_semantics(who: str, layer: nn.Cell, model: ModelType, model_type: str) -> None:
    """Raises ArgumentError if a layer has options that no configuration of a type stands for."""
    expected = {**DEFAULTS, **model.options, "activation": model.activation}
    unlike = {name: value for name, value in semantics_of(layer).items()
              if name not in model.fields and value != expected[name]}
    found = ", ".join(f"{name} {value!r}" for name, value in unlike.items())
    check_argument(not unlike, who, "layer", f"one with {found}",
                   f"one with {', '.join(f'{name} {expected[name]!r}' for name in unlike)}, as every {model_type}",
                   "Save it as a type that computes the same, or with save_shards.")
