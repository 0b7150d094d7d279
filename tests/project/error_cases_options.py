"""More of error_cases.py: options, constants of machines and arguments of types that no call takes."""

import json
import tempfile
from pathlib import Path

import numpy as np
from error_cases import IDS, X, array, cases, doubled
from mindspore import Tensor, ops

import hpmoe
from hpmoe import (
    Mesh,
    ShapeDtypeStruct,
    assign_queues,
    cpu,
    dispatch,
    fuse_persistent,
    moe_ffn,
    overlap_comm,
    replicate_experts,
    save_for_backward,
    spmd,
    tile_partition,
    trace,
)
from hpmoe.routing.recorded_loads import ids_of_file, ids_of_loads

# True is 1 and False is 0 in Python, and neither is a size; what cannot be compared with a name is not one.
cases("no number", {
    "returns=0": lambda: overlap_comm(tile_partition(doubled), returns=0),
    "3 nodes of 4 ranks": lambda: Mesh(4, nodes=3),
    "ranks=0": lambda: cpu(ep_size=0),
    "keep_plans=1": lambda: fuse_persistent(assign_queues(tile_partition(doubled)), keep_plans=1),
    "replicas=True": lambda: replicate_experts(moe_ffn, loads=[1, 2], replicas=True),
    "expert_alignment=0": lambda: dispatch(array(2, 3), Tensor(np.zeros((2, 1), np.int32)), num_local_experts=1,
                                          expert_alignment=0),
    "num_local_experts=True": lambda: dispatch(array(2, 3), Tensor(np.zeros((2, 1), np.int32)), num_local_experts=True),
    "ShapeDtypeStruct of nan": lambda: ShapeDtypeStruct((float("nan"), 3), "float32"),
})
cases("no function", {
    "a ufunc": lambda: tile_partition(np.add),
    "a builtin without parameters": lambda: spmd(min, Mesh(2)),
})
cases("no name", {
    "direct": lambda: hpmoe.launch_kernels(tile_partition(doubled), direct=1).lower(X),
    "save policy": lambda: save_for_backward(doubled, policy={}),
    "target": lambda: fuse_persistent(assign_queues(tile_partition(doubled)), target=["cpu"]),
    "mesh of lower": lambda: tile_partition(doubled).lower(X, mesh=2),
    "mesh of trace": lambda: trace(doubled, X, mesh=2),
})
cases("a bin of",
      {"no die": lambda: hpmoe.machines.ascend_a3.of_bin("910C"), "a number": lambda: hpmoe.machines.ascend_a2.of_bin(9391),
                   "a cpu": lambda: cpu(2).of_bin("910B3")})
cases("a machine of", {f"{n}={v!r}": lambda n=n, v=v: hpmoe.machines.ascend_a3.replace({n: v}) for n, v in [
    ("num_aic", 0), ("num_aiv", -1), ("num_aiv", True), ("tile_rows", 2.0), ("link.node_size", "8"), ("sync.task_us", -1),
    ("link.bytes_per_us", 0), ("memory.bytes_per_us", float("nan")),
    ("memory.write_cost", 0.5), ("sync.remote_us", float("inf")), ("link", 8),
    ("cube.efficiency", 1.5), ("name", "a\n3"), ("l2.bytes_per_us", 5e-324),
    ("memory_bytes_per_us", 1e6), ("color", 1), ("bodies", [1])]})
cases("arrays", {
    "of objects": lambda: tile_partition(doubled)(np.array([[None]])),
    "without values": lambda: spmd(doubled, Mesh(1))(ShapeDtypeStruct((1, 2, 3), "float32")),
})
cases("in a trace", {
    "a sum that starts at one": lambda: trace(lambda x: x.sum(initial=1.0), X),
    "a sum that may skip": lambda: trace(lambda x: ops.ReduceSum(skip_mode=True)(x, ()), X),
    "std of unknown divisor": lambda: trace(lambda x: x.std(0), X),
    "num_local_experts of a float": lambda: trace(lambda x, ids: dispatch(x, ids, num_local_experts=2.0), X, IDS),
})


def of_loads(loads, **options):
    """Ids from a file of recorded loads of 4 experts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loads.json"
        path.write_text(json.dumps(loads))
        try:
            ids_of_file(path, 2, 3, 2, 4, **options)
        except hpmoe.ArgumentError as error:  # whose text has no name of a folder that differs from run to run
            raise hpmoe.ArgumentError(str(error).replace(folder, "FOLDER")) from None


def simulated(**options):
    shapes = (ShapeDtypeStruct((3, 4), "float32"), ShapeDtypeStruct((3, 1), "int32"), ShapeDtypeStruct((3, 1), "float32"),
              ShapeDtypeStruct((2, 4, 6), "float32"), ShapeDtypeStruct((2, 3, 4), "float32"))
    return hpmoe.simulate(assign_queues(tile_partition(moe_ffn)).lower(*shapes), **options)


cases("loads", {
    "of a matrix": lambda: ids_of_loads(np.ones((2, 2)), 1, 1, 1),
    "of too few experts": lambda: ids_of_loads([1, 0, 0], 1, 1, 2),
    "of another number of experts": lambda: of_loads([1, 2, 3]),
    "without a layer": lambda: of_loads([[1, 1, 1, 1], [1, 1, 1, 1]]),
    "of a dense layer": lambda: of_loads([[0, 0, 0, 0], [1, 1, 1, 1]], layer=0),
    "of other words": lambda: of_loads({"counts": [1, 1, 1, 1]}),
    "beside a routing": lambda: simulated(loads=[1, 1], routing=1.0),
    "of one expert": lambda: simulated(loads=[1]),
})
