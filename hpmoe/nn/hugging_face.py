"""Parameters of a layer from checkpoints of Hugging Face models, and back."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn

from hpmoe.balance.places import experts_at
from hpmoe.nn.checkpoint_folder import Array, add_file, open_arrays
from hpmoe.nn.formats import FORMATS, SHARED, UNSTORED, Entry, pairs, stored_shape
from hpmoe.nn.matching import IN_RANGE, Place, check_match, closest_match, homeless_of, places_of
from hpmoe.nn.safetensors import Stored
from hpmoe.support.dtypes import FLOATS, dtype_name, name_of_dtype, numpy_dtype, rounded
from hpmoe.support.errors import check_argument, check_flags, is_name
from hpmoe.support.keywords import suggests_keywords

LOAD, SAVE = "hpmoe.nn.load_hugging_face", "hpmoe.nn.save_hugging_face"


@suggests_keywords
def load_hugging_face(layer: nn.Cell, folder_or_state: str | os.PathLike[str] | Mapping[str, Array], prefix: str = "", *,
                      experts: range | None = None, allow_rounding: bool = False) -> None:
    """Sets a layer's Parameters to a mixture-of-experts block of a Hugging Face model.

    Experts that a Balancer has moved keep their places. Compiled graphs follow.

    The names tell the format: that of Qwen3-MoE, DeepSeek-V3, GLM-4.5 and Kimi K2, of Mixtral or of gpt-oss, with an array
    for each expert or one of all. All names, shapes and dtypes are compared before the first Parameter is set; then one
    expert is read at a time.

    Args:
        layer: a `MoELayer`, or a Cell with Parameters of its names.
        folder_or_state: a folder with model.safetensors or with several files and their index; one such file; or a mapping
            of names to arrays of NumPy, MindSpore or PyTorch.
        prefix: what the block's names start with, as in "model.layers.3.mlp"; nothing else may start with it and a dot.
        experts: which of the checkpoint's experts the layer holds, as one rank's does; no others are read. None is all.
        allow_rounding: whether values may be rounded to a Parameter's dtype.

    Raises:
        ArgumentError: an argument does not fit, or arrays are missing, unknown, or of another shape or dtype, and listed.

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
    arrays = open_arrays(LOAD, folder_or_state, _dotted(LOAD, prefix))
    own, total = parameters["experts.weight1"].shape[0], parameters["router.weight"].shape[0]
    held = range(total) if experts is None else experts
    is_share = isinstance(held, range) and held.step == 1 and 0 <= held.start and held.stop <= total and len(held) == own
    check_argument(is_share, LOAD, "experts", repr(experts), f"a range of {own} of the {total} experts, as the layer holds")
    check_flags(LOAD, allow_rounding=allow_rounding)
    match = closest_match(parameters, arrays, held, total)
    kinds = {name: (str(name_of_dtype(p.dtype)), tuple(p.shape)) for name, p in parameters.items()}
    at = _experts_at(LOAD, layer)
    check_match(LOAD, match, arrays, kinds, total, allow_rounding)
    for stored, place in match.places.items():
        if arrays[stored].dtype not in IN_RANGE[kinds[place.entry.parameter][0]]:
            for _, values in _pieces(arrays[stored], place, held):
                _narrowed(LOAD, stored, values, kinds[place.entry.parameter][0])
    for name, (dtype, shape) in kinds.items():
        array = np.empty(shape, numpy_dtype(dtype))
        for stored, place in match.places.items():
            if place.entry.parameter == name:
                _read(array, arrays[stored], place, held)
        array = array if at is None or not name.startswith("experts.") else array[at]
        parameters[name].copy_(Tensor.from_numpy(array))  # in place: compiled graphs follow


def _read(array: np.ndarray, stored: Stored, place: Place, held: range) -> None:
    """Reads a checkpoint's array, or the held experts of one, into the array of a Parameter."""
    for at, values in _pieces(stored, place, held):
        for mine, theirs in pairs(place.entry, array[at], values):
            mine[...] = rounded(theirs, dtype_name(array.dtype))
        del values, theirs  # before the next part is read


def _pieces(stored: Stored, place: Place, held: range) -> Iterator[tuple[int | slice, np.ndarray]]:
    """Yields (index in the Parameter, values) of a checkpoint's array, one of the held experts at a time."""
    if not place.entry.of_experts:
        yield slice(None), stored.read()
    elif place.entry.is_apart:
        yield place.experts.start - held.start, stored.read()
    else:
        for e in held:
            yield e - held.start, stored.read(range(e, e + 1))[0]


