"""Checkpoints of Hugging Face models: layouts, files byte for byte, shards, a rank's own experts, and what does not fit."""

import json
import threading
import tracemalloc

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from hugging_face_states import MODELS, E, make_block, make_layer, prefixed
from mindspore import nn
from safetensors.numpy import save_file

import hpmoe
from hpmoe.nn import checkpoint_folder, load_hugging_face, safetensors, save_hugging_face
from hpmoe.nn.checkpoint_folder import open_arrays
from hpmoe.nn.expert_reads import read_into
from hpmoe.nn.matching import Block, find_match
from hpmoe.nn.model_types import MODELS as TABLE

PREFIX = "model.layers.1.mlp."
INDEX = "model.safetensors.index.json"


def write(path, arrays):
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata={"format": "pt"})


def check_holds(layer, ours, experts=slice(None)):
    own = ("tokens_per_expert", "counted_tokens", "router.masked", "experts.places")
    found = {name: p.asnumpy() for name, p in layer.parameters_and_names() if name not in own}
    assert sorted(found) == sorted(ours)
    for name, array in found.items():
        np.testing.assert_array_equal(array, ours[name][experts] if name.startswith("experts.") else ours[name], name)


def write_model(folder, blocks):
    """A model of some blocks by their prefix, each array in one of three files."""
    arrays = {name: array for prefix, block in blocks.items() for name, array in prefixed(prefix, block.theirs).items()}
    arrays["model.embed_tokens.weight"] = np.zeros((3, 2), np.float32)
    places = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(sorted(arrays))}
    for file in set(places.values()):
        write(folder / file, {name: array for name, array in arrays.items() if places[name] == file})
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model_type", MODELS)
def test_layouts_and_files(model_type, fused, tmp_path):
    """Loaded values have their places, and a saved file equals the safetensors library's."""
    block = make_block(model_type, fused)
    write(tmp_path / "model.safetensors", block.theirs)
    layer = make_layer(block)
    load_hugging_face(layer, tmp_path, model_type=model_type)
    check_holds(layer, block.ours)
    save_hugging_face(layer, tmp_path / "saved", model_type=model_type, fused=fused)
    assert (tmp_path / "saved/model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("fused", [False, True])
def test_no_shared_expert_is_one_of_width_zero(fused, tmp_path):
    """transformers has arrays without elements, in files too, if n_shared_experts is 0."""
    block = make_block("deepseek_v3", fused)
    theirs = dict(block.theirs)
    for name in filter(lambda name: "shared" in name, theirs):
        theirs[name] = theirs[name][:, :0] if "down" in name else theirs[name][:0]
    write(tmp_path / "model.safetensors", theirs)
    layer = hpmoe.nn.MoELayer(**{name: x for name, x in block.options.items() if "shared" not in name})
    load_hugging_face(layer, tmp_path)
    save_hugging_face(layer, tmp_path / "saved", model_type="deepseek_v3", fused=fused)
    assert (tmp_path / "saved/model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("make", [lambda x: x, ms.Tensor])
def test_arrays_in_memory(make):
    block = make_block("gpt_oss")
    layer = make_layer(block)
    state = prefixed(PREFIX, {name: make(array) for name, array in block.theirs.items()})
    load_hugging_face(layer, state, PREFIX, model_type="gpt_oss")
    check_holds(layer, block.ours)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt_oss"])
def test_bfloat16_is_kept_to_the_bit(model_type, tmp_path):
    """In a bfloat16 layer and, since float32 holds it, in a float32 one; the experts' bias is float32 in either."""
    block = make_block(model_type)
    halves = {name: array if "correction" in name else array.astype(ml_dtypes.bfloat16)
              for name, array in block.theirs.items()}
    write(tmp_path / "model.safetensors", halves)
    for dtype, saved in ((ms.bfloat16, None), (ms.float32, ms.bfloat16)):
        layer = make_layer(block, dtype=dtype)
        load_hugging_face(layer, tmp_path, model_type=model_type)
        assert layer.experts.weight1.dtype == dtype
        save_hugging_face(layer, tmp_path / str(dtype), model_type=model_type, dtype=saved)
        assert (tmp_path / str(dtype) / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    layer = make_layer(block, dtype=ms.bfloat16)
    load_hugging_face(layer, halves, model_type=model_type)
    assert (layer.router.weight.astype(ms.float32).asnumpy() == halves[
        "router.weight" if model_type == "gpt_oss" else "gate.weight"].astype(np.float32)).all()


def test_rounding_is_asked_for():
    block = make_block("qwen3_moe")
    layer = make_layer(block, dtype=ms.float16)
    with pytest.raises(hpmoe.ArgumentError, match="allow_rounding=True: experts.0.down_proj.weight of float32 to float16, "):
        load_hugging_face(layer, block.theirs)
    load_hugging_face(layer, block.theirs, allow_rounding=True)
    check_holds(layer, {name: array.astype(np.float16) for name, array in block.ours.items()})


def test_layers_of_a_model_in_several_files(tmp_path):
    """Each layer is found by its prefix, saved to a file of its own, and found there again."""
    blocks = {f"model.layers.{i}.mlp.": make_block("deepseek_v3", seed=i) for i in (1, 2, 11)}
    write_model(tmp_path, blocks)
    layers = {}
    for prefix, block in blocks.items():
        layers[prefix] = make_layer(block)
        load_hugging_face(layers[prefix], tmp_path, prefix)
        save_hugging_face(layers[prefix], tmp_path / "saved", prefix, model_type="deepseek_v3")
    for folder in ("saved", "saved at once"):
        for prefix, block in blocks.items():
            layer = make_layer(block)
            load_hugging_face(layer, tmp_path / folder, prefix.rstrip("."))
            check_holds(layer, block.ours)
        if folder == "saved":
            save_hugging_face(layers, tmp_path / "saved at once", model_type="deepseek_v3")
    index = json.loads((tmp_path / "saved" / INDEX).read_text())
    sizes = [array.nbytes for block in blocks.values() for array in block.theirs.values()]
    assert index["metadata"]["total_size"] == sum(sizes) and len(index["weight_map"]) == len(sizes)
    assert len(list((tmp_path / "saved").iterdir())) == len(blocks) + 1


def make_layers(value):
    """Layers of a model, of one value each."""
    layers = {f"model.layers.{i}.mlp": hpmoe.nn.MoELayer(**make_block("qwen3_moe").options) for i in range(3)}
    for layer in layers.values():
        layer.experts.weight2.set_data(ms.ops.full_like(layer.experts.weight2, value))
    return layers


def values_of(folder):
    """The value of each layer in a folder."""
    found = set()
    for prefix, layer in make_layers(0).items():
        load_hugging_face(layer, folder, prefix)
        found.add(float(layer.experts.weight2.asnumpy()[0, 0, 0]))
    return found


def test_a_save_is_all_or_nothing(tmp_path, monkeypatch):
    """If any write fails, the folder holds the layers of one save, and no other files after a whole one."""
    save_hugging_face(make_layers(1), tmp_path, model_type="qwen3_moe")
    write_file, left = checkpoint_folder.write_file, []

    def failing(*args):
        if not left:
            raise OSError("no space left")
        left.pop()
        return write_file(*args)
    monkeypatch.setattr(checkpoint_folder, "write_file", failing)
    for num_written in range(3):
        left[:] = [None] * num_written
        with pytest.raises(OSError, match="no space"):
            save_hugging_face(make_layers(2), tmp_path, model_type="qwen3_moe")
        assert values_of(tmp_path) == {1.0}
    monkeypatch.undo()
    save_hugging_face(make_layers(2), tmp_path, model_type="qwen3_moe")
    assert values_of(tmp_path) == {2.0}
    names = set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values())
    assert {path.name for path in tmp_path.iterdir()} >= names | {INDEX} and len(names) == 3


def test_layers_of_two_saves_are_refused(tmp_path):
    """A layer is not replaced by itself, and a file of another save is not read."""
    layers = make_layers(1)
    save_hugging_face(layers, tmp_path / "a", model_type="qwen3_moe")
    prefix, layer = next(iter(layers.items()))
    with pytest.raises(hpmoe.ArgumentError, match="Save all its layers in one call"):
        save_hugging_face(layer, tmp_path / "a", prefix, model_type="qwen3_moe")
    save_hugging_face(make_layers(2), tmp_path / "b", model_type="qwen3_moe")
    [old], [new] = ([*(tmp_path / folder).glob(f"{prefix}.*.safetensors")] for folder in "ab")
    old.write_bytes(new.read_bytes())
    with pytest.raises(hpmoe.ArgumentError, match="and its index of save"):
        load_hugging_face(layer, tmp_path / "a", prefix)


def test_writers_at_once_lose_no_entries(tmp_path):
    """Each of eight writers adds a layer to one folder."""
    layers = [hpmoe.nn.MoELayer(**make_block("qwen3_moe").options) for _ in range(8)]
    threads = [threading.Thread(target=save_hugging_face, args=(layer, tmp_path, f"model.layers.{i}.mlp"),
                                kwargs={"model_type": "qwen3_moe"}) for i, layer in enumerate(layers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    assert {name.split(".")[2] for name in index} == set("01234567")


def test_experts_bias_keeps_its_dtype(tmp_path):
    block = make_block("deepseek_v3")
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in block.theirs.items()}
    write(tmp_path / "model.safetensors", halves)
    layer = make_layer(block, dtype=ms.bfloat16)
    load_hugging_face(layer, tmp_path)
    save_hugging_face(layer, tmp_path / "saved", model_type="deepseek_v3")
    assert (tmp_path / "saved/model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_layout_that_names_do_not_tell():
    """Llama 4's arrays have the names and shapes of gpt-oss's, in another order; the type or config.json tells."""
    block = make_block("gpt_oss")
    layer = make_layer(block)
    with pytest.raises(hpmoe.ArgumentError, match="Write model_type="):
        load_hugging_face(layer, block.theirs)
    plain = {name: x for name, x in block.options.items() if name not in ("add_bias_linear", "activation")}
    llama = hpmoe.nn.MoELayer(**plain)
    state = {name: array for name, array in block.theirs.items() if "bias" not in name}
    load_hugging_face(llama, state)
    np.testing.assert_array_equal(llama.experts.weight1.asnumpy(), state["experts.gate_up_proj"])


def test_experts_without_a_gate_are_no_gated_ones(tmp_path):
    block = make_block("qwen3_moe")
    plain = hpmoe.nn.MoELayer(**block.options, gated_linear_unit=False, activation=hpmoe.nn.relu2)
    with pytest.raises(hpmoe.ArgumentError, match="experts have a gate"):
        load_hugging_face(plain, block.theirs)
    with pytest.raises(hpmoe.ArgumentError, match="gated_linear_unit False"):
        save_hugging_face(plain, tmp_path, model_type="qwen3_moe")


CLAMPED = {"activation": hpmoe.nn.clamped_swiglu(7.0)}
FAULTS = {"mixtral": ({"moe_router_score_function": "sigmoid"}, "function 'sigmoid'"),
          "qwen3_moe": (CLAMPED, "activation 'clamped_swiglu'"),
          "deepseek_v3": ({"moe_router_enable_expert_bias": False}, "without a Parameter for gate.e_score_correction_bias"),
          "glm4_moe": ({"moe_apply_probs_on_input": True}, "moe_apply_probs_on_input True"),
          "kimi_k2": ({"moe_router_norm_epsilon": 1e-3}, "moe_router_norm_epsilon 0.001"),
          "gpt_oss": ({"activation": hpmoe.swiglu}, "activation 'swiglu'")}


@pytest.mark.parametrize("model_type", MODELS)
def test_a_type_holds_what_a_layer_computes(model_type, tmp_path):
    options, fault = FAULTS[model_type]
    layer = hpmoe.nn.MoELayer(**make_block(model_type).options | options)
    with pytest.raises(hpmoe.ArgumentError, match=fault):
        save_hugging_face(layer, tmp_path, model_type=model_type)


def test_a_model_with_its_other_files(tmp_path):
    """A base's other arrays and files are copied, and each array has the dtype that it has there."""
    block = make_block("deepseek_v3")
    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in prefixed(PREFIX, block.theirs).items()}
    arrays |= {"model.embed_tokens.weight": np.ones((3, 2), np.float32), "steps": np.arange(3)}
    (tmp_path / "base").mkdir()
    write(tmp_path / "base/model.safetensors", arrays)
    (tmp_path / "base/config.json").write_text('{"model_type": "deepseek_v3"}')
    layer = make_layer(block)
    load_hugging_face(layer, tmp_path / "base", PREFIX)
    save_hugging_face(layer, tmp_path / "new", PREFIX, model_type="deepseek_v3", base=tmp_path / "base")
    assert (tmp_path / "new/config.json").read_text() == (tmp_path / "base/config.json").read_text()
    found, given = ({name: (array.dtype, array.read().tobytes()) for name, array in open_arrays("test", folder, "").items()}
                    for folder in (tmp_path / "new", tmp_path / "base"))
    assert found == given


class Share(nn.Cell):
    """A rank's part of a layer: the whole router, and some of the experts."""

    def __init__(self, options, num_local_experts):
        super().__init__()
        sizes = {"hidden_size": options["hidden_size"], "num_moe_experts": options["num_moe_experts"]}
        self.router = hpmoe.nn.TopKRouter(**sizes)
        self.experts = hpmoe.nn.GroupedMLP(**sizes | {"num_moe_experts": num_local_experts},
                                           moe_ffn_hidden_size=options["moe_ffn_hidden_size"])


@pytest.fixture
def sizes(monkeypatch):
    """Bytes of each read of a file."""
    found, read = [], np.fromfile

    def counted(path, dtype, count, offset):
        found.append(count)
        return read(path, dtype, count, offset=offset)
    monkeypatch.setattr(safetensors.np, "fromfile", counted)
    return found


@pytest.mark.parametrize("model_type,fused", [("qwen3_moe", False), ("mixtral", False), ("qwen3_moe", True)])
def test_a_rank_reads_its_own_experts_alone(model_type, fused, tmp_path, sizes):
    """Reading touches no byte of others, and holds little more than the Parameters."""
    block = make_block(model_type, fused)
    write(tmp_path / "model.safetensors", block.theirs)
    for rank in range(E // 2):
        layer = Share(block.options, 2)
        load_hugging_face(layer, tmp_path, experts=range(2 * rank, 2 * rank + 2))
        check_holds(layer, block.ours, slice(2 * rank, 2 * rank + 2))
        assert sum(sizes) == sum(p.nbytes for p in layer.trainable_params())
        sizes.clear()


@pytest.mark.parametrize("model_type,fused", [("qwen3_moe", False), ("qwen3_moe", True), ("mixtral", False),
                                              ("gpt_oss", False)])
def test_a_rank_reads_its_own_shard_alone(model_type, fused, tmp_path, sizes):
    """Shards of each layout are those of `shard_experts` of all experts."""
    block, mesh = make_block(model_type, fused), hpmoe.Mesh(2, tp=2)
    splits = make_layer(block).experts.splits
    write(tmp_path / "model.safetensors", block.theirs)
    kinds = {name: ("float32", x.shape) for name, x in block.ours.items() if name.startswith(("experts.", "router."))}
    for rank in range(4):
        group = Block(kinds, E, 0, range(rank // 2 * E // 2, (rank // 2 + 1) * E // 2), rank % 2, 2)
        arrays = open_arrays("test", tmp_path, "")
        match = find_match("test", group, arrays, TABLE[model_type].formats)
        for name in filter(lambda name: name.startswith("experts."), kinds):
            short = name.removeprefix("experts.")
            expected = hpmoe.nn.shard_experts(block.ours[name], mesh, splits[short])[rank]
            array = np.full(expected.shape, np.nan, np.float32)
            sizes.clear()
            for stored, place in match.places.items():
                if place.entry.parameter == name:
                    read_into(array, arrays[stored], place, group)
            np.testing.assert_array_equal(array, expected, name)
            assert sum(sizes) == (0 if short == "bias2" and rank % 2 else array.nbytes)


def test_peak_memory_of_a_rank(tmp_path):
    """A rank of 16 needs its Parameters and the array of one expert, of a file that is 16 times as large."""
    num_experts, hidden, intermediate = 16, 128, 512
    rng = np.random.default_rng(0)
    state = {"gate.weight": rng.random((num_experts, hidden), np.float32),
             "experts.gate_up_proj": rng.random((num_experts, 2 * intermediate, hidden), np.float32),
             "experts.down_proj": rng.random((num_experts, hidden, intermediate), np.float32)}
    write(tmp_path / "model.safetensors", state)
    layer = Share({"hidden_size": hidden, "num_moe_experts": num_experts, "moe_ffn_hidden_size": intermediate}, 1)
    tracemalloc.start()
    load_hugging_face(layer, tmp_path, experts=range(5, 6))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(layer.experts.weight2[0].asnumpy(), state["experts.down_proj"][5].T)
    own = sum(p.nbytes for p in layer.trainable_params())
    one = 2 * intermediate * hidden * 4
    assert peak < own + one + 100_000 < sum(array.nbytes for array in state.values()) / 8


def test_no_parameter_is_set_where_one_does_not_fit():
    block = make_block("glm4_moe")
    layer = make_layer(block)
    before = {name: p.asnumpy().copy() for name, p in layer.parameters_and_names()}
    state = block.theirs | {"experts.3.up_proj.weight": block.theirs["experts.3.up_proj.weight"].T}
    with pytest.raises(hpmoe.ArgumentError, match=r"experts.3.up_proj.weight \(8, 6\) for \(6, 8\)"):
        load_hugging_face(layer, state)
    for name, p in layer.parameters_and_names():
        np.testing.assert_array_equal(p.asnumpy(), before[name])


def test_a_model_is_not_overwritten_in_part(tmp_path):
    block = make_block("deepseek_v3")
    write_model(tmp_path, {PREFIX: block})
    layer = make_layer(block)
    with pytest.raises(hpmoe.ArgumentError, match="model-00001-of-00003.safetensors"):
        save_hugging_face(layer, tmp_path, PREFIX, model_type="deepseek_v3")
    with pytest.raises(hpmoe.ArgumentError, match=INDEX):
        save_hugging_face(layer, tmp_path, model_type="deepseek_v3")
