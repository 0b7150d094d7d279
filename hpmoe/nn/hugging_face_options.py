"""The options of a MoELayer that computes what the blocks of a Hugging Face model do, from its configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hpmoe.nn.activations import gpt_oss_swiglu
from hpmoe.support.errors import check_argument, is_name
from hpmoe.support.kept_files import Fields
from hpmoe.support.keywords import suggests_keywords

WHO = "hpmoe.nn.hugging_face_options"

Config = str | os.PathLike[str] | Fields
Names = dict[str, tuple[str, ...]]  # fields by option; where there are several, transformers writes either

_OF_ALL: Names = {
    "hidden_size": ("hidden_size",), "moe_router_topk": ("num_experts_per_tok",),
    "num_moe_experts": ("n_routed_experts", "num_experts", "num_local_experts")}
_FINE: Names = {"moe_ffn_hidden_size": ("moe_intermediate_size",), "norm_topk_prob": ("norm_topk_prob",)}
_COARSE: Names = {"moe_ffn_hidden_size": ("intermediate_size",)}
_BIASED: Names = {
    **_FINE, "moe_router_topk_scaling_factor": ("routed_scaling_factor",), "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",)}
_SIGMOID: Fields = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
# By model_type: its fields, and options that it has whatever its fields.
MODELS: dict[str, tuple[Names, Fields]] = {
    "qwen3_moe": (_FINE, {}), "mixtral": (_COARSE, {"norm_topk_prob": True}),
    "gpt_oss": (_COARSE, {"norm_topk_prob": True, "add_bias_linear": True}),
    "deepseek_v3": (_BIASED, _SIGMOID), "glm4_moe": (_BIASED, _SIGMOID), "kimi_k2": (_BIASED, _SIGMOID)}
# Fields that no option stands for, with the one value that needs none.
_FIXED = {"hidden_act": "silu", "scoring_func": "sigmoid", "router_jitter_noise": 0.0}


@suggests_keywords
def hugging_face_options(config: Config) -> Fields:
    """The options with which `MoELayer` computes what a Hugging Face model's mixture-of-experts blocks do.

    Args:
        config: a model's folder, its config.json, or what that says, a dict; where it has a "text_config", that counts.

    Returns:
        A dict of options, of a model of type "qwen3_moe", "deepseek_v3", "glm4_moe", "kimi_k2", "mixtral" or "gpt_oss".

    Raises:
        ArgumentError: the configuration is of another model, lacks fields, or asks for what no option does.

    Example:
        >>> import hpmoe
        >>> options = hpmoe.nn.hugging_face_options({
        ...     "model_type": "mixtral", "hidden_size": 8, "intermediate_size": 6, "num_local_experts": 4,
        ...     "num_experts_per_tok": 2, "hidden_act": "silu"})
        >>> options["num_moe_experts"], options["norm_topk_prob"]
        (4, True)
        >>> hpmoe.nn.MoELayer(**options).experts.weight1.shape
        (4, 8, 12)
    """
    fields = _fields(config)
    model_type = fields.get("model_type")
    check_argument(is_name(model_type, MODELS), WHO, "config", f"one of model_type {model_type!r}",
                   f"one of {', '.join(MODELS)}")
    names, options = MODELS[fields["model_type"]]
    names = {**_OF_ALL, **names}
    missing = [" or ".join(known) for known in names.values() if not any(field in fields for field in known)]
    check_argument(not missing, WHO, "config", f"one without {', '.join(missing)}", f"a whole configuration of {model_type}")
    unlike = [f"{name} {fields[name]!r}" for name, value in _FIXED.items() if fields.get(name, value) != value]
    check_argument(not unlike, WHO, "config", f"one with {', '.join(unlike)}",
                   f"one with {', '.join(f'{name} {value!r}' for name, value in _FIXED.items())}",
                   "Build the layer with options of your own.")
    options = options | {option: next(fields[f] for f in known if f in fields) for option, known in names.items()}
    if num_shared := fields.get("n_shared_experts"):
        options["moe_shared_expert_intermediate_size"] = num_shared * options["moe_ffn_hidden_size"]
    if model_type == "gpt_oss":
        options["activation"] = gpt_oss_swiglu(fields.get("swiglu_limit", 7.0), fields.get("swiglu_alpha", 1.702))
    return options


def _fields(config: Config) -> Fields:
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        check_argument(path.is_file(), WHO, "config", f"{str(path)!r}, which is not there", "a config.json, or its folder")
        fields: Fields = json.loads(path.read_text(encoding="utf-8"))
    else:
        fields = config
    check_argument(isinstance(fields, Mapping), WHO, "config", f"a {type(fields).__name__}", "a dict, or the path of one")
    return fields.get("text_config") or fields
