"""Files of ranks: what is written on some is read on others; what is missing, doubled or foreign is refused."""

import contextlib
import os
import resource
import shutil

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import latest_shards, load_shards, save_shards, shard_experts
from hpmoe.nn.shard_files import Place, find_files, write_file
from hpmoe.nn.sharded_checkpoints import States, _Experts

SIZES = {"hidden_size": 8, "moe_ffn_hidden_size": 8, "num_moe_experts": 8, "moe_router_topk": 2, "add_bias_linear": True,
         "init_method_std": 0.5}


def trained(seed=1):
    """A layer and its optimizer, after a step."""
    ms.set_seed(seed)
    layer = hpmoe.nn.MoELayer(**SIZES)
    weights = list(layer.trainable_params())
    optimizer = ms.nn.Adam(weights, 0.01)
    x = ms.Tensor(np.random.default_rng(seed).standard_normal((12, 8)), ms.float32)
    optimizer(ms.grad(lambda x: (layer(x) ** 2).sum(), None, weights)(x))
    return layer, optimizer


def values(layer, optimizer):
    states = States("", layer, optimizer)
    return {name: p.asnumpy().copy() for name, p in states.parameters.items()}


def written(folder, layer, optimizer, mesh, copies=0, save="one"):
    """The files of processes with these weights."""
    states = States("", layer, optimizer)
    for rank in range(mesh.num_ranks):
        for of in range(rank, rank + 1 + copies):
            of %= mesh.num_ranks
            arrays = {n: p.asnumpy() if n not in states.splits else np.ascontiguousarray(
                shard_experts(p.asnumpy(), mesh, states.splits[n])[of]) for n, p in states.parameters.items()}
            write_file("", folder, Place(mesh, rank), save, of, {
                n: a for n, a in arrays.items() if of == rank or n in states.splits})


@pytest.fixture(scope="module")
def whole():
    return trained()


