"""Hugging Face folders and adapters of several processes, with EP and TP: each reads its bytes, and one writes them all."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from forked import start_forked
from hugging_face_states import make_block, make_layer, prefixed

from hpmoe.nn import add_lora, load_hugging_face, save_hugging_face, save_lora

pytestmark = pytest.mark.slow
SCRIPT, PREFIX = Path(__file__).parent / "hugging_face_ranks_script.py", "model.layers.1.mlp"


def write_given(folder, model_type):
    """A block of one rank and adapters of it."""
    block = make_block(model_type)
    layer = make_layer(block)
    load_hugging_face(layer, prefixed(f"{PREFIX}.", block.theirs), PREFIX, model_type=model_type)
    save_hugging_face(layer, folder / "given", PREFIX, model_type=model_type)
    add_lora(layer, rank=3, alpha=6)
    rng = np.random.default_rng(2)
    for p in layer.trainable_params():
        p.set_data(ms.Tensor(rng.standard_normal(p.shape).astype(np.float32)))
    save_lora(layer, folder / "adapter", PREFIX, model_type=model_type)


def only_file(folder):
    [path] = [path for path in folder.glob("*.safetensors") if path.stat().st_size]
    return path.read_bytes()


@pytest.mark.parametrize("size, ranks, model_type", [(2, "2", "qwen3_moe"), (2, "1x2", "gpt_oss"), (4, "2x2", "qwen3_moe"),
                                                     (4, "1x2", "mixtral")])
def test_processes_load_train_and_save(size, ranks, model_type, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1] / "support"))
    write_given(tmp_path, model_type)
    status, out, err = start_forked([SCRIPT, model_type, ranks, tmp_path], size)
    assert status == 0 and all(f"rank {rank} ok" in out for rank in range(size)), out + err
    assert only_file(tmp_path / "adapter again") == only_file(tmp_path / "adapter")
    [again], [given] = ([*(tmp_path / folder).glob("model.layers*")] for folder in ("again", "given"))
    from safetensors.numpy import load_file
    again, given = load_file(again), load_file(given)
    assert again.keys() == given.keys() and all((again[name] == given[name]).all() for name in given)
