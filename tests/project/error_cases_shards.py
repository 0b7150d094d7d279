"""More of error_cases.py: experts that shards do not divide, and files of ranks that do not fit."""

import tempfile
from pathlib import Path

import mindspore as ms
from error_cases import cases
from mindspore import nn as ms_nn, ops

from hpmoe import Mesh, nn
from hpmoe.nn.shard_files import Place, find_files, write_file
from hpmoe.ranks.world import World

SIZES = {"hidden_size": 4, "moe_ffn_hidden_size": 2, "num_moe_experts": 2}
WEIGHT, SHARDS = ops.ones((2, 8, 6)), Mesh(2, tp=2)


def _experts(**options):
    return nn.GroupedMLP(**{**SIZES, **options})


def _arrays(cell):
    return {p.name: p.asnumpy()[:1] for p in cell.get_parameters()}


def _two_ranks(folder, ranks=(0, 1), save="one"):
    """Files of two ranks with an expert each."""
    for rank in ranks:
        write_file("", folder, Place(Mesh(2), rank), save, rank, _arrays(_experts()))


def _with(made, load=lambda folder: nn.load_shards(folder, _experts())):
    """Loads from a folder with these files, which its error calls FOLDER."""
    def call():
        with tempfile.TemporaryDirectory() as folder:
            made(Path(folder))
            try:
                load(Path(folder))
            except ValueError as error:
                raise type(error)(str(error).replace(folder, "FOLDER")).with_traceback(error.__traceback__) from None
    return call


def _a_copy_alone(folder):
    write_file("", folder, Place(Mesh(2), 0), "one", 1, _arrays(_experts()))


def _another_save(folder):
    _two_ranks(folder, ranks=(0,))
    _two_ranks(folder, ranks=(1,), save="two")


def _doubled(folder):
    _two_ranks(folder)
    (folder / "rank_00000_of_00002.ckpt").rename(folder / "a.ckpt")
    _two_ranks(folder, ranks=(0,))


def _of_another_layer(folder):
    _two_ranks(folder, ranks=(0,))
    write_file("", folder, Place(Mesh(2), 1), "one", 1, _arrays(_experts(hidden_size=6)))


def _replaced(folder):
    """After it was found."""
    _two_ranks(folder)
    file = find_files("", folder)[0]
    _another_save(folder)
    write_file("", folder, Place(Mesh(2), 0), "two", 0, {})
    file.arrays("hpmoe.nn.load_shards", lambda name: True)


def _foreign(folder):
    ms.save_checkpoint([{"name": "w", "data": ms.Tensor([1.0])}], str(folder / "a.ckpt"))


cases("shards of experts", {
    "sizes that they do not divide": lambda: _experts(moe_ffn_hidden_size=3, mesh=SHARDS),
    "of no mesh": lambda: nn.shard_experts(WEIGHT, 4, "rows"),
    "by an unknown split": lambda: nn.shard_experts(WEIGHT, SHARDS, "cols"),
    "of a list": lambda: nn.shard_experts([[1.0]], SHARDS, "columns"),
    "of experts that do not divide": lambda: nn.shard_experts(WEIGHT, Mesh(3), "rows"),
    "of columns that do not divide": lambda: nn.shard_experts(WEIGHT, SHARDS, "gate_up"),
    "of other ranks put together": lambda: nn.unshard_experts(ops.ones((2, 1, 8, 3)), SHARDS, "columns"),
    "of halves that are none": lambda: nn.unshard_experts(ops.ones((4, 1, 8, 3)), SHARDS, "gate_up"),
})
def _of_processes():
    experts = _experts(mesh=World(2, rank=0, size=2))
    optimizer = ms_nn.AdaFactor(experts.trainable_params(), learning_rate=0.1, scale_parameter=False, relative_step=False)
    nn.save_shards("folder", experts, World(2, rank=0, size=2), optimizer)


cases("files of ranks", {
    "factors of moments": _of_processes,
    "of no mesh": lambda: nn.save_shards("folder", _experts(), 2),
    "of no Cell": lambda: nn.save_shards("folder", None),
    "of no experts": lambda: nn.save_shards("folder", ms_nn.Dense(2, 2)),
    "of no optimizer": lambda: nn.save_shards("folder", _experts(), None, 1.0),
    "copies on no other ranks": lambda: nn.save_shards("folder", _experts(), copies=1),
    "in a folder that takes none": _with(lambda folder: (folder / "a file").touch(),
                                         lambda folder: nn.save_shards(folder / "a file/x", _experts())),
    "read on no mesh": _with(_two_ranks, lambda folder: nn.load_shards(folder, _experts(), 2)),
    "of which some may be missing": _with(_two_ranks, lambda folder: nn.load_shards(folder, _experts(), missing="mask")),
    "none": _with(lambda folder: None),
    "of one rank of two": _with(lambda folder: _two_ranks(folder, ranks=(0,))),
    "copies alone": _with(_a_copy_alone, lambda folder: nn.load_shards(folder, _experts(), missing="zeros")),
    "two saves": _with(_another_save),
    "twice the same": _with(_doubled),
    "another checkpoint": _with(_foreign),
    "groups that do not divide experts": _with(_two_ranks, lambda folder: nn.load_shards(
        folder, _experts(num_moe_experts=3))),
    "fewer experts": _with(_two_ranks, lambda folder: nn.load_shards(folder, _experts(num_moe_experts=4))),
    "another layer's": _with(_of_another_layer),
    "of the latest save in no folder": lambda: nn.latest_shards(None),
    "replaced meanwhile": _with(lambda folder: None, _replaced),
    "another dtype": _with(lambda folder: nn.save_shards(folder, _experts()),
                           lambda folder: nn.load_shards(folder, _experts(dtype=ms.bfloat16))),
})
cases("masked experts", {
    "that there are not": lambda: nn.MoELayer(**SIZES).mask_experts([2]),
    "but too few": lambda: nn.MoELayer(**SIZES, moe_router_topk=2).mask_experts([1]),
})