MESHES = [hpmoe.Mesh(1), hpmoe.Mesh(4), hpmoe.Mesh(2, tp=2), hpmoe.Mesh(1, tp=4)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_is_written_on_some_ranks_is_read_on_others(whole, mesh, tmp_path):
    expected = values(*whole)
    written(tmp_path, *whole, mesh)
    other = trained(2)
    assert any((a != expected[name]).any() for name, a in values(*other).items())
    assert load_shards(tmp_path, *other[:1], None, other[1]) == []
    for name, array in values(*other).items():
        assert array.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("saved, mesh", [
    *((MESHES[0], mesh) for mesh in (MESHES[1], MESHES[3], hpmoe.Mesh(2, tp=4))),
    *((MESHES[i], MESHES[j]) for i, j in ((1, 2), (2, 2), (2, 3), (3, 1))), (MESHES[2], hpmoe.Mesh(8))], ids=str)
def test_each_rank_reads_its_own_part(whole, saved, mesh, tmp_path):
    written(tmp_path, *whole, saved)
    states, files = States("", *whole), find_files("", tmp_path)
    for rank in range(mesh.num_ranks):
        mine = {name: ms.Parameter(ms.Tensor(np.ascontiguousarray(shard_experts(
            states.parameters[name].asnumpy(), mesh, split)[rank]))) for name, split in states.splits.items()}
        own = object.__new__(States)
        own.parameters, own.splits = mine, states.splits
        for name, array in _Experts("", own, files, Place(mesh, rank)).arrays().items():
            assert array.tobytes() == mine[name].asnumpy().tobytes(), (rank, name)


def test_a_lost_file_is_an_error_or_masked_experts_at_zero(whole, tmp_path):
    written(tmp_path, *whole, hpmoe.Mesh(2, tp=2))
    (tmp_path / "rank_00003_of_00004.ckpt").unlink()
    layer, optimizer = trained(2)
    before = values(layer, optimizer)
    with pytest.raises(hpmoe.ArgumentError, match="without files of ranks 3; it must be a folder with a file, or a copy"):
        load_shards(tmp_path, layer, None, optimizer)
    assert all((a == before[name]).all() for name, a in values(layer, optimizer).items())
    lost = load_shards(tmp_path, layer, None, optimizer, missing="zeros")
    assert lost == [4, 5, 6, 7]
    layer.mask_experts(lost)
    x = ms.Tensor(np.random.default_rng(3).standard_normal((20, 8)), ms.float32)
    out = layer(x).asnumpy()
    assert layer.tokens_per_expert.asnumpy()[4:].tolist() == [0] * 4 and layer.tokens_per_expert.asnumpy().sum() == 40
    left = hpmoe.nn.MoELayer(**{**SIZES, "num_moe_experts": 4})  # the layer of the experts that are left
    for p in left.get_parameters():
        if p is not left.experts.places and p is not left.counted_tokens:
            p.set_data(ms.Tensor(values(*whole)[p.name][:4]))
    np.testing.assert_allclose(out, left(x).asnumpy(), rtol=1e-5, atol=1e-6)
    layer.mask_experts([])
    assert (layer(x).asnumpy() != out).any()


def test_a_copy_stands_in_for_a_lost_file(whole, tmp_path):
    written(tmp_path, *whole, hpmoe.Mesh(4), copies=1)
    for name in ("rank_00002_of_00004.ckpt", "rank_00000_of_00004.copy_on_00003.ckpt"):
        (tmp_path / name).unlink()
    layer, optimizer = trained(2)
    assert load_shards(tmp_path, layer, None, optimizer) == []
    expected = values(*whole)
    assert all((a == expected[name]).all() for name, a in values(layer, optimizer).items())


def test_doubled_foreign_and_broken_files_are_refused(whole, tmp_path):
    def refused(match, layer=whole[0], optimizer=whole[1]):
        with pytest.raises(hpmoe.ArgumentError, match=match):
            load_shards(tmp_path, layer, None, optimizer)
    refused("it must be a folder with the files of save_shards")
    written(tmp_path, *whole, hpmoe.Mesh(4))
    one = tmp_path / "rank_00001_of_00004.ckpt"
    shutil.copy(one, tmp_path / "rank_00007_of_00004.ckpt")
    refused("rank_00007_of_00004.ckpt and rank_00001_of_00004.ckpt are both of rank 1")
    (tmp_path / "rank_00007_of_00004.ckpt").unlink()
    other = hpmoe.nn.MoELayer(**{**SIZES, "hidden_size": 4})
    refused(r"What differs: experts.bias2 is \(8, 8\) of float32 there and \(8, 4\) of float32 here", other, None)
    refused("a layer with 2 experts of accum.experts.weight1 in each of 4 groups", optimizer=ms.nn.SGD(
        whole[0].trainable_params(), 0.1, 0.9))
    refused("of 6 experts; it must be of a multiple of 4", hpmoe.nn.MoELayer(**{**SIZES, "num_moe_experts": 6}), None)
    content = one.read_bytes()
    middle = len(content) // 2
    one.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:])
    refused("rank_00001_of_00004.ckpt in it is cut off, or no file of save_shards")
    write_file("", tmp_path, Place(hpmoe.Mesh(4), 1), "two", 1, {})
    refused("is of another save than")
    ms.save_checkpoint([{"name": "w", "data": ms.Tensor([1.0])}], str(one))
    refused("rank_00001_of_00004.ckpt in it is cut off, or no file of save_shards")
    one.write_bytes(one.read_bytes()[:9])
    refused("rank_00001_of_00004.ckpt in it is cut off")


def test_weights_of_another_dtype_are_refused(whole, tmp_path):
    written(tmp_path, *whole, hpmoe.Mesh(2))
    half = hpmoe.nn.MoELayer(**SIZES, dtype=ms.bfloat16)
    with pytest.raises(hpmoe.ArgumentError, match=r"\(8, 8, 16\) of float32 there and \(8, 8, 16\) of bfloat16 here"):
        load_shards(tmp_path, half)
    save_shards(tmp_path / "half", half)
    assert load_shards(tmp_path / "half", half) == []


@pytest.mark.parametrize("odd", [np.float64, None], ids=["dtype", "shape"])
def test_a_file_unlike_the_others_is_named(whole, odd, tmp_path):
    """NumPy would join such files into one array of the wider dtype, or fail."""
    written(tmp_path, *whole, hpmoe.Mesh(1, tp=4))
    arrays = {n: p.asnumpy() if n not in (s := States("", *whole)).splits else shard_experts(
        p.asnumpy(), hpmoe.Mesh(1, tp=4), s.splits[n])[2] for n, p in States("", *whole).parameters.items()}
    weight = arrays["experts.weight2"]
    arrays["experts.weight2"] = weight.astype(odd) if odd else np.ascontiguousarray(weight[:, :1])
    write_file("", tmp_path, Place(hpmoe.Mesh(1, tp=4), 2), "one", 2, arrays)
    with pytest.raises(hpmoe.ArgumentError, match=r"experts.weight2 is .* in rank_00002_of_00004.ckpt and .* in rank_00000"):
        load_shards(tmp_path, whole[0], None, whole[1])


