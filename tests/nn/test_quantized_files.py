"""Checkpoints as published: FP8 blocks, MXFP4 and int8 per channel, beside references of other dtypes of the same values."""

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from hugging_face_states import make_block, make_layer
from safetensors.numpy import save_file

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face
from hpmoe.tile_ops.row_formats import E4M3_VALUES

E, H, N = 2, 160, 288  # more than a block of 128 each way, and no multiple of it
SIZES = {"hidden_size": H, "moe_ffn_hidden_size": N, "num_moe_experts": E}


def test_codes_of_e4m3():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(E4M3_VALUES, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def expanded(scale, shape):
    """Scales of blocks of 128 x 128, for each value."""
    return np.repeat(np.repeat(scale, 128, -2), 128, -1)[..., :shape[-2], :shape[-1]]


def fp8(weight, rng, powers=False):
    """(F8_E4M3, scales of blocks, the values that they stand for, in float64)."""
    blocks = (*weight.shape[:-2], -(-weight.shape[-2] // 128), -(-weight.shape[-1] // 128))
    scale = rng.uniform(0.001, 0.02, blocks).astype(np.float32)
    scale = 2.0 ** np.round(np.log2(scale)).astype(np.float32) if powers else scale
    codes = (weight / expanded(scale, weight.shape) / 4).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes, scale, codes.astype(np.float64) * expanded(scale, weight.shape)


def weights(layer):
    return {name: p.asnumpy() for name, p in layer.experts.parameters_and_names() if "weight" in name}


def fp8_state(fused, powers=False):
    """A block with scales of 128 x 128, and the values of its weights."""
    rng = np.random.default_rng(0)
    state, expected = {"gate.weight": draw(rng, E, H)}, {"weight1": np.empty((E, H, 2 * N)), "weight2": np.empty((E, N, H))}
    if fused:
        for name, key, shape in (("gate_up_proj", "weight1", (E, 2 * N, H)), ("down_proj", "weight2", (E, H, N))):
            state[f"experts.{name}"], state[f"experts.{name}_scale_inv"], values = fp8(draw(rng, *shape), rng, powers)
            expected[key] = values.swapaxes(1, 2)
    for e in range(0 if fused else E):
        for name, (key, at) in {"gate": ("weight1", np.s_[:, :N]), "up": ("weight1", np.s_[:, N:]),
                                "down": ("weight2", np.s_[:])}.items():
            shape, full = ((H, N) if name == "down" else (N, H)), f"experts.{e}.{name}_proj.weight"
            state[full], state[f"{full}_scale_inv"], values = fp8(draw(rng, *shape), rng, powers)
            expected[key][e][at] = values.T
    return state, expected


@pytest.mark.parametrize("fused", [False, True])
def test_fp8_blocks_of_deepseek_v3(fused, tmp_path):
    state, expected = fp8_state(fused)
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**SIZES)
    load_hugging_face(layer, tmp_path)
    for name, found in weights(layer).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-7)
    half = hpmoe.nn.MoELayer(**SIZES, dtype=ms.bfloat16)
    with pytest.raises(hpmoe.ArgumentError, match="allow_rounding=True"):
        load_hugging_face(half, tmp_path)
    load_hugging_face(half, tmp_path, allow_rounding=True)


def mxfp4_state():
    """A block of gpt-oss, its options, and the values of its weights."""
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
    gate_up = values["gate_up_proj"]
    expected = {"weight1": np.concatenate((gate_up[..., ::2], gate_up[..., 1::2]), -1), "weight2": values["down_proj"]}
    return state, block.options | sizes, expected


def test_mxfp4_of_gpt_oss(tmp_path):
    """A value is a nibble of FP4 times a power of two, and bfloat16 holds it."""
    state, options, expected = mxfp4_state()
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**options, dtype=ms.bfloat16)
    load_hugging_face(layer, tmp_path, model_type="gpt_oss")
    for name in ("weight1", "weight2"):
        found = getattr(layer.experts, name).astype(ms.float32).asnumpy()
        np.testing.assert_array_equal(found, expected[name])


def channel_state(kind):
    """A block with a scale for each channel, as compressed-tensors writes it, and the values of down."""
    rng, state, expected = np.random.default_rng(0), {}, np.empty((E, N, H))
    state["gate.weight"] = draw(rng, E, H)
    for e in range(E):
        for name, shape in {"gate": (N, H), "up": (N, H), "down": (H, N)}.items():
            full = f"experts.{e}.{name}_proj.weight"
            state[full] = (40 * draw(rng, *shape)).clip(-127, 127).astype(kind)
            state[f"{full}_scale"] = rng.uniform(0.001, 0.01, (shape[0], 1)).astype(ml_dtypes.bfloat16)
            if name == "down":
                expected[e] = (state[full].astype(np.float64) * state[f"{full}_scale"].astype(np.float64)).T
    return state, expected


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn])
def test_a_scale_for_each_channel(kind, tmp_path):
    state, expected = channel_state(kind)
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layer = hpmoe.nn.MoELayer(**SIZES)
    load_hugging_face(layer, tmp_path)
    np.testing.assert_allclose(weights(layer)["weight2"], expected, rtol=1e-7)


