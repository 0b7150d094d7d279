"""Loads Parameters of a layer from checkpoints of Hugging Face models, and saves them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn

from hpmoe.balance.places import experts_at
from hpmoe.nn.checkpoint_folder import Array, add_files, names_of_folder, open_arrays, type_of_folder
from hpmoe.nn.expert_reads import narrowed, pieces, read_into
from hpmoe.nn.formats import SHARED, UNSTORED, Entries, pairs, stored_shape
from hpmoe.nn.hugging_face_options import find_model
from hpmoe.nn.matching import IN_RANGE, Block, Place, check_match, find_match, homeless_of, places_of
from hpmoe.nn.model_semantics import check_semantics
from hpmoe.nn.model_types import MODELS, ModelType
from hpmoe.nn.quantized_files import WEIGHTS, dequantized, find_quantized, keep, kept_weights
from hpmoe.nn.safetensors import Stored
from hpmoe.nn.shard_files import Place as RankPlace
from hpmoe.nn.whole_experts import WholeExperts, write_once
from hpmoe.ranks.world import World
from hpmoe.support.dtypes import FLOATS, REALS, dtype_name, name_of_dtype, numpy_dtype
from hpmoe.support.errors import check_argument, check_flags
from hpmoe.support.keywords import suggests_keywords

LOAD, SAVE = "hpmoe.nn.load_hugging_face", "hpmoe.nn.save_hugging_face"
SPLIT_AXES = {"experts.weight1": 2, "experts.weight2": 1, "experts.bias1": 1}  # which the shards of an expert divide


@suggests_keywords
def load_hugging_face(layer: nn.Cell, folder_or_state: str | os.PathLike[str] | Mapping[str, Array], prefix: str = "", *,
                      model_type: str | None = None, experts: range | None = None, allow_rounding: bool = False,
                      keep_quantized: bool = False) -> None:
    """Sets a layer's Parameters to a mixture-of-experts block of a Hugging Face model.

    Compares all names, shapes and dtypes before it sets the first Parameter; then reads one expert at a time. Experts that a
    Balancer has moved keep their places. Compiled graphs follow. Quantized arrays are read as floats, MXFP4 as bfloat16 and
    others as float32. A layer of `hpmoe.world()` reads only the experts, or shards of experts, of its rank.

    Args:
        layer: a `MoELayer`, or a Cell with Parameters of its names.
        folder_or_state: a folder with model.safetensors or with several files and their index; one such file; or a mapping
            of names to arrays of NumPy, MindSpore or PyTorch.
        prefix: prefix of the names of the block's arrays, such as "model.layers.3.mlp"; no other array may have it.
        model_type: "model_type" of the model's config.json, which decides names and layout of the arrays. None reads it from
            config.json in the folder, or else takes the one type whose names and shapes fit.
        experts: range of the checkpoint's experts that the layer holds; only these are read. None is all.
        allow_rounding: whether values may be rounded to a Parameter's dtype.
        keep_quantized: True keeps quantized weights of a MoELayer's experts quantized, with their scales, as Parameters that
            are not trained: 8 bits with a scale for each channel, MXFP4, and FP8 blocks whose scales are powers of two.
            Results are those of the dequantized weights. Call `load_hugging_face` before the layer is compiled.

    Raises:
        ArgumentError: an argument has a wrong type or value; an array is missing, unknown, or of another shape or dtype (the
            text lists them); several types of different layouts fit; a value overflows; or weights cannot stay quantized.

    Example:
        >>> import numpy as np, hpmoe
        >>> layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=3, num_moe_experts=2)
        >>> shapes = {"gate.weight": (2, 4), "experts.gate_up_proj": (2, 6, 4), "experts.down_proj": (2, 4, 3)}
        >>> state = {name: np.random.default_rng(0).random(shape, np.float32) for name, shape in shapes.items()}
        >>> hpmoe.nn.load_hugging_face(layer, state)
        >>> bool((layer.experts.weight2[1].asnumpy() == state["experts.down_proj"][1].T).all())
        True
    """
    parameters = _parameters(LOAD, layer)
    check_flags(LOAD, allow_rounding=allow_rounding, keep_quantized=keep_quantized)
    known = type_of_folder(folder_or_state) if model_type is None else model_type
    models = MODELS.values() if known is None else [find_model(LOAD, "model_type", known)]
    opened = open_arrays(LOAD, folder_or_state, _dotted(LOAD, prefix))
    arrays, formats = dequantized(opened), [entries for model in models for entries in model.formats]
    if len(models) == 1 and next(iter(models)).is_layer:
        roots = {entry.name.split(".")[0] for entries in formats for entry in entries}
        arrays = {name: array for name, array in arrays.items() if name.split(".")[0] in roots}
    block = _block(layer, parameters, experts)
    match = find_match(LOAD, block, arrays, formats)
    at = _experts_at(LOAD, layer)
    quantized = find_quantized(opened) if keep_quantized else {}
    arrays |= {name: arrays[name]._replace(dtype=block.kinds[place.entry.parameter][0])
               for name, place in match.places.items() if name in quantized and place.entry.parameter in WEIGHTS}
    check_match(LOAD, match, arrays, block, allow_rounding)
    weights = kept_weights(LOAD, layer, quantized, match.places) if keep_quantized else {}
    _check_range(arrays, match.places, block)
    for name, parameter in parameters.items():
        places = {stored: place for stored, place in match.places.items() if place.entry.parameter == name}
        if weights and name in WEIGHTS:
            keep(layer.experts, name, weights, places, block, at)
        else:
            _fill(parameter, arrays, places, block, at if name.startswith("experts.") else None)


def _check_range(arrays: Mapping[str, Stored], places: Mapping[str, Place], block: Block) -> None:
    """Raises ArgumentError if a value overflows in the dtype of its Parameter."""
    for name, place in places.items():
        dtype = block.kinds[place.entry.parameter][0]
        if arrays[name].dtype not in IN_RANGE[dtype]:
            for _, values in pieces(arrays[name], place, block):
                narrowed(LOAD, name, values, dtype)


def _fill(parameter: Parameter, arrays: Mapping[str, Stored], places: Mapping[str, Place], block: Block,
          at: np.ndarray | None) -> None:
    """Sets a Parameter to arrays of a checkpoint, with experts in the order `at`."""
    array = np.empty(parameter.shape, numpy_dtype(str(name_of_dtype(parameter.dtype))))
    for stored, place in places.items():
        read_into(array, arrays[stored], place, block)
        if place.entry.parameter == "expert_bias":
            parameter.stored_dtype = arrays[stored].dtype  # which it is saved in
    parameter.copy_(Tensor.from_numpy(array if at is None else array[at]))  # in place: compiled graphs follow


def _block(layer: nn.Cell, parameters: Mapping[str, Parameter], experts: range | None) -> Block:
    """Returns the Block of a layer; on processes that of its rank's experts, or shards of them."""
    own, num_zero = parameters["experts.weight1"].shape[0], _num_zero(layer)
    num_experts, mesh = parameters["router.weight"].shape[0] - num_zero, getattr(layer, "mesh", None)
    place = RankPlace.of(mesh if isinstance(mesh, World) else None)
    own_range = place.experts(own) if place.mesh.num_ranks > 1 else range(num_experts)
    held = own_range if experts is None else experts
    is_range = isinstance(held, range) and held.step == 1 and 0 <= held.start and held.stop <= num_experts
    check_argument(is_range and len(held) == own, LOAD, "experts", repr(experts),
                   f"a range of {own} of the {num_experts} experts, as the layer holds")
    tp_size = place.mesh.tp
    kinds = {name: (str(name_of_dtype(p.dtype)), _whole(name, p.shape, tp_size)) for name, p in parameters.items()}
    return Block(kinds, num_experts, num_zero, held, place.rank % tp_size, tp_size)