@pytest.mark.parametrize("meanwhile", ["replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_refused(whole, meanwhile, tmp_path):
    written(tmp_path, *whole, hpmoe.Mesh(2))
    file = find_files("", tmp_path)[1]
    if meanwhile == "replaced":
        write_file("", tmp_path, Place(hpmoe.Mesh(2), 1), "two", 1, values(*whole))
    else:
        file.path.unlink()
    with pytest.raises(hpmoe.ArgumentError, match="rank_00001_of_00002.ckpt was replaced or removed while it was read"):
        file.arrays("", lambda name: True)


@pytest.mark.parametrize("folder", ["a file", "a file/in it"])
def test_a_folder_that_cannot_be_written_to_is_named(whole, folder, tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(hpmoe.ArgumentError, match=rf"{folder}, where rank_00000_of_00001.ckpt cannot be written"):
        save_shards(tmp_path / folder, whole[0])


def test_virtual_ranks_are_one_holder(whole, tmp_path):
    layer = hpmoe.nn.MoELayer(**SIZES, mesh=hpmoe.Mesh(2, tp=2))
    save_shards(tmp_path, whole[0])
    assert [p.name for p in tmp_path.iterdir()] == ["rank_00000_of_00001.ckpt"]
    assert load_shards(tmp_path, layer, hpmoe.Mesh(2, tp=2)) == []
    assert (layer.experts.weight1 == whole[0].experts.weight1).all()


@contextlib.contextmanager
def full_disk(most_bytes):
    """Files grow to this size at most, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most_bytes", [0, 200, 3000])
def test_a_full_disk_leaves_nothing_of_a_failed_write(whole, tmp_path, most_bytes):
    save_shards(tmp_path, *whole[:1])
    before = os.listdir(tmp_path), (tmp_path / "rank_00000_of_00001.ckpt").read_bytes()
    with full_disk(most_bytes), pytest.raises(hpmoe.ArgumentError, match="cannot be written"):
        save_shards(tmp_path, *whole[:1], None, whole[1])
    assert (os.listdir(tmp_path), (tmp_path / "rank_00000_of_00001.ckpt").read_bytes()) == before
    (tmp_path / ".rank_00000_of_00001.0123.unfinished.tmp").touch()  # of a process that was killed
    save_shards(tmp_path, *whole[:1])
    assert os.listdir(tmp_path) == before[0]


def test_a_full_disk_leaves_nothing_of_an_index(tmp_path, monkeypatch):
    layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=4, num_moe_experts=4, moe_router_topk=2)
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: real(old, new if "index" not in str(new) else tmp_path / "no" / "a"))
    with pytest.raises(OSError):
        hpmoe.nn.save_hugging_face(layer, tmp_path, "model.layers.0.mlp", model_type="qwen3_moe")
    assert os.listdir(tmp_path) == []


def test_the_latest_whole_save_is_found(whole, tmp_path):
    """Not the newer ones that lack a rank, are broken, or were never ended; a copy stands for a rank's own file."""
    assert latest_shards(tmp_path / "none") is None and latest_shards(tmp_path) is None
    mesh = hpmoe.Mesh(2)
    for step, (save, copies) in enumerate([("01.a", 1), ("02.a", 0), ("03.a", 0), ("04.a", 0), ("05.a", 0)]):
        written(tmp_path / f"step_{step}", *whole, mesh, copies, save)
    (tmp_path / "step_1" / "rank_00001_of_00002.ckpt").unlink()
    (tmp_path / "step_2" / "rank_00000_of_00002.ckpt").chmod(0o600)
    with open(tmp_path / "step_2" / "rank_00000_of_00002.ckpt", "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"broken")
    for left in (tmp_path / "step_3").glob("*"):
        left.rename(left.with_name(f".{left.stem}.04.a.unfinished.tmp"))
    shutil.copy(tmp_path / "step_0" / "rank_00001_of_00002.ckpt", tmp_path / "step_4" / "rank_00001_of_00002.ckpt")
    (tmp_path / "step_0" / "rank_00001_of_00002.ckpt").unlink()
    assert latest_shards(tmp_path) == tmp_path / "step_0"
    assert load_shards(tmp_path / "step_0", whole[0], None, whole[1]) == []
    for step in ("step_5", "a"):
        save_shards(tmp_path / step, whole[0])
        assert latest_shards(str(tmp_path)) == tmp_path / step
