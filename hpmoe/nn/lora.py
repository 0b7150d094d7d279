"""LoRA on experts: adapters as PEFT's `target_parameters` writes them, trained beside frozen weights, saved back, merged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from hpmoe.balance.places import experts_at
from hpmoe.nn.checkpoint_folder import open_arrays
from hpmoe.nn.expert_shards import shard_experts
from hpmoe.nn.formats import is_alternating
from hpmoe.nn.grouped_mlp import LORA
from hpmoe.nn.hugging_face_options import find_model
from hpmoe.nn.moe_layer import MoELayer
from hpmoe.nn.safetensors import Stored, write_file
from hpmoe.nn.shard_files import Place
from hpmoe.nn.whole_experts import WholeExperts, write_once
from hpmoe.ranks.world import World
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords

FILE, CONFIG, ROOT = "adapter_model.safetensors", "adapter_config.json", "base_model.model."
TARGETS = {"1": "gate_up_proj", "2": "down_proj"}  # by the number of the weight
# Fields that change what an adapter adds, and the values of them that are read.
_READ: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False,), "lora_bias": (False,), "fan_in_fan_out": (False,),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None), "lora_dropout": (0.0,)}


@suggests_keywords
def add_lora(layer: MoELayer, *, rank: int, alpha: float, targets: tuple[str, ...] = ("gate_up_proj", "down_proj")) -> None:
    """Adds adapters to the experts' weights, W + alpha / rank * A @ B, and freezes all other Parameters of the layer.

    A is drawn from a normal distribution, B is zero. A is [E, in, rank], B [E, rank, out]. All processes of a world call it
    with the same seed, and each holds the adapters of its own experts, or its shard of them.

    Args:
        layer: a `MoELayer`. On processes, the gradients of `experts.lora_a1` and `experts.lora_b2` of the shards of an
            expert add up: `hpmoe.all_reduce_gradients(grads, mesh, over="tensor_parallel")`.
        rank: rank of the adapters, a positive int.
        alpha: scale of the adapters times rank.
        targets: names of the adapted weights, of "gate_up_proj" and "down_proj".

    Raises:
        ArgumentError: an argument has a wrong type or value, or the layer already has adapters.

    Example:
        >>> import hpmoe
        >>> layer = hpmoe.nn.MoELayer(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> hpmoe.nn.add_lora(layer, rank=2, alpha=4)
        >>> [(p.name, p.shape) for p in layer.trainable_params()][:2]
        [('experts.lora_a1', (2, 8, 2)), ('experts.lora_b1', (2, 2, 8))]
    """
    who = "hpmoe.nn.add_lora"
    _check_layer(who, layer, has_adapters=False)
    check_argument(is_int(rank), who, "rank", repr(rank), "a positive int")
    check_argument(is_number(alpha), who, "alpha", repr(alpha), "a finite float32 number")
    is_targets = isinstance(targets, (tuple, list)) and targets and set(targets) <= set(TARGETS.values())
    check_argument(bool(is_targets), who, "targets", repr(targets), f"some of {', '.join(TARGETS.values())}")
    arrays, place = {}, _place(layer)
    for number, target in TARGETS.items():
        if target in targets:
            rows, columns = layer.experts.sizes[number]
            experts = layer.experts.places.shape[0]
            drawn = ops.normal((experts, rows, int(rank)), Tensor(0.0), Tensor(1 / math.sqrt(rows))).asnumpy()
            whole = {f"lora_a{number}": drawn, f"lora_b{number}": np.zeros((experts, rank, columns), np.float32)}
            arrays |= {name: shard_experts(array, place.mesh, layer.experts.splits[name])[place.rank]
                       for name, array in whole.items()}
    _set(layer, arrays, {"r": int(rank), "lora_alpha": alpha, "peft_type": "LORA", "bias": "none", "target_modules": [],
                         "target_parameters": [f"mlp.experts.{target}" for target in TARGETS.values() if target in targets]})


@suggests_keywords
def load_lora(layer: MoELayer, folder: str | os.PathLike[str], prefix: str = "", *, model_type: str = "qwen3_moe") -> None:
    """Adds the adapters of a block's experts from a folder that PEFT wrote, and freezes all other Parameters of the layer.

    Args:
        layer: a `MoELayer` without adapters, as for `add_lora`.
        folder: a folder with adapter_config.json and adapter_model.safetensors.
        prefix: prefix of the names of the block's arrays, such as "model.layers.3.mlp".
        model_type: "model_type" of the model's config.json, which decides the order of the columns of gate and up.

    Raises:
        ArgumentError: an argument has a wrong type or value; or the folder has no adapters of the block, or adapters of
            another shape or kind (such as DoRA).
    """
    who = "hpmoe.nn.load_lora"
    _check_layer(who, layer, has_adapters=False)
    model = find_model(who, "model_type", model_type)
    check_argument(isinstance(folder, (str, os.PathLike)), who, "folder", f"a {type(folder).__name__}", "a path")
    config = _config(who, Path(folder))
    start = f"{ROOT}{prefix}{'.' if prefix else ''}experts."
    stored = open_arrays(who, Path(folder) / FILE, start)
    arrays: dict[str, np.ndarray] = {}
    for inner in ("base_layer.", ""):
        pair = [stored.pop(f"{inner}lora_{side}.weight", None) for side in "AB"]
        if pair[0] is not None and pair[1] is not None:
            arrays |= _factors(who, layer, config, pair[0], pair[1], is_alternating(model.formats[-1]), done=arrays)
    others = ", ".join(list(stored)[:4]) or "no adapters"
    check_argument(not stored and bool(arrays), who, "folder", f"one with {others} of experts",
                   "one with lora_A and lora_B of gate_up_proj and down_proj, PEFT's target_parameters")
    _set(layer, arrays, config)


def _config(who: str, folder: Path) -> Fields:
    """Returns the configuration of adapters; raises ArgumentError if they add something else than A @ B."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        is_config = isinstance(config, dict) and is_int(config.get("r")) and is_number(config.get("lora_alpha"))
    except (OSError, ValueError, RecursionError):
        config, is_config = {}, False
    check_argument(is_config, who, "folder", f"{folder}, without {CONFIG} of PEFT", "a folder that PEFT wrote")
    unlike = [f"{name} {config[name]!r}" for name, values in _READ.items() if name in config and config[name] not in values]
    check_argument(not unlike, who, "folder", f"one with {', '.join(unlike)}", "one of plain LoRA")
    return config


def _factors(who: str, layer: MoELayer, config: Fields, a: Stored, b: Stored, alternates: bool,
             done: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns A and B of the weight that stored factors [E * r, in] and [out, r * E] fit, of the experts or shards held."""
    total, rank, place = layer.experts.places.shape[0], config["r"], _place(layer)
    held = place.experts(total // place.mesh.ep)
    for number in TARGETS:
        rows, columns = layer.experts.sizes[number]
        is_plain = a.shape == (total * rank, rows) and b.shape == (columns, rank * total)
        is_swapped = a.shape == (total * rank, columns) and b.shape == (rows, rank * total)
        if f"lora_a{number}" in done or not (is_plain or is_swapped):
            continue
        check_argument({a.dtype, b.dtype} <= {*FLOATS}, who, "folder", f"one with adapters of {a.dtype}", "one of floats")
        is_gated = number == "1" and layer.experts.splits["weight1"] == "gate_up"
        inner = _parts(place, rows, 1 if number == "2" else 0)
        outer = _parts(place, columns, 0 if number == "2" else 2 if is_gated and not alternates else 1)
        first, second = (_of_rows, _of_columns) if is_plain else (_of_columns, _of_rows)
        pair = (a, b) if is_plain else (b, a)
        low = np.concatenate([first(pair[0], held, rank, part) for part in inner], -1)
        high = np.concatenate([second(pair[1], held, rank, part) for part in outer], -1)
        if is_gated and alternates:
            high = np.concatenate((high[..., ::2], high[..., 1::2]), -1)
        return {f"lora_a{number}": low.transpose(0, 2, 1), f"lora_b{number}": high}
    check_argument(False, who, "folder", f"one with adapters {a.shape}, {b.shape}",
                   f"one of rank {rank} for {total} experts of the layer's sizes")
    return {}


def _parts(place: Place, size: int, num_parts: int) -> list[range]:
    """Returns the ranges of an axis that a shard holds, one of each of its parts; all of an axis without parts."""
    if not num_parts:
        return [range(size)]
    width = size // num_parts // place.mesh.tp
    first = place.rank % place.mesh.tp * width
    return [range(start + first, start + first + width) for start in range(0, size, size // num_parts)]


def _of_rows(stored: Stored, held: range, rank: int, part: range) -> np.ndarray:
    """Returns [held, r, part] of a factor [E * r, N]."""
    found = stored.read(range(held.start * rank, held.stop * rank), part)
    return found.astype(np.float32).reshape(len(held), rank, len(part))


def _of_columns(stored: Stored, held: range, rank: int, part: range) -> np.ndarray:
    """Returns [held, r, part] of a factor [N, r * E]."""
    total = stored.shape[1] // rank
    if len(held) == total:
        found = stored.read(part).reshape(len(part), rank, total)
    else:
        found = np.stack([stored.read(part, range(j * total + held.start, j * total + held.stop)) for j in range(rank)], 1)
    return found.astype(np.float32).transpose(2, 1, 0)


@suggests_keywords
def save_lora(layer: nn.Cell | Mapping[str, nn.Cell], folder: str | os.PathLike[str], prefix: str = "", *,
              model_type: str = "qwen3_moe") -> None:
    """Writes the adapters of a layer, or of layers by their prefixes, as PEFT reads them.

    Args:
        layer: a `MoELayer` with adapters, or a mapping of prefixes to these. All processes of `hpmoe.world()` call it
            together; rank 0 writes what it gathers, one expert at a time.
        folder: path of the folder, created if it does not exist.
        prefix, model_type: as for `load_lora`.

    Raises:
        ArgumentError: an argument has a wrong type or value, or a layer has no adapters.
        LaunchError: another process has failed or ended.
    """
    who = "hpmoe.nn.save_lora"
    model = find_model(who, "model_type", model_type)
    check_argument(isinstance(folder, (str, os.PathLike)), who, "folder", f"a {type(folder).__name__}", "a path")
    layers = layer if isinstance(layer, Mapping) else {prefix: layer}
    check_argument(bool(layers), who, "layer", "a mapping without layers", "one with some")
    arrays: dict[str, Stored] = {}
    for start, cell in layers.items():
        _check_layer(who, cell, has_adapters=True)
        parameters = {name: p for name, p in cell.parameters_and_names() if name.startswith("experts.")}
        whole = WholeExperts(who, cell, parameters, cell.experts.places.shape[0])
        numbers = [number for number in TARGETS if f"experts.lora_a{number}" in parameters]
        for number in numbers:
            inner = "base_layer." if number != numbers[-1] else ""
            start_of = f"{ROOT}{start}{'.' if start else ''}experts.{inner}"
            alternates = number == "1" and is_alternating(model.formats[-1])
            arrays[f"{start_of}lora_A.weight"] = _rows_of(whole, f"experts.lora_a{number}")
            arrays[f"{start_of}lora_B.weight"] = _columns_of(whole, f"experts.lora_b{number}", alternates)
    config = next(iter(layers.values())).experts.lora_config

    def write() -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_file(Path(folder) / FILE, arrays)
        (Path(folder) / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    worlds = [cell.mesh for cell in layers.values() if isinstance(cell.mesh, World)]
    write_once(who, worlds, [arrays], write)


def _rows_of(whole: WholeExperts, name: str) -> Stored:
    """Returns the factor [E * r, in] of adapters [E, in, r]."""
    experts, rows, rank = whole.shapes[name]
    return Stored("float32", (experts * rank, rows), lambda: whole.all(name).transpose(0, 2, 1).reshape(-1, rows))


def _columns_of(whole: WholeExperts, name: str, alternates: bool) -> Stored:
    """Returns the factor [out, r * E] of adapters [E, r, out]; columns of gate and up may alternate in it."""
    experts, rank, columns = whole.shapes[name]

    def read() -> np.ndarray:
        b = whole.all(name)
        b = np.stack(np.split(b, 2, -1), -1).reshape(b.shape) if alternates else b
        return b.transpose(2, 1, 0).reshape(columns, -1)
    return Stored("float32", (columns, rank * experts), read)


@suggests_keywords
def merge_lora(layer: MoELayer) -> None:
    """Adds the adapters to the experts' weights, each rounded once, and removes them; frozen Parameters train again.

    Args:
        layer: a `MoELayer` with adapters.

    Raises:
        ArgumentError: layer is no MoELayer with adapters.

    Example:
        >>> import hpmoe, numpy as np
        >>> layer = hpmoe.nn.MoELayer(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> hpmoe.nn.add_lora(layer, rank=2, alpha=4)
        >>> hpmoe.nn.merge_lora(layer)
        >>> [p.name for p in layer.trainable_params()]
        ['router.weight', 'experts.weight1', 'experts.weight2']
    """
    _check_layer("hpmoe.nn.merge_lora", layer, has_adapters=True)
    experts, scale = layer.experts, layer.experts.lora_scale
    check_argument(not (experts.has_scale1 or experts.has_scale2), "hpmoe.nn.merge_lora", "layer",
                   "one whose weights are kept quantized", "one with weights of floats",
                   "Load the weights without keep_quantized, and the adapters again.")
    tensors = {name: p.asnumpy() for name, p in _adapters(layer).items()}
    for number in TARGETS:
        if f"lora_a{number}" in tensors:
            weight = getattr(experts, f"weight{number}")
            added = np.matmul(tensors[f"lora_a{number}"], tensors[f"lora_b{number}"]) * np.float32(scale)
            weight.copy_(Tensor(weight.astype(ms.float32).asnumpy() + added).astype(weight.dtype))
    for name in tensors:
        delattr(experts, name)
    for p in experts.lora_frozen:
        p.requires_grad = True
    experts.has_lora1, experts.has_lora2 = False, False
    experts.lora_frozen, experts.lora_scale, experts.lora_config = [], 1.0, None


def _check_layer(who: str, layer: nn.Cell, has_adapters: bool) -> None:
    check_argument(isinstance(layer, MoELayer), who, "layer", f"a {type(layer).__name__}", "an hpmoe.nn.MoELayer")
    found = bool(_adapters(layer))
    check_argument(found == has_adapters, who, "layer", f"one with{'' if found else 'out'} adapters",
                   f"one with{'' if has_adapters else 'out'} adapters")


def _adapters(layer: nn.Cell) -> dict[str, Parameter]:
    return {name: p for name, p in layer.experts.parameters_and_names() if name in LORA}


def _place(layer: MoELayer) -> Place:
    """Returns which experts, or shards of them, a layer holds."""
    return Place.of(layer.mesh if isinstance(layer.mesh, World) else None)


def _set(layer: MoELayer, arrays: Mapping[str, np.ndarray], config: Fields) -> None:
    """Gives a layer its adapters, and freezes the rest."""
    experts = layer.experts
    experts.lora_frozen = layer.trainable_params()
    for p in experts.lora_frozen:
        p.requires_grad = False
    at = experts_at("hpmoe.nn.load_lora", experts.places)
    for name in LORA:
        if name in arrays:
            array = arrays[name] if len(at) != len(arrays[name]) else arrays[name][at]  # processes hold experts in order
            setattr(experts, name, Parameter(Tensor(np.ascontiguousarray(array, np.float32)), name=f"experts.{name}"))
    experts.has_lora1, experts.has_lora2 = "lora_a1" in arrays, "lora_a2" in arrays
    rank = config["r"]
    experts.lora_config = dict(config)
    experts.lora_scale = float(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))