def states():
    """(Arrays, options, type) of checkpoints whose weights a layer keeps quantized."""
    sigmoid = {"moe_router_score_function": "sigmoid"}
    yield "int8 channels", (channel_state(np.int8)[0], SIZES, "qwen3_moe")
    yield "fp8 channels", (channel_state(ml_dtypes.float8_e4m3fn)[0], SIZES | sigmoid, "qwen3_moe")
    yield "mxfp4", (*mxfp4_state()[:2], "gpt_oss")
    yield "fp8 blocks", (fp8_state(False, powers=True)[0], SIZES, "qwen3_moe")
    yield "fp8 blocks, fused", (fp8_state(True, powers=True)[0], SIZES, "qwen3_moe")


STATES = dict(states())


def values_of(experts, number):
    """The values of a weight that is kept quantized, [E, K, N], by the definitions of its formats in ml_dtypes."""
    codes, scale = (getattr(experts, f"{name}{number}").asnumpy() for name in ("weight", "scale"))
    wide = codes.astype(np.float64) if codes.dtype == np.int8 else codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    if scale.dtype == np.uint8:
        scale = np.repeat(2.0**(scale.astype(np.float64) - 127), 32, -1)[..., :codes.shape[2]]
        return (wide * scale).swapaxes(1, 2)
    return wide * scale[:, None]


@pytest.mark.parametrize("mesh", [None, hpmoe.Mesh(2)], ids=str)
@pytest.mark.parametrize("case", STATES)
def test_weights_stay_quantized(case, mesh, tmp_path):
    """Values, outputs and gradients are those of weights read as floats."""
    state, options, model_type = STATES[case]
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, tmp_path / "model.safetensors")
    layers = [hpmoe.nn.MoELayer(**options, mesh=mesh) for _ in range(2)]
    for layer, keeps in zip(layers, (False, True), strict=True):
        load_hugging_face(layer, tmp_path, model_type=model_type, keep_quantized=keeps)
    whole, kept = layers
    for number in "12":
        floats = getattr(whole.experts, f"weight{number}")
        assert 2 * getattr(kept.experts, f"weight{number}").nbytes < floats.nbytes
        np.testing.assert_allclose(values_of(kept.experts, number), floats.asnumpy(), rtol=1e-7)
        floats.requires_grad = False
    x = ms.Tensor(draw(np.random.default_rng(1), 12, options["hidden_size"]))
    weights = [layer.trainable_params() for layer in layers]
    assert [p.name for p in weights[0]] == [p.name for p in weights[1]]
    results = []
    for layer, trained in zip(layers, weights, strict=True):
        (_, out), (x_grad, grads) = ms.value_and_grad(lambda x, f=layer: ((f(x) ** 2).sum(), f(x)), 0, trained,
                                                      has_aux=True)(x)
        results.append([y.asnumpy() for y in (out, x_grad, *grads)])
    for found, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())

    def compiled(x):
        return kept(x)
    np.testing.assert_array_equal(ms.jit(compiled)(x).asnumpy(), kept(x).asnumpy())


def test_adapters_beside_quantized_weights(tmp_path):
    state, options, model_type = STATES["int8 channels"]
    layer = hpmoe.nn.MoELayer(**options)
    load_hugging_face(layer, state, model_type=model_type, keep_quantized=True)
    hpmoe.nn.add_lora(layer, rank=2, alpha=2)
    weights = layer.trainable_params()
    grads = ms.grad(lambda x: (layer(x) ** 2).sum(), None, weights)(ms.Tensor(draw(np.random.default_rng(1), 12, H)))
    assert [p.name for p in weights] == [f"experts.lora_{name}" for name in ("a1", "b1", "a2", "b2")]
    assert all(g.asnumpy().any() for p, g in zip(weights, grads, strict=True) if "lora_b" in p.name)
    with pytest.raises(hpmoe.ArgumentError, match="kept quantized"):
        hpmoe.nn.merge_lora(layer)
    with pytest.raises(hpmoe.ArgumentError, match="kept quantized"):
        hpmoe.nn.save_hugging_face(layer, tmp_path, model_type=model_type)


def test_weights_that_cannot_stay_quantized():
    layer, state = hpmoe.nn.MoELayer(**SIZES), fp8_state(False)[0]
    with pytest.raises(hpmoe.ArgumentError, match="128 x 128 that are no powers of two"):
        load_hugging_face(layer, state, keep_quantized=True)
    with pytest.raises(hpmoe.ArgumentError, match="not quantized: experts.0.gate_proj.weight"):
        load_hugging_face(make_layer(make_block("qwen3_moe")), make_block("qwen3_moe").theirs, keep_quantized=True)
    with pytest.raises(hpmoe.ArgumentError, match="whole experts"):
        load_hugging_face(hpmoe.nn.MoELayer(**SIZES, mesh=hpmoe.Mesh(1, tp=2)), STATES["int8 channels"][0],
                          keep_quantized=True)
    by_input = {"gate.weight": np.ones((E, H), np.float32)}
    for name, shape in {"gate_up_proj": (E, H, 2 * N), "down_proj": (E, N, H)}.items():
        by_input[f"experts.{name}"] = np.ones(shape, np.int8)
        by_input[f"experts.{name}_scale"] = np.ones((*shape[:2], 1), np.float32)
    with pytest.raises(hpmoe.ArgumentError, match="experts.gate_up_proj has scales of its inputs"):
        load_hugging_face(layer, by_input, model_type="qwen3_vl_moe", keep_quantized=True)


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
