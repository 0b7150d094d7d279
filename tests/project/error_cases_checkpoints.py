"""More of error_cases.py: checkpoints that do not fit a layer, and files that are none."""

import json
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from error_cases import cases
from mindspore import nn

from hpmoe import Mesh
from hpmoe.nn import (
    MoELayer,
    add_lora,
    gpt_oss_swiglu,
    hugging_face_options,
    load_hugging_face,
    load_lora,
    merge_lora,
    relu2,
    save_hugging_face,
    save_lora,
)
from hpmoe.nn.safetensors import Stored, write_file

OPTIONS = {"hidden_size": 4, "moe_ffn_hidden_size": 3, "num_moe_experts": 2, "moe_router_topk": 1, "norm_topk_prob": False}
STATE = {"gate.weight": np.ones((2, 4), np.float32), "experts.gate_up_proj": np.ones((2, 6, 4), np.float32),
         "experts.down_proj": np.ones((2, 4, 3), np.float32)}
MIXTRAL = {"model_type": "mixtral", "hidden_size": 8, "intermediate_size": 6, "num_local_experts": 4,
           "num_experts_per_tok": 2}


def _load(state=STATE, prefix="", *, layer=None, **options):
    return lambda: load_hugging_face(layer or MoELayer(**OPTIONS), state, prefix, **options)


def _save(folder="saved", prefix="", *, layer=None, model_type="qwen3_moe", **options):
    return lambda: save_hugging_face(layer or MoELayer(**OPTIONS), folder, prefix, model_type=model_type, **options)


def _in_folder(files, f):
    """Calls f with a folder that has some files, by name; in the text of its error the folder is called FOLDER."""
    def call():
        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                (Path(folder) / name).write_bytes(data)
            try:
                f(Path(folder))
            except ValueError as error:
                raise type(error)(str(error).replace(folder, "FOLDER")).with_traceback(error.__traceback__) from None
    return call


def _file(entries=None, data=b""):
    return _text(json.dumps(entries).encode(), data)


def _text(text, data=b""):
    return len(text).to_bytes(8, "little") + text + data


def _model_beside(folder):
    write_file(folder / "model.safetensors", {"a": Stored("float32", (1,), lambda *ranges: np.ones(1, np.float32))})
    _save(folder, "model.layers.0.mlp")()


def _share():
    layer = nn.Cell()
    layer.router, layer.experts = MoELayer(**OPTIONS).router, MoELayer(**OPTIONS | {"num_moe_experts": 1}).experts
    return layer


GPT_OSS = {"gate_up_proj": (2, 4, 6), "gate_up_proj_bias": (2, 6), "down_proj": (2, 3, 4), "down_proj_bias": (2, 4)}
INDEX = "model.safetensors.index.json"
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def _int8(first, last, kind, shape_of):
    """A block of int8 with scales of a kind, whose shape is a function of that of the weight."""
    state = {"gate.weight": STATE["gate.weight"]}
    for name, shape in {"gate_up_proj": first, "down_proj": last}.items():
        state[f"experts.{name}"] = np.ones(shape, np.int8)
        state[f"experts.{name}_{kind}"] = np.full(shape_of(shape), 0.3, np.float32)
    return state


CHANNELS = _int8((2, 6, 4), (2, 4, 3), "scale", lambda shape: (*shape[:2], 1))
BLOCKS = _int8((2, 6, 4), (2, 4, 3), "scale_inv", lambda shape: (2, 1, 1))
BY_INPUT = _int8((2, 4, 6), (2, 3, 4), "scale", lambda shape: (*shape[:2], 1))


def _kept():
    layer = MoELayer(**OPTIONS)
    load_hugging_face(layer, CHANNELS, keep_quantized=True)
    add_lora(layer, rank=1, alpha=1)
    return layer


