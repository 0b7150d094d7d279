"""Arguments, options and orders of transforms that do not fit, by a name, with what the error of each says."""

import numpy as np
from helpers import Layer, fused, tensors
from mindspore import mint

from hpmoe import Mesh, assign_queues, cpu, fuse_persistent, moe_ffn, overlap_comm, spmd, tile_partition


def repeated(ids):
    out = ids.copy()
    out[..., 1, 1] = out[..., 1, 0]
    return out


BAD_ARGUMENTS = {
    "float ids": (1, lambda a: a.astype(np.float32), "topk_ids is f32[4,2]; it must be [T, K] int32"),
    "int16 ids": (1, lambda a: a.astype(np.int16), "topk_ids is int16[4,2]; it must be [T, K] int32 or int64"),
    "ids without choices": (1, lambda a: a[:, 0], "topk_ids is i32[4]; it must be [T, K] int32"),
    "too many choices": (1, lambda a: np.zeros((4, 5), np.int32), "top_k is 5; it must be in 1..3"),
    "hidden states of another rank": (0, lambda a: a[None], "hidden_states is f32[1,4,4]; it must be [4, H]"),
    "too few hidden states": (0, lambda a: a[:3], "hidden_states is f32[3,4]; it must be [4, H]"),
    "narrow hidden states": (0, lambda a: a[:, :3], "rows and weight are f32[R,3] and f32[3,4,6]; they must be equal"),
    "double hidden states": (0, lambda a: a.astype(np.float64), "rows is of dtype float64; it must be float32, as weight "),
    "half experts": (3, lambda a: a.astype(np.float16), "weight is of dtype float16; it must be float32, as rows is"),
    "weights of fewer choices": (2, lambda a: a[:, :1], "topk_weights is f32[4,1]; it must be f32[4,2]"),
    "double weights": (2, lambda a: a.astype(np.float64), "topk_weights is f64[4,2]; it must be f32[4,2]"),
    "a matrix of experts": (3, lambda a: a[0], "weight is f32[4,6]; it must be 3-dimensional with 4 local experts first"),
    "an odd gate_up_weight": (3, lambda a: a[:, :, :5], "x is f32[R,5]; it must be an array whose last dimension is even"),
    "fewer down experts": (4, lambda a: a[:2], "weight is f32[2,3,4]; it must be 3-dimensional with 3 local experts first"),
    "short down weights": (4, lambda a: a[:, :2],
                           "rows and weight are f32[R,3] and f32[3,2,4]; they must be equal in their"),
}
BAD_IDS = {
    "repeated": (repeated, r"topk_ids\[1\] is \[(\d), \1\]; it must be distinct experts for each token"),
    "too large": (lambda a: a + 2, r"topk_ids\[\d, \d\] is [34]; it must be an expert id in 0\.\.2, or -1 for none\. \d ids "
                                   "are out of range"),
    "negative": (lambda a: a - 2,
                 r"topk_ids\[\d, \d\] is -2; it must be an expert id in 0\.\.2, or -1 for none\. \d ids are out of range"),
}
ONE = Layer(ep=1, T=4, E=3, K=2)


def arguments(position, change):
    args = [a[0] for a in ONE.arguments()]
    args[position] = change(args[position])
    return tensors(args)


BAD_LENGTHS = {
    "too few": ([1], "num_tokens is [1]; it must be 2 ints, one for each rank."),
    "too many": ([1, 2, 3], "num_tokens is [1, 2, 3]; it must be 2 ints, one for each rank."),
    "negative": ([-1, 2], "num_tokens is [-1, 2]; it must be not negative."),
    "a number": (3, "num_tokens is 3; it must be 2 ints, one for each rank."),
    "a bool": ([True, 2], "num_tokens is [True, 2]; it must be 2 ints, one for each rank."),
    "fractions": ([1.5, 1], "num_tokens is [1.5, 1]; it must be 2 ints, one for each rank."),
    "too large": ([5, 1], "num_tokens is [5, 1]; it must be at most 4, the rows of topk_ids."),
}
TILES = tile_partition(moe_ffn)
BAD_OPTIONS = {
    "rows": (lambda: tile_partition(moe_ffn, rows=0),
             "tile_partition: rows is 0; it must be an int in 1..2**30, \"auto\" or None."),
    "cols": (lambda: tile_partition(moe_ffn, cols=1.5),
             "tile_partition: cols is 1.5; it must be an int in 1..2**30, \"auto\" or None."),
    "tiles for": (lambda: tile_partition(moe_ffn, machine="a3"),
                  "tile_partition: machine is 'a3'; it must be an hpmoe.Machine, such as "
                  "hpmoe.ascend_a3 or hpmoe.load_machine(name), or None."),
    "put cols": (lambda: overlap_comm(TILES, cols=-1),
                 "overlap_comm: cols is -1; it must be an int in 1..2**30, \"auto\" or None."),
    "order": (lambda: overlap_comm(TILES, order="up"),
              "overlap_comm: order is 'up'; it must be \"ratr\", \"sequential\" or a "
              "function (rank, ep_size) -> destinations."),
    "signal": (lambda: overlap_comm(TILES, signal="row"),
               "overlap_comm: signal is 'row'; it must be one of tile, expert, peer."),
    "machine": (lambda: assign_queues(TILES, machine="cpu"),
                "assign_queues: machine is 'cpu'; it must be an hpmoe.Machine, such as "
                "hpmoe.ascend_a3 or hpmoe.load_machine(name), or None."),
    "policy": (lambda: assign_queues(TILES, policy="best"),
               "assign_queues: policy is 'best'; it must be one of critical_path, round_robin, stage_order, "
               "expert_barrier, or a function (taskflow, machine) -> queues."),
    "timeout": (lambda: fuse_persistent(assign_queues(TILES), timeout=0),
                "fuse_persistent: timeout is 0; it must be a positive "
                "number of seconds."),
    "mesh": (lambda: spmd(moe_ffn, 2), "spmd: mesh is 2; it must be an hpmoe.Mesh. Write hpmoe.Mesh(2)."),
    "ep_size": (lambda: Mesh(0), "hpmoe.Mesh: ep_size is 0; it must be a positive int."),
    "workers": (lambda: cpu(0), "hpmoe.cpu: num_workers is 0; it must be an int in 1..65536 or None."),
}
BAD_ORDERS = {
    "overlap a plain function": (lambda: overlap_comm(moe_ffn), "overlap_comm: it needs the tile tasks"),
    "assign a plain function": (lambda: assign_queues(moe_ffn), "assign_queues: it needs the tile tasks"),
    "fuse tiles": (lambda: fuse_persistent(TILES), "fuse_persistent: it needs the queues"),
    "overlap queues": (lambda: overlap_comm(assign_queues(TILES)), "overlap_comm: it needs the tile tasks"),
    "assign a kernel": (lambda: assign_queues(fused()(moe_ffn)), "assign_queues: "),
    "tile twice": (lambda: tile_partition(TILES),
                   "tile_partition: it is applied twice; tile_partition of moe_ffn is already"),
    "overlap twice": (lambda: overlap_comm(overlap_comm(TILES)), "overlap_comm: it is applied twice"),
}
MIXED = {
    "softmax over rows": (lambda x: mint.softmax(x, 0), "reduce_max"),
    "transpose": (lambda x: x.T * 2.0, "transpose"),
    "maximum over rows": (lambda x: mint.amax(x, dim=0), "reduce_max"),
    "some rows": (lambda x: x[:2] * 2.0, "slice"),
    "joined rows": (lambda x: mint.cat([x, x]), "concat"),
}
