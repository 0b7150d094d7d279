"""Programs that a chain accepts are lowered, costed and simulated: transforms, dtypes, machines, sizes, directions."""

import itertools

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct

EP, T, H, I, E, K = 4, 64, 1024, 512, 8, 2  # noqa: E741
WEIGHTS = {"gate_up_weight": (E // EP, H, 2 * I), "down_weight": (E // EP, I, H)}


def replicated(f):
    return hpmoe.replicate_experts(f, loads=[9, 1, 1, 1, 5, 1, 1, 1], replicas=2)


def accumulated(f):
    return hpmoe.accumulate_grads(f, into={name: ms.Tensor(np.zeros(s, np.float32)) for name, s in WEIGHTS.items()})


CHAINS = {"plain": [], "replicated": [replicated], "accumulated": [accumulated], "both": [replicated, accumulated],
          "deduplicated": [hpmoe.send_rows(scheme="deduplicated")], "quantised": [hpmoe.quantize_rows],
          "int8 weights": [hpmoe.quantize_rows, hpmoe.quantize_weights(row_dtype="int8")],
          "all": [replicated, accumulated, hpmoe.send_rows(scheme="deduplicated"),
                  hpmoe.quantize_rows(backward="quantized")]}
MACHINES = (hpmoe.cpu(2), hpmoe.machines.ascend_a2, hpmoe.machines.ascend_a3)
SIZES = [("auto", "auto"), (256, 512), (None, "auto")]


def simulated(chain, dtype, machine, sizes, direction, exchange=hpmoe.overlap_comm):
    args = [ShapeDtypeStruct((T, H), dtype), ShapeDtypeStruct((T, K), "int32"), ShapeDtypeStruct((T, K), "float32"),
            *(ShapeDtypeStruct(shape, dtype) for shape in WEIGHTS.values())]
    f = hpmoe.chain(*chain)(hpmoe.moe_ffn)
    staged = exchange(hpmoe.tile_partition(f, rows=sizes[0], cols=sizes[1], machine=machine))
    flow = hpmoe.assign_queues(staged, machine=machine).lower(*args, mesh=Mesh(EP), direction=direction)
    return hpmoe.simulate(flow)


@pytest.mark.parametrize("sizes", [("auto", "auto"), (256, 512)])
@pytest.mark.parametrize("exchange", [hpmoe.overlap_comm, hpmoe.launch_kernels])
def test_a_product_that_adds_main_gradients_and_those_of_copies(sizes, exchange):
    """The operation with the most operands, each touched, and both factors read again."""
    assert simulated(CHAINS["both"], "bfloat16", hpmoe.machines.ascend_a3, sizes, "backward", exchange).span > 0


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_grid_of_chains(name, dtype):
    """Sizes go round among the machines, directions and chains."""
    first = list(CHAINS).index(name)
    grid = [*enumerate(itertools.product(MACHINES, ("forward", "backward")))]
    for i, (machine, direction) in grid[(first + (dtype == "float32")) % 2::2]:
        sizes = SIZES[(first + i) % len(SIZES)]
        assert simulated(CHAINS[name], dtype, machine, sizes, direction).span > 0, (machine.name, sizes, direction)