cases("load_hugging_face", {
    "kept: of shards": _load(CHANNELS, keep_quantized=True, layer=MoELayer(**OPTIONS, mesh=Mesh(1, tp=3))),
    "kept: of floats": _load(keep_quantized=True),
    "kept: FP8 blocks": _load(BLOCKS, keep_quantized=True),
    "kept: scales of inputs": _load(BY_INPUT, keep_quantized=True, model_type="qwen3_vl_moe"),
    "kept: loaded again": lambda: load_hugging_face(_kept(), STATE),
    "no layer": _load(layer=nn.Cell()),
    "no Cell": _load(layer=OPTIONS),
    "no folder": _load(3),
    "a folder that is not there": _load("no such folder"),
    "a folder of no files": _in_folder({}, lambda folder: _load(folder)()),
    "a prefix of no name": _load(prefix="model.layers.7.mlp"),
    "a prefix that is a number": _load(prefix=3),
    "experts without a gate": _load(layer=MoELayer(**OPTIONS, gated_linear_unit=False, activation=relu2)),
    "two layouts": _load({"router.weight": STATE["gate.weight"], "router.bias": np.ones(2, np.float32), **{
        f"experts.{name}": np.ones(shape, np.float32) for name, shape in GPT_OSS.items()}},
        layer=MoELayer(**OPTIONS, add_bias_linear=True)),
    "a refused type": _load(model_type="gemma4"),
    "a misspelt type": _load(model_type="qwen3_mo"),
    "a file of another save": _in_folder(
        {INDEX: b'{"metadata": {"hpmoe_save": "a"}, "weight_map": {"a": "1.safetensors"}}',
         "1.safetensors": _file({"a": ENTRY}, b"12345678")}, lambda folder: _load(folder)()),
    "a prefix with a slash": _load(prefix="../model"),
    "names of another model": _load({"c_fc.weight": STATE["gate.weight"]}),
    "rounding of words": _load(allow_rounding="yes"),
    "experts of a whole layer": _load(experts=range(1)),
    "a file of words": _in_folder({"model.safetensors": b"pytorch"}, lambda folder: _load(folder)()),
    "a file cut off": _in_folder({"model.safetensors": _file({"a": ENTRY}, b"1234")}, lambda folder: _load(folder)()),
    "a file of too many bytes": _in_folder({"model.safetensors": _file({"a": ENTRY | {"shape": [3]}}, b"12345678")},
                                           lambda folder: _load(folder)()),
    "a file with a name twice": _in_folder(
        {"model.safetensors": _text(b'{"a": %s, "a": %s}' % ((json.dumps(ENTRY).encode(),) * 2), b"12345678")},
        lambda folder: _load(folder)()),
    "a list for an array": _load(STATE | {"gate.weight": [[1.0]]}),
    "float64 to float32": _load(STATE | {"gate.weight": np.ones((2, 4))}),
    "overflow in float16": _load(STATE | {"gate.weight": np.full((2, 4), 1e6, np.float32)}, allow_rounding=True,
                                 layer=MoELayer(**OPTIONS, dtype=ms.float16)),
    "an index of words": _in_folder({INDEX: b"{}"}, lambda folder: _load(folder)()),
    "an index of missing files": _in_folder({INDEX: b'{"weight_map": {"gate.weight": "1.safetensors"}}'},
                                            lambda folder: _load(folder)()),
    "an index of missing arrays": _in_folder(
        {INDEX: b'{"weight_map": {"gate.weight": "1.safetensors"}}', "1.safetensors": _file({"a": ENTRY}, b"12345678")},
        lambda folder: _load(folder)()),
})


def _masked():
    layer = MoELayer(**OPTIONS)
    layer.mask_experts([0])
    return layer


def _saved_again(folder):
    layers = {f"model.layers.{i}.mlp": MoELayer(**OPTIONS) for i in range(2)}
    save_hugging_face(layers, folder, model_type="qwen3_moe")
    index = json.loads((folder / INDEX).read_text())
    _rename(folder, index)
    _save(folder, "model.layers.0.mlp")()


def _rename(folder, index):
    """Gives files names without a random part."""
    names = {file: ".".join(file.split(".")[:4]) + ".safetensors" for file in index["weight_map"].values()}
    for old, new in names.items():
        (folder / old).rename(folder / new)
    index["weight_map"] = {name: names[file] for name, file in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))


def _beside_base(folder):
    save_hugging_face(MoELayer(**OPTIONS), folder, model_type="qwen3_moe")
    _save(folder, base=folder)()


def _of_base(folder):
    save_hugging_face(MoELayer(**OPTIONS), folder, model_type="qwen3_moe")
    _save(folder / "new", "model", base=folder)()