def _whole(name: str, shape: tuple[int, ...], num_shards: int) -> tuple[int, ...]:
    """Returns the shape of whole experts from that of shards of them."""
    axis = SPLIT_AXES.get(name, -1)
    return tuple(size * num_shards if i == axis else size for i, size in enumerate(shape))


def _num_zero(layer: nn.Cell) -> int:
    """Returns how many of the experts of a layer's router return their input."""
    return getattr(layer, "num_zero_experts", 0)


@suggests_keywords
def save_hugging_face(layer: nn.Cell | Mapping[str, nn.Cell], folder: str | os.PathLike, prefix: str = "", *,
                      model_type: str, fused: bool = False, dtype: object = None,
                      base: str | os.PathLike | None = None) -> None:
    """Writes the Parameters of a layer, or of all layers of a model, as a type of Hugging Face models has them.

    A save is all or nothing: files get new names, and then the index changes. Without a prefix the folder gets
    model.safetensors. With one it gets a file named after it, and its arrays are added to the folder's index.

    Args:
        layer: a `MoELayer`, a Cell with Parameters of its names, or a mapping of prefixes to these, which is one save. All
            processes of `hpmoe.world()` call it together; rank 0 writes what it gathers, one expert at a time.
        folder: path of the folder, created if it does not exist. Layers of an earlier save must all be replaced in one call.
        prefix: prefix of the arrays' names, such as "model.layers.3.mlp".
        model_type: "model_type" of the model's config.json, such as "qwen3_moe".
        fused: True writes the names and layout that transformers 5 has in memory, if they differ from those of files.
        dtype: MindSpore's float32, bfloat16 or float16, to which arrays except the experts' bias are rounded; None rounds
            nothing. The bias has the dtype in which it was loaded, or float32.
        base: a folder with the whole model. Its other arrays and files are copied, so that transformers loads the result;
            its arrays decide dtypes and layout, so leave out `dtype` and `fused`.

    Raises:
        ArgumentError: an argument has a wrong type or value; models of this type cannot hold the layer; the layer holds
            only some experts, or has masked experts; or the folder has files of another model.
        LaunchError: another process has failed or ended.

    Example:
        >>> import hpmoe, pathlib, tempfile
        >>> layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=3, num_moe_experts=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hpmoe.nn.save_hugging_face(layer, folder, "model.layers.0.mlp", model_type="qwen3_moe")
        ...     sorted(path.name[:18] for path in pathlib.Path(folder).iterdir())
        ['model.layers.0.mlp', 'model.safetensors.']
    """
    check_argument(isinstance(folder, (str, os.PathLike)), SAVE, "folder", f"a {type(folder).__name__}", "a path")
    check_argument(base is None or isinstance(base, (str, os.PathLike)), SAVE, "base", f"a {type(base).__name__}",
                   "a path, or None")
    model = find_model(SAVE, "model_type", model_type)
    check_flags(SAVE, fused=fused)
    check_argument(dtype is None or name_of_dtype(dtype) in FLOATS, SAVE, "dtype", repr(dtype),
                   f"mindspore.{', '.join(FLOATS)} or None")
    layers = layer if isinstance(layer, Mapping) else {prefix: layer}
    check_argument(bool(layers) and not (isinstance(layer, Mapping) and prefix), SAVE, "prefix", repr(prefix),
                   "\"\" beside a mapping of prefixes to layers")
    dtypes = None if base is None else names_of_folder(SAVE, base)
    groups, worlds = {}, []
    for start, cell in layers.items():
        dotted, parameters = _dotted(SAVE, start), _parameters(SAVE, cell)
        whole = WholeExperts(SAVE, cell, parameters, parameters["router.weight"].shape[0] - _num_zero(cell))
        found = _arrays_of(cell, parameters, whole, model, model_type, dotted, fused, name_of_dtype(dtype), dtypes)
        groups[dotted] = {_absolute(dotted, name): stored for name, stored in found.items()}
        worlds.append(whole.world)
    write_once(SAVE, worlds, groups.values(),
               lambda: add_files(SAVE, Path(folder), groups, None if base is None else Path(base)))


