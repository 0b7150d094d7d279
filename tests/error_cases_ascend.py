"""More of error_cases.py: what the Ascend kernel has no tile body for, and launches of it on the twin that go wrong."""

import mindspore as ms
import numpy as np
from ascend_helpers import npu
from error_cases_ir import CASES as CASES, cases

import hpmoe
from hpmoe import Aval, assign_queues, moe_ffn, overlap_comm, tile_partition, trace
from hpmoe.dtypes import numpy_dtype
from hpmoe.kernels.twin_target import compile_twin


def _layer(dtype="bfloat16", top_k=2, num_experts=2):
    return [Aval((16, 32), dtype), Aval((16, top_k), "int32"), Aval((16, top_k), dtype), Aval((num_experts, 32, 64), dtype),
            Aval((num_experts, 32, 32), dtype)]


def _flow(program, machine, overlap, **tiles):
    flow = tile_partition.apply_to(program, **{"rows": 16, "cols": 32, **tiles})
    return assign_queues.apply_to(overlap_comm.apply_to(flow) if overlap else flow, machine=machine)


def _compiled(f, avals, machine=None, overlap=True, **tiles):
    return lambda: compile_twin(_flow(trace(f, *avals), machine or npu(), overlap, **tiles), 1.0)


def _arrays(values):
    return [np.zeros(v.aval.shape, numpy_dtype(v.aval.dtype)) for v in values]


def _twin_layer():
    program = trace(moe_ffn, *_layer())
    return compile_twin(_flow(program, npu(), True), 1.0), _arrays(program.inputs)


def _missing_expert():
    kernel, inputs = _twin_layer()
    inputs[1][3] = 0, 7
    kernel.run([inputs])


def _traced_twin():
    kernel, inputs = _twin_layer()
    inputs[1][:] = 0, 1
    kernel.run([inputs], trace=np.zeros((1, kernel.flow.num_tasks, 3), np.int64))


cases("ascend", {
    "queues of another machine": _compiled(moe_ffn, _layer(), machine=hpmoe.cpu(2)),
    "queues of workers that do everything": _compiled(moe_ffn, _layer(), machine=hpmoe.cpu(3)),
    "collectives": _compiled(moe_ffn, _layer(), overlap=False),
    "a float32 product": _compiled(moe_ffn, _layer("float32")),
    "long rows": _compiled(lambda x, w: ms.mint.matmul(x, w), [Aval((16, 32), "bfloat16"), Aval((32, 65552), "bfloat16")]),
    "a capacity": _compiled(lambda *args: moe_ffn(*args, capacity_factor=2.0), _layer()),
    "many choices": _compiled(moe_ffn, _layer(top_k=257, num_experts=258)),
    "many experts": _compiled(moe_ffn, _layer(num_experts=1040)),
    "another function": _compiled(lambda x: ms.mint.sin(x), [Aval((16, 32), "bfloat16")]),
    "an expert that does not exist": _missing_expert,
    "times": _traced_twin,
})