cases("save_hugging_face", {
    "no folder": _save(3),
    "a base that is a number": _save(base=3),
    "a prefix beside a mapping": _save(prefix="model", layer={"model": MoELayer(**OPTIONS)}),
    "without a bias": _save(model_type="deepseek_v3", layer=MoELayer(**OPTIONS, moe_router_score_function="sigmoid")),
    "a sigmoid": _save(model_type="mixtral", layer=MoELayer(**OPTIONS | {"norm_topk_prob": True, "moe_router_topk": 2},
                                                            moe_router_score_function="sigmoid")),
    "a layer again": _in_folder({}, _saved_again),
    "into its base": _in_folder({}, _beside_base),
    "of a base without it": _in_folder({}, _of_base),
    "another model": _save(model_type="llama"),
    "fused by words": _save(fused="yes"),
    "in integers": _save(dtype=ms.int32),
    "a Parameter that the model has not": _save(layer=MoELayer(**OPTIONS, add_bias_linear=True)),
    "some of the experts": _save(layer=_share()),
    "masked experts": _save(layer=_masked()),
    "beside another model": _in_folder({}, _model_beside),
})
cases("hugging_face_options", {
    "no configuration": lambda: hugging_face_options(3),
    "a file that is not there": lambda: hugging_face_options("config.json"),
    "another model": lambda: hugging_face_options({"model_type": "llama"}),
    "a file of words": _in_folder({"config.json": b"mixtral"}, lambda folder: hugging_face_options(folder)),
    "two numbers of experts": lambda: hugging_face_options({**MIXTRAL, "num_experts": 8}),
    "a list for the layers": lambda: hugging_face_options({**MIXTRAL, "num_experts_per_tok": [2, 4]}),
    "no width of the shared expert": lambda: hugging_face_options(
        {**MIXTRAL, "model_type": "qwen2_moe", "moe_intermediate_size": 6, "norm_topk_prob": True}),
    "ignored fields of words": lambda: hugging_face_options(MIXTRAL, ignore="router_jitter_noise"),
    "missing fields": lambda: hugging_face_options({"model_type": "qwen3_moe", "hidden_size": 8}),
    "another activation and jitter": lambda: hugging_face_options(
        {**MIXTRAL, "hidden_act": "gelu", "router_jitter_noise": 0.1}),
})
def _lora(change):
    """A folder with adapters, changed by a function of its configuration."""
    def call(folder):
        layer = MoELayer(**OPTIONS)
        add_lora(layer, rank=2, alpha=4)
        save_lora(layer, folder, "mlp")
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        load_lora(MoELayer(**OPTIONS), folder, "mlp")
    return _in_folder({}, call)


def _half_adapter(folder):
    (folder / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 4}')
    write_file(folder / "adapter_model.safetensors", {
        "base_model.model.mlp.experts.lora_A.weight": Stored("float32", (1,), lambda *ranges: np.ones(1, np.float32))})
    load_lora(MoELayer(**OPTIONS), folder, "mlp")


def _integers(folder):
    (folder / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 4}')
    write_file(folder / "adapter_model.safetensors", {
        f"base_model.model.mlp.experts.lora_{side}.weight": Stored("I64", shape, lambda s=shape: np.ones(s, np.int64))
        for side, shape in {"A": (2, 4), "B": (6, 2)}.items()})
    load_lora(MoELayer(**OPTIONS), folder, "mlp")


cases("lora", {
    "no layer": lambda: add_lora(nn.Cell(), rank=2, alpha=4),
    "no rank": lambda: add_lora(MoELayer(**OPTIONS), rank=0, alpha=4),
    "alpha of words": lambda: add_lora(MoELayer(**OPTIONS), rank=2, alpha="4"),
    "other targets": lambda: add_lora(MoELayer(**OPTIONS), rank=2, alpha=4, targets=("q_proj",)),
    "merged into kept ones": lambda: merge_lora(_kept()),
    "nothing to merge": lambda: merge_lora(MoELayer(**OPTIONS)),
    "a folder that is a number": lambda: load_lora(MoELayer(**OPTIONS), 3),
    "to a folder that is a number": lambda: save_lora(MoELayer(**OPTIONS), 3),
    "no layers": lambda: save_lora({}, "adapters"),
    "no configuration": _in_folder({}, lambda folder: load_lora(MoELayer(**OPTIONS), folder)),
    "another kind of adapter": _lora({"use_dora": True}),
    "another rank": _lora({"r": 3}),
    "half an adapter": _in_folder({}, _half_adapter),
    "adapters of integers": _in_folder({}, _integers),
})
cases("gpt_oss_swiglu", {
    "no limit": lambda: gpt_oss_swiglu(0),
    "alpha of words": lambda: gpt_oss_swiglu(alpha="1.702"),
})