def _arrays_of(layer: nn.Cell, parameters: Mapping[str, Parameter], whole: WholeExperts, model: ModelType, model_type: str,
               prefix: str, fused: bool, dtype: str | None, dtypes: Mapping[str, str] | None) -> dict[str, Stored]:
    """Returns the arrays of a layer in files of a type, by the name after the prefix."""
    masked = dict(layer.parameters_and_names()).get("router.masked")
    masked = [] if masked is None else masked.asnumpy().nonzero()[0].tolist()
    check_argument(not masked, SAVE, "layer", f"one whose experts {masked} are masked, which its models cannot say",
                   "a layer without masked experts", "Call layer.mask_experts([]) first, and mask them again afterwards.")
    num_zero, total = _num_zero(layer), len(whole.index)
    entries = model.formats[min(int(fused), len(model.formats) - 1)]
    if dtypes is not None:
        entries = max(model.formats, key=lambda form: sum(
            _absolute(prefix, name) in dtypes for name in places_of(form, parameters, total)))
    check_semantics(SAVE, layer, model, model_type)
    homeless = ", ".join(homeless_of(entries, parameters))
    check_argument(not homeless, SAVE, "layer", f"one with {homeless}", f"one whose Parameters a {model_type} has too")
    absent = _absent_shared(model, entries, parameters)
    lacking = [e.name for e in entries if e.parameter not in parameters and e.parameter not in SHARED + ("",) * bool(absent)]
    lacking += [e.name for e in entries if e.parameter in SHARED and e.parameter not in parameters and absent is None]
    check_argument(not lacking, SAVE, "layer", f"one without a Parameter for {', '.join(lacking)}",
                   f"one that has all Parameters of a {model_type}")
    arrays = (absent or {}) | {name: p.asnumpy() for name, p in parameters.items()}
    bias = getattr(parameters.get("expert_bias"), "stored_dtype", "float32")
    found = {}
    for name, place in places_of(entries, arrays, total, num_zero if dtypes is None else 0).items():
        chosen = bias if place.entry.parameter == "expert_bias" else dtype
        if dtypes is not None:
            full = _absolute(prefix, name)
            fits = dtypes.get(full) in REALS
            check_argument(fits, SAVE, "base", f"one where {full} is {'missing' if full not in dtypes else dtypes[full]}",
                           "the folder of a whole model that is not quantized")
            chosen = dtypes[full]
        found[name] = _stored(name, place, arrays[place.entry.parameter], whole, num_zero, chosen)
    return found


