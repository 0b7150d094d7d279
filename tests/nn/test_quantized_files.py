"""Checkpoints as published: FP8 blocks, MXFP4 and int8 per channel, beside references of other dtypes of the same values."""

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from hugging_face_states import make_block
from safetensors.numpy import save_file

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face
from hpmoe.nn.quantized_files import E4M3

E, H, N = 2, 160, 288  # more than a block of 128 each way, and no multiple of it
SIZES = {"hidden_size": H, "moe_ffn_hidden_size": N, "num_moe_experts": E}


def test_codes_of_e4m3():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(E4M3, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def expanded(scale, shape):
    """Scales of blocks of 128 x 128, for each value."""
    return np.repeat(np.repeat(scale, 128, -2), 128, -1)[..., :shape[-2], :shape[-1]]


def fp8(weight, rng):
    """(F8_E4M3, scales of blocks, the values that they stand for, in float64)."""
    blocks = (*weight.shape[:-2], -(-weight.shape[-2] // 128), -(-weight.shape[-1] // 128))
    scale = rng.uniform(0.001, 0.02, blocks).astype(np.float32)
    codes = (weight / expanded(scale, weight.shape) / 4).astype(ml_dtypes.float8_e4m3fn)
    return codes, scale, codes.astype(np.float64) * expanded(scale, weight.shape)


def weights(layer):
    return {name: p.asnumpy() for name, p in layer.experts.parameters_and_names() if "weight" in name}


@pytest.mark.parametrize("fused", [False, True])
def test_fp8_blocks_of_deepseek_v3(fused, tmp_path):
    rng = np.random.default_rng(0)
    state, expected = {"gate.weight": draw(rng, E, H)}, {"weight1": np.empty((E, H, 2 * N)), "weight2": np.empty((E, N, H))}
    if fused:
        for name, key, shape in (("gate_up_proj", "weight1", (E, 2 * N, H)), ("down_proj", "weight2", (E, H, N))):
            state[f"experts.{name}"], state[f"experts.{name}_scale_inv"], values = fp8(draw(rng, *shape), rng)
            expected[key] = values.swapaxes(1, 2)
    for e in range(0 if fused else E):
        for name, (key, at) in {"gate": ("weight1", np.s_[:, :N]), "up": ("weight1", np.s_[:, N:]),
                                "down": ("weight2", np.s_[:])}.items():
            shape, full = ((H, N) if name == "down" else (N, H)), f"experts.{e}.{name}_proj.weight"
            state[full], state[f"{full}_scale_inv"], values = fp8(draw(rng, *shape), rng)
            expected[key][e][at] = values.T
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**SIZES)
    load_hugging_face(layer, tmp_path)
    for name, found in weights(layer).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-7)
    half = hpmoe.nn.MoELayer(**SIZES, dtype=ms.bfloat16)
    with pytest.raises(hpmoe.ArgumentError, match="allow_rounding=True"):
        load_hugging_face(half, tmp_path)
    load_hugging_face(half, tmp_path, allow_rounding=True)


def test_mxfp4_of_gpt_oss(tmp_path):
    """Each value is a nibble of FP4 times a power of two, and bfloat16 holds it."""
    rng, block = np.random.default_rng(0), make_block("gpt_oss")
    sizes, hidden, width = {"hidden_size": 64, "moe_ffn_hidden_size": 32, "num_moe_experts": 4}, 64, 32
    biases = {"router.weight": (4, hidden), "router.bias": (4,), "experts.gate_up_proj_bias": (4, 2 * width),
              "experts.down_proj_bias": (4, hidden)}
    state = {name: draw(rng, *shape).astype(ml_dtypes.bfloat16) for name, shape in biases.items()}
    values = {}
    for name, rows, columns in (("gate_up_proj", hidden, 2 * width), ("down_proj", width, hidden)):
        codes = rng.integers(0, 16, (4, columns, rows)).astype(np.uint8)
        scales = rng.integers(115, 130, (4, columns, rows // 32)).astype(np.uint8)
        pairs = codes.reshape(4, columns, rows // 32, 16, 2)
        state[f"experts.{name}_blocks"] = pairs[..., 0] | pairs[..., 1] << 4
        state[f"experts.{name}_scales"] = scales
        fp4 = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        values[name] = (fp4 * np.repeat(2.0**(scales.astype(float) - 127), 32, -1)).swapaxes(1, 2)
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**block.options | sizes, dtype=ms.bfloat16)
    load_hugging_face(layer, tmp_path, model_type="gpt_oss")
    found = {name: p.astype(ms.float32).asnumpy() for name, p in layer.experts.parameters_and_names() if "weight" in name}
    gate_up = values["gate_up_proj"]
    np.testing.assert_array_equal(found["weight1"], np.concatenate((gate_up[..., ::2], gate_up[..., 1::2]), -1))
    np.testing.assert_array_equal(found["weight2"], values["down_proj"])


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn])
def test_a_scale_for_each_channel(kind, tmp_path):
    """The file has the layout of compressed-tensors."""
    rng, state, expected = np.random.default_rng(0), {}, np.empty((E, N, H))
    state["gate.weight"] = draw(rng, E, H)
    for e in range(E):
        for name, shape in {"gate": (N, H), "up": (N, H), "down": (H, N)}.items():
            full = f"experts.{e}.{name}_proj.weight"
            state[full] = (40 * draw(rng, *shape)).clip(-127, 127).astype(kind)
            state[f"{full}_scale"] = rng.uniform(0.001, 0.01, (shape[0], 1)).astype(ml_dtypes.bfloat16)
            if name == "down":
                expected[e] = (state[full].astype(np.float64) * state[f"{full}_scale"].astype(np.float64)).T
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**SIZES)
    load_hugging_face(layer, tmp_path)
    np.testing.assert_allclose(weights(layer)["weight2"], expected, rtol=1e-7)


def test_scales_of_another_shape_are_refused():
    state = {"gate.weight": np.ones((E, H), np.float32)}
    for e in range(E):
        for name, shape in {"gate": (N, H), "up": (N, H), "down": (H, N)}.items():
            state[f"experts.{e}.{name}_proj.weight"] = np.ones(shape, np.int8)
            state[f"experts.{e}.{name}_proj.weight_scale"] = np.ones((shape[0], 2), np.float32)
    with pytest.raises(hpmoe.ArgumentError, match="without a Parameter: experts.0.gate_proj.weight_scale"):
        load_hugging_face(hpmoe.nn.MoELayer(**SIZES), state)


CHANNELS = {"quant_method": "compressed-tensors", "config_groups": {
    "group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}}}
MIXTRAL = {"model_type": "mixtral", "hidden_size": 8, "intermediate_size": 6, "num_local_experts": 4,
           "num_experts_per_tok": 2}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize("config", [FP8, {"quant_method": "mxfp4"}, CHANNELS])
def test_configurations_that_are_read(config):
    assert hugging_face_options(MIXTRAL | {"quantization_config": config}) == hugging_face_options(MIXTRAL)


@pytest.mark.parametrize("config", [{"quant_method": "fp8", "weight_block_size": [64, 64]}, {"quant_method": "gptq"},
                                    {"quant_method": "compressed-tensors", "config_groups": {
                                        "group_0": {"weights": {"num_bits": 4, "strategy": "group"}}}}])
def test_configurations_that_are_refused(config):
    with pytest.raises(hpmoe.ArgumentError, match="quantization_config"):
        hugging_face_options(MIXTRAL | {"quantization_config": config})