def _narrowed(who: str, name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns values in a dtype; raises ArgumentError if one of them is too large for it."""
    narrow = rounded(values, dtype)
    is_lost = np.isinf(narrow.astype(np.float32)) & np.isfinite(values.astype(np.float64))
    check_argument(not is_lost.any(), who, "dtype", f"{dtype}, in which {name} overflows to infinity",
                   "a dtype that holds all values", "Write mindspore.bfloat16 or mindspore.float32.")
    return narrow


@suggests_keywords
def save_hugging_face(layer: nn.Cell, folder: str | os.PathLike, prefix: str = "", *, model_type: str, fused: bool = False,
                      dtype: object = None) -> None:
    """Writes a layer's Parameters as a type of Hugging Face models has them, with experts in order.

    Without a prefix the folder gets model.safetensors. With one it gets a file named after it, and its arrays are added to
    the folder's index: layers of a model are saved one by one.

    Args:
        layer: a `MoELayer`, or a Cell with Parameters of its names.
        folder: where to; it is made where there is none.
        prefix: what names are to start with, as in "model.layers.3.mlp".
        model_type: "qwen3_moe", "deepseek_v3", "glm4_moe", "kimi_k2", "mixtral" or "gpt_oss".
        fused: whether all experts are in one array, as transformers has them in memory; those of gpt-oss always are.
        dtype: MindSpore's float32, bfloat16 or float16, which all is rounded to but the experts' bias; None rounds nothing.

    Raises:
        ArgumentError: an argument does not fit, the layer has Parameters that models of this type have not or not all
            experts or masked ones, or the folder has another model's files.

    Example:
        >>> import hpmoe, pathlib, tempfile
        >>> layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=3, num_moe_experts=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hpmoe.nn.save_hugging_face(layer, folder, "model.layers.0.mlp", model_type="qwen3_moe")
        ...     sorted(path.name for path in pathlib.Path(folder).iterdir())
        ['model.layers.0.mlp.safetensors', 'model.safetensors.index.json']
    """
    parameters = _parameters(SAVE, layer)
    check_argument(isinstance(folder, (str, os.PathLike)), SAVE, "folder", f"a {type(folder).__name__}", "a path")
    masked = dict(layer.parameters_and_names()).get("router.masked")
    masked = [] if masked is None else masked.asnumpy().nonzero()[0].tolist()
    check_argument(not masked, SAVE, "layer", f"one whose experts {masked} are masked, which its models cannot say",
                   "a layer without masked experts", "Call layer.mask_experts([]) first, and mask them again afterwards.")
    prefix = _dotted(SAVE, prefix)
    check_argument(is_name(model_type, FORMATS), SAVE, "model_type", repr(model_type), f"one of {', '.join(FORMATS)}")
    check_flags(SAVE, fused=fused)
    check_argument(dtype is None or name_of_dtype(dtype) in FLOATS, SAVE, "dtype", repr(dtype),
                   f"mindspore.{', '.join(FLOATS)} or None")
    own, total = parameters["experts.weight1"].shape[0], parameters["router.weight"].shape[0]
    check_argument(own == total, SAVE, "layer", f"one of {own} of {total} experts", "one that holds all")
    entries = FORMATS[model_type][fused]
    homeless = ", ".join(homeless_of(entries, parameters))
    check_argument(not homeless, SAVE, "layer", f"one with {homeless}", f"one whose Parameters a {model_type} has too")
    arrays = _no_shared_expert(entries, parameters) | {name: p.asnumpy() for name, p in parameters.items()}
    at = _experts_at(SAVE, layer)
    if at is not None:
        arrays |= {name: array[np.argsort(at)] for name, array in arrays.items() if name.startswith("experts.")}
    add_file(SAVE, Path(folder), prefix, {
        prefix + name: _stored(name, place, arrays[place.entry.parameter], total, name_of_dtype(dtype))
        for name, place in places_of(entries, arrays, total).items()})


def _no_shared_expert(entries: Collection[Entry], parameters: Mapping[str, Parameter]) -> dict[str, np.ndarray]:
    """The arrays of a shared expert of width 0, which files of models with one have where a layer has none."""
    first, last = SHARED
    weight = parameters["router.weight"]
    has_capacity = any(entry.parameter == first for entry in entries) and first not in parameters
    empty = np.empty((0, weight.shape[1]), numpy_dtype(str(name_of_dtype(weight.dtype))))
    return {first: empty, last: empty.T} if has_capacity else {}


def _stored(name: str, place: Place, array: np.ndarray, num_experts: int, dtype: str | None) -> Stored:
    """What a checkpoint has of a Parameter's array at a place; it is laid out where it is read."""
    entry = place.entry
    dtype = dtype_name(array.dtype) if dtype is None or entry.parameter == "expert_bias" else dtype
    shape = stored_shape(entry, array.shape, num_experts)

    def read() -> np.ndarray:
        out = np.empty(shape, numpy_dtype(dtype))
        for e in place.experts if entry.of_experts else (slice(None),):
            for mine, theirs in pairs(entry, array[e], out if entry.is_apart else out[e]):
                theirs[...] = _narrowed(SAVE, name, mine, dtype)
        return out
    return Stored(dtype, shape, read)


def _parameters(who: str, layer: nn.Cell) -> dict[str, Parameter]:
    """What a checkpoint has of a layer, by the names of MoELayer."""
    check_argument(isinstance(layer, nn.Cell), who, "layer", f"a {type(layer).__name__}", "a MoELayer, or a Cell like it")
    found = {name: p for name, p in layer.parameters_and_names() if name not in UNSTORED}
    check_argument({"router.weight", "experts.weight1"} <= set(found), who, "layer",
                   f"a {type(layer).__name__} with Parameters {', '.join(found) or 'none'}",
                   "one that has router.weight and experts.weight1, as MoELayer")
    return found


def _experts_at(who: str, layer: nn.Cell) -> np.ndarray | None:
    """The expert at each place of the layer's weights; None if all are in order, as in a checkpoint."""
    places = dict(layer.parameters_and_names()).get("experts.places")
    at = None if places is None else experts_at(who, places)
    return None if at is None or (at == np.arange(len(at))).all() else at


def _dotted(who: str, prefix: str) -> str:
    check_argument(isinstance(prefix, str), who, "prefix", f"a {type(prefix).__name__}", "a str")
    return prefix and prefix.rstrip(".") + "."