def _absent_shared(model: ModelType, entries: Entries, parameters: Mapping[str, Parameter]) -> dict[str, np.ndarray] | None:
    """Returns the arrays in files of an absent shared expert: of width 0, or none; None if the type needs one."""
    first, last = SHARED
    if first in parameters or not any(entry.parameter == first for entry in entries):
        return {}
    if any(name.endswith("!") for name in model.shared):
        return None
    if model.shared[0].endswith("?"):
        return {}
    weight = parameters["router.weight"]
    empty = np.empty((0, weight.shape[1]), numpy_dtype(str(name_of_dtype(weight.dtype))))
    return {first: empty, last: empty.T}


def _stored(name: str, place: Place, array: np.ndarray, whole: WholeExperts, num_zero: int, dtype: str | None) -> Stored:
    """Returns a checkpoint's array at a place, of a Parameter's; reading lays it out."""
    entry, num_experts = place.entry, len(whole.index)
    dtype = dtype_name(array.dtype) if dtype is None else dtype
    shape = stored_shape(entry, whole.shapes.get(entry.parameter, array.shape), num_experts, num_zero)

    def read() -> np.ndarray:
        out = np.zeros(shape, numpy_dtype(dtype))
        by_expert = out.reshape(num_experts, -1, *shape[1:]) if entry.rows == "flat" else out
        for e in place.experts if entry.of_experts else (slice(None),):
            values = whole.read(entry.parameter, e) if isinstance(e, int) else array
            for mine, theirs in pairs(entry, values, out if entry.is_apart else by_expert[e]):
                theirs[...] = narrowed(SAVE, name, mine, dtype)
        return out
    return Stored(dtype, shape, read)


def _parameters(who: str, layer: nn.Cell) -> dict[str, Parameter]:
    """Returns the Parameters of a layer that checkpoints have, by the names of MoELayer."""
    check_argument(isinstance(layer, nn.Cell), who, "layer", f"a {type(layer).__name__}", "a MoELayer, or a Cell like it")
    found = {name: p for name, p in layer.parameters_and_names() if name not in UNSTORED}
    check_argument("experts.scale1" not in found, who, "layer", "one whose weights are kept quantized", "one of floats",
                   "Build the layer again.")
    check_argument({"router.weight", "experts.weight1", "experts.weight2"} <= set(found), who, "layer",
                   f"a {type(layer).__name__} with Parameters {', '.join(found) or 'none'}",
                   "one that has router.weight, experts.weight1 and experts.weight2, as MoELayer")
    return found


def _experts_at(who: str, layer: nn.Cell) -> np.ndarray | None:
    """Returns the expert at each place of the layer's weights; None if all are in order, as in a checkpoint."""
    places = dict(layer.parameters_and_names()).get("experts.places")
    at = None if places is None else experts_at(who, places)
    return None if at is None or (at == np.arange(len(at))).all() else at


def _dotted(who: str, prefix: str) -> str:
    is_name = isinstance(prefix, str) and not set("/\\\0") & set(prefix)
    check_argument(is_name, who, "prefix", repr(prefix) if isinstance(prefix, str) else f"a {type(prefix).__name__}",
                   "a str without slashes")
    return prefix and prefix.rstrip(".") + "."


def _absolute(prefix: str, name: str) -> str:
    """Returns the whole name of an array of a block; "^" is beside it."""
    return prefix[:-1].rpartition(".")[0] + "." * ("." in prefix[:-1]) + name[1:] if name.startswith("^") else prefix + name
