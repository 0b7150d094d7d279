"""Options of hpmoe.nn.MoELayer from MindFormers' configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace

from hpmoe.mindformers.grouped_mlp import activation_of
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import check_argument, warn
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import PyTree

WHO = "hpmoe.mindformers.layer_options"
SIZES = ("hidden_size", "moe_ffn_hidden_size", "num_moe_experts")
# Fields that are arguments of MoELayer by the same names.
TAKEN = (*SIZES, "moe_router_topk", "moe_router_score_function", "norm_topk_prob", "moe_router_topk_scaling_factor",
         "moe_router_num_groups", "moe_router_group_topk", "moe_router_enable_expert_bias", "moe_router_bias_update_rate",
         "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_load_balancing_type", "moe_shared_expert_intermediate_size",
         "use_shared_expert_gating", "gated_linear_unit", "add_bias_linear", "moe_apply_probs_on_input",
         "moe_expert_capacity_factor", "moe_token_drop_policy", "init_method_std")
# Fields that change what a layer computes, by a way that no option has, and the values that change nothing.
REFUSED = {"moe_router_force_expert_balance": (False, None), "moe_n_hash_layers": (0, None)}
_OF_EXPERTS = re.compile("moe|expert|first_k_dense_replace|norm_topk")


@suggests_keywords
def layer_options(config: PyTree) -> Fields:
    """Returns the options with which `hpmoe.nn.MoELayer` computes what MindFormers' PyNative layer of a configuration does.

    Fields of experts and routers that have no meaning for one layer, such as first_k_dense_replace, moe_layer_freq,
    moe_router_pre_softmax, moe_router_dtype and moe_token_dispatcher_type, are named in one warning if they are set.

    Args:
        config: a TransformerConfig, or a dict of its fields.

    Raises:
        ArgumentError: sizes are missing, or a field needs something that no option of `hpmoe.nn.MoELayer` does.

    Example:
        >>> import hpmoe
        >>> fields = {"hidden_size": 8, "moe_ffn_hidden_size": 4, "num_moe_experts": 4, "moe_router_topk": 2,
        ...           "hidden_act": "fusedswiglu", "gated_linear_unit": True, "shared_expert_num": 2}
        >>> options = hpmoe.mindformers.layer_options(fields)
        >>> options["moe_shared_expert_intermediate_size"], hpmoe.nn.MoELayer(**options).experts.weight1.shape
        (8, (4, 8, 8))
    """
    fields = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    if fields.get("moe_ffn_hidden_size") is None:
        fields["moe_ffn_hidden_size"] = fields.get("ffn_hidden_size")
    lost = [name for name in SIZES if fields.get(name) is None]
    check_argument(not lost, WHO, "config", f"one without {', '.join(lost)}", "a configuration of a model with experts")
    refused = [f"{name} {fields[name]!r}" for name, values in REFUSED.items() if fields.get(name) not in values]
    check_argument(not refused, WHO, "config", f"one with {', '.join(refused)}", "one without",
                   "hpmoe.router.balanced_ids forces balance; hpmoe.router.weigh weighs experts that a table chose.")
    options = {name: fields[name] for name in TAKEN if fields.get(name) is not None}
    if options.get("moe_expert_capacity_factor", 1) < 0:
        del options["moe_expert_capacity_factor"]  # MindFormers' "no token is dropped"
    if "moe_shared_expert_intermediate_size" not in options and fields.get("shared_expert_num"):
        options["moe_shared_expert_intermediate_size"] = fields["shared_expert_num"] * fields["moe_ffn_hidden_size"]
    if fields.get("hidden_act") is not None:
        options["activation"] = activation_of(SimpleNamespace(
            hidden_act=fields["hidden_act"], gated_linear_unit=fields.get("gated_linear_unit", True),
            activation_func_clamp_value=fields.get("activation_func_clamp_value")))
    others = sorted(name for name, value in fields.items() if _OF_EXPERTS.search(name) and value not in (None, False, 0)
                    and name not in (*TAKEN, *REFUSED, "shared_expert_num"))
    if others:
        warn(f"{WHO}: {', '.join(others)} have no meaning for one layer.")
    return options
