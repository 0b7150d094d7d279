"""Script of test_hugging_face_ranks.py: a layer and its adapters, loaded, trained, saved and merged by several processes."""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from hugging_face_states import make_block, make_layer
from whole_lines import say

import hpmoe
from hpmoe.nn import load_hugging_face, load_lora, merge_lora, safetensors, save_hugging_face, save_lora, shard_experts

PREFIX, SCALE = "model.layers.1.mlp", 2.0
LORA = ("lora_a1", "lora_b1", "lora_a2", "lora_b2")


def gradients(layer, x):
    weights = [p for p in layer.trainable_params() if "experts." in p.name and "shared" not in p.name]
    grads = ms.grad(lambda x: (layer(x) ** 2).sum(), None, weights)(ms.Tensor(x))
    return {p.name.rpartition(".")[2]: g.asnumpy() for p, g in zip(weights, grads, strict=True)}


def bytes_read(load, *args, **options):
    sizes, read = [], np.fromfile

    def counted(path, dtype, count, offset):
        sizes.append(count)
        return read(path, dtype, count, offset=offset)
    safetensors.np.fromfile = counted
    load(*args, **options)
    safetensors.np.fromfile = read
    return sum(sizes)


def check_gradients(layer, whole, x, mesh):
    """Checks gradients of adapters: dA = s dW @ B.T, dB = s A.T @ dW, with dW of a merged layer on one rank."""
    a = {name: getattr(whole.experts, name).asnumpy() for name in LORA}
    merge_lora(whole)
    of_weights, found = gradients(whole, x), gradients(layer, x[mesh.rank:mesh.rank + 1])
    assert sorted(found) == sorted(LORA)
    for number in "12":
        low, high, grad = a[f"lora_a{number}"], a[f"lora_b{number}"], SCALE * of_weights[f"weight{number}"]
        for name, expected in ((f"lora_a{number}", grad @ high.swapaxes(1, 2)),
                               (f"lora_b{number}", low.swapaxes(1, 2) @ grad)):
            mine = ms.Tensor(found[name])
            if layer.experts.splits[name] == "all":
                mine = hpmoe.all_reduce_gradients(mine, mesh, over="tensor_parallel")
            mine = hpmoe.all_reduce_gradients(mine, mesh, over="data_parallel").asnumpy()
            split = layer.experts.splits[name]
            expected = shard_experts(expected, hpmoe.Mesh(mesh.ep, tp=mesh.tp), split)[mesh.rank % mesh.num_ranks]
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max(), err_msg=name)
            p = getattr(layer.experts, name)
            p.set_data(p - 1e-3 * ms.Tensor(mine))


def check_saves_at_once(mesh, folder):
    """Each process adds layers of its own, one by one, to one folder."""
    layer = make_layer(make_block("qwen3_moe"))
    mesh.everyone.meet("begin", b"")
    for i in range(6):
        save_hugging_face(layer, folder, f"model.layers.{6 * mesh.rank + i}.mlp", model_type="qwen3_moe")
    mesh.everyone.meet("end", b"")
    for i in range(6 * mesh.size):
        load_hugging_face(layer, folder, f"model.layers.{i}.mlp")


def check_failure(layer, mesh, folder, model_type):
    """A save that rank 0 cannot write fails on all ranks, and the next one starts fresh."""
    (folder / "model.safetensors").touch()
    try:
        save_hugging_face(layer, folder, PREFIX, model_type=model_type)
    except (hpmoe.ArgumentError, hpmoe.LaunchError) as error:
        assert isinstance(error, hpmoe.ArgumentError) == (mesh.rank == 0)
        assert "one with a model in model.safetensors" in str(error), error
    else:
        raise AssertionError("no rank was told")


def main(model_type, ranks, folder):
    ep, _, tp = ranks.partition("x")
    folder, mesh = Path(folder), hpmoe.world(int(ep), int(tp or 1))
    block = make_block(model_type)
    layer, whole = make_layer(block, mesh=mesh), make_layer(block)
    load_hugging_face(whole, folder / "given", PREFIX, model_type=model_type)
    own = [p for p in layer.trainable_params() if not (p.name.endswith("bias2") and mesh.tp_rank)]
    num_bytes = bytes_read(load_hugging_face, layer, folder / "given", PREFIX, model_type=model_type)
    assert num_bytes == sum(p.nbytes for p in own), (num_bytes, [p.name for p in own])
    save_hugging_face(layer, folder / "again", PREFIX, model_type=model_type)
    num_bytes = bytes_read(load_lora, layer, folder / "adapter", PREFIX, model_type=model_type)
    assert num_bytes == sum(p.nbytes for p in layer.trainable_params())
    load_lora(whole, folder / "adapter", PREFIX, model_type=model_type)
    save_lora(layer, folder / "adapter again", PREFIX, model_type=model_type)
    x = np.random.default_rng(5).standard_normal((mesh.size, 6, 8)).astype(np.float32)
    check_gradients(layer, whole, x, mesh)
    save_lora(layer, folder / "trained", PREFIX, model_type=model_type)
    merge_lora(layer)
    save_hugging_face({PREFIX: layer}, folder / "merged", model_type=model_type)
    again, adapted = make_layer(block), make_layer(block)
    load_hugging_face(again, folder / "merged", PREFIX, model_type=model_type)
    load_hugging_face(adapted, folder / "given", PREFIX, model_type=model_type)
    load_lora(adapted, folder / "trained", PREFIX, model_type=model_type)
    out = layer(ms.Tensor(x[mesh.rank:mesh.rank + 1])).asnumpy()
    for other in (again, adapted):
        found = other(ms.Tensor(x)).asnumpy()[mesh.rank:mesh.rank + 1]
        np.testing.assert_allclose(out, found, rtol=1e-4, atol=1e-4 * np.abs(found).max())
    check_failure(layer, mesh, folder / "again", model_type)
    check_saves_at_once(mesh, folder / "at once")
    say(f"rank {mesh.rank} ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
