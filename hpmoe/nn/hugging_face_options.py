"""Options of a MoELayer that computes the same as a block of a Hugging Face model, from its configuration."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpmoe.nn.activations import ClampedSwiglu, GptOssSwiglu, clamped_swiglu, gpt_oss_swiglu, relu2
from hpmoe.nn.model_types import IGNORED, MODELS, REFUSED, ModelType
from hpmoe.nn.quantized_files import fault_of_quantization
from hpmoe.primitives.swiglu import swiglu
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import nearest, suggests_keywords

WHO = "hpmoe.nn.hugging_face_options"

Config = str | os.PathLike[str] | Fields
# Activations by name: what the options have, from the fields that follow.
ACTIVATIONS: dict[str, tuple[Callable[..., Callable], tuple[str, ...]]] = {
    "swiglu": (lambda: swiglu, ()), "relu2": (lambda: relu2, ()), "clamped_swiglu": (clamped_swiglu, ("swiglu_limit",)),
    "gpt_oss_swiglu": (gpt_oss_swiglu, ("swiglu_limit", "swiglu_alpha"))}
OPTIONAL = ("moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk", "moe_num_zero_experts")
_FIXED: dict[str, tuple[object, ...]] = {"hidden_act": ("silu", "swish"), "activation_function": ("silu",)}


def name_of_activation(activation: Callable) -> str:
    """Returns the name in ACTIVATIONS of a layer's activation, or the function's own."""
    known = {ClampedSwiglu: "clamped_swiglu", GptOssSwiglu: "gpt_oss_swiglu"}
    return known.get(type(activation)) or getattr(activation, "__name__", type(activation).__name__)


def find_model(who: str, argument: str, name: object) -> ModelType:
    """Returns the entry of a model type; that of "qwen3_vl_moe_text" is "qwen3_vl_moe"."""
    short = name.removesuffix("_text") if isinstance(name, str) else ""
    reason = next((why for kind, why in REFUSED.items() if short == kind), "")
    check_argument(not reason, who, argument, f"{name!r}, which no layer computes: {reason}", "another type")
    near = nearest(short, MODELS)
    check_argument(short in MODELS, who, argument, repr(name), "one of those that hpmoe.nn's page lists",
                   f"Did you mean {near!r}?" if near else "")
    return MODELS[short]


@suggests_keywords
def hugging_face_options(config: Config, *, ignore: Sequence[str] = ()) -> Fields:
    """Returns the options of a `MoELayer` that computes the same as a block of a Hugging Face model.

    Each field of the configuration must set an option, be known not to change the block's output, or be None, False, 0 or
    empty. Any other field is an error.

    Args:
        config: a model's folder, the path of its config.json, or a dict with the content of config.json. The options are
            read from "thinker_config" or "text_config" in it, if there is one.
        ignore: names of fields to ignore.

    Returns:
        A dict of keyword arguments of `MoELayer`.

    Raises:
        ArgumentError: hpmoe does not support the model type, or the configuration lacks a field or has an unknown field.

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
    is_names = isinstance(ignore, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in ignore)
    check_argument(is_names, WHO, "ignore", repr(ignore), "a list of names of fields")
    model = find_model(WHO, "model_type", fields.get("model_type"))
    make, names = ACTIVATIONS[model.activation]
    lost = [" or ".join(known) for option, known in model.fields.items()
            if option not in OPTIONAL and all(fields.get(name) is None for name in known)]
    lost += [name[:-1] for name in model.shared if name.endswith("!") and fields.get(name[:-1]) is None]
    check_argument(not lost, WHO, "config", f"one without {', '.join(lost)}",
                   f"a whole configuration of {fields['model_type']}")
    taken = {option: _value(fields, known) for option, known in model.fields.items()}
    if fields.get("topk_method") == "greedy":
        del taken["moe_router_num_groups"], taken["moe_router_group_topk"]
    lists = [option for option, value in taken.items() if isinstance(value, list)]
    check_argument(not lists, WHO, "config", f"one with a list, a value for each layer, for {', '.join(lists)}",
                   "one value for all layers", "Write the value of the layer into a copy of the configuration.")
    options = model.options | {option: value for option, value in taken.items() if value is not None}
    if (width := _shared_width(fields, model)):
        options["moe_shared_expert_intermediate_size"] = width
    else:
        options.pop("use_shared_expert_gating", None)
    _check_others(fields, model, bool(width), {*ignore})
    if model.activation != "swiglu":
        options["activation"] = make(*(fields[name] for name in names if name in fields))
    return options


def _value(fields: Fields, names: tuple[str, ...]) -> object:
    """Returns the value that fields have by one of some names, or None."""
    found = {name: fields[name] for name in names if fields.get(name) is not None}
    values = list(found.values())
    check_argument(all(value == values[0] for value in values), WHO, "config",
                   f"one with {', '.join(f'{name} {value!r}' for name, value in found.items())}", "one of the same value")
    return values[0] if values else None


def _shared_width(fields: Fields, model: ModelType) -> int:
    """Returns the width of the shared expert, 0 without one."""
    return math.prod(fields.get(name.rstrip("!?")) or 0 for name in model.shared) if model.shared else 0


def names_taken(model: ModelType) -> set[str]:
    """Returns the fields of a type that options stand for."""
    return {name for known in model.fields.values() for name in known} | {name.rstrip("!?") for name in model.shared} | {
        *ACTIVATIONS[model.activation][1]}


def names_fixed(model: ModelType) -> dict[str, tuple[object, ...]]:
    """Returns the values that fields of a type may have which options do not stand for."""
    return {**_FIXED, **model.fixed}


def _check_others(fields: Fields, model: ModelType, has_shared: bool, ignore: set[str]) -> None:
    """Raises ArgumentError if fields that no option stands for have values that may change a block's output."""
    taken, fixed = names_taken(model) | ignore | IGNORED | {"quantization_config"}, names_fixed(model)
    unlike = {}
    quantization = fields.get("quantization_config")
    if isinstance(quantization, dict) and (fault := fault_of_quantization(quantization)):
        unlike["quantization_config"] = f", {fault}"
    for name, value in fields.items():
        if name in fixed:
            is_moot = name.startswith("shared_expert") and not has_shared
            if value is not None and value not in fixed[name] and not is_moot:
                unlike[name] = f"; it needs {' or '.join(map(repr, fixed[name]))}"
        elif name not in taken and value not in (None, False, 0, [], {}):
            unlike[name] = ""
    check_argument(not unlike, WHO, "config",
                   f"one with {', '.join(f'{name} {fields[name]!r}{why}' for name, why in unlike.items())}",
                   "one without fields that no option stands for",
                   "Name fields that change no output of a block in ignore=, or build the layer with options of your own.")


def _fields(config: Config) -> Fields:
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        check_argument(path.is_file(), WHO, "config", f"{str(path)!r}, which is not there", "a config.json, or its folder")
        try:
            fields: Fields = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            check_argument(False, WHO, "config", f"{str(path)!r}, which is no JSON: {error}", "a config.json")
    else:
        fields = config
    check_argument(isinstance(fields, Mapping), WHO, "config", f"a {type(fields).__name__}", "a dict, or the path of one")
    for part in ("thinker_config", "text_config", "ffn_config"):
        if isinstance(inner := fields.get(part), Mapping):
            fields = {**fields, "model_type": fields.get("model_type"), **inner} if part == "ffn_config" else {
                "model_type": fields.get("model_type"), "quantization_config": fields.get("quantization_config"), **inner}
            fields = fields | {"model_type": "dbrx"} if part == "ffn_config" else fields
    return fields
