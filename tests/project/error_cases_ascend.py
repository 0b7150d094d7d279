"""More of error_cases.py: what the Ascend kernel has no tile body for, and launches of it on the emulator that go wrong."""

import dataclasses
import functools

import mindspore as ms
import numpy as np
from ascend_helpers import emulator, npu, own_targets
from error_cases_ir import CASES as CASES, cases

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, assign_queues, moe_ffn, overlap_comm, spmd, tile_partition, trace
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.kernels.ascendc.heap import SymmetricHeap, WorldRanks, reserve_heap, world_ranks
from hpmoe.kernels.ascendc.target import AscendTarget
from hpmoe.primitives.guard import count_and_fill
from hpmoe.runtime.targets import register_target
from hpmoe.support.dtypes import numpy_dtype


def _layer(dtype="bfloat16", top_k=2, num_experts=2):
    return [ShapeDtypeStruct((16, 32), dtype), ShapeDtypeStruct((16, top_k), "int32"), ShapeDtypeStruct((16, top_k), dtype),
            ShapeDtypeStruct((num_experts, 32, 64), dtype),
            ShapeDtypeStruct((num_experts, 32, 32), dtype)]


def _flow(program, machine, overlap, **tiles):
    flow = tile_partition.apply_to(program, **{"rows": 16, "cols": 32, **tiles})
    return assign_queues.apply_to(overlap_comm.apply_to(flow) if overlap else flow, machine=machine)


def _compiled(f, avals, machine=None, overlap=True, **tiles):
    return lambda: EMULATOR.compile([_flow(trace(f, *avals), machine or npu(), overlap, **tiles)], 1.0)


def _arrays(values):
    return [np.zeros(v.aval.shape, numpy_dtype(v.aval.dtype)) for v in values]


def _emulator_layer():
    program = trace(moe_ffn, *_layer())
    return EMULATOR.compile([_flow(program, npu(), True)], 1.0), _arrays(program.inputs)


def _missing_expert():
    kernel, inputs = _emulator_layer()
    inputs[1][3] = 0, 7
    kernel.run([inputs])


def _traced_emulator():
    kernel, inputs = _emulator_layer()
    inputs[1][:] = 0, 1
    hpmoe.measure(kernel.run, [inputs])


@dataclasses.dataclass(frozen=True)
class _Npu(AscendTarget):
    lacks: tuple[str, ...] = ()

    def missing(self):
        return list(self.lacks)


class _Operator:
    """Stand-in for the compiled operator: launches nothing, reports given errors, opens heaps that are not too large."""

    def __init__(self, failure=None, opens=True):
        self.failure, self.opens = failure, opens

    def make_unique_id(self):
        return b"id"

    def open_device(self, rank, num_ranks, unique_id, heap_bytes):
        if not self.opens:
            raise RuntimeError("aclshmemx_init_attr returned -6")
        return self

    def bind(self, *args):
        return self

    def find_failure(self, kernel, wait):
        return self.failure

    def launch(self, kernel, num_tokens, operands):
        pass

    def name_kernel(self, number, kernel):
        pass


def _on_device(f, *operator):
    heap = SymmetricHeap(_Operator(*operator), WorldRanks(0, 1))
    register_target(_Npu("a device", lambda num_ranks: heap))
    return emulator(f, target="a device")


def _tensors():
    return [ms.ops.ones(a.shape, getattr(ms, a.dtype)) for a in _layer()]


def _called(*operator, **kwargs):
    return lambda: spmd(_on_device(moe_ffn, *operator), Mesh(1))(*_tensors(), **kwargs)


def _differentiated_twice():
    f = _on_device(moe_ffn)
    x, *rest = _tensors()
    ms.grad(lambda x: ms.grad(lambda x: f(x, *rest).astype(ms.float32).sum())(x).astype(ms.float32).sum())(x)


def _by_computed_ids(x, ids):
    return hpmoe.combine(*hpmoe.dispatch(x, ids + 0, num_local_experts=2))


X = ms.ops.ones((16, 32), ms.bfloat16)


def _in_a_graph(f, *args, **kwargs):
    fused = spmd(_on_device(f), Mesh(1))

    def jitted(*args):
        return fused(*args, **kwargs)

    return lambda: ms.jit(jitted)(*args)


def _later(make, *args, **kwargs):
    return lambda: make(*args, **kwargs)()


def _lacking():
    register_target(_Npu("a machine", lacks=("no CANN toolkit: ASCEND_HOME_PATH is not set", "no NPU")))
    return emulator(moe_ffn, target="a machine")


def _alone(call):
    with own_targets():
        call()


cases("device", {name: functools.partial(_alone, call) for name, call in {
    "what is missing": _lacking,
    "a world that is not there": lambda: world_ranks(2),
    "arrays": lambda: _on_device(moe_ffn).lower(*_layer()).run([[]]),
    "interpreted": lambda: _on_device(moe_ffn).interpret(*_tensors()),
    "num_tokens of all ranks": _called(num_tokens=[16]),
    "replicated arguments": lambda: spmd(_on_device(moe_ffn), Mesh(1), in_axes=None)(*_tensors()),
    "received rows": lambda: _on_device(lambda x, ids: hpmoe.dispatch(x, ids, num_local_experts=2)[0])(*_tensors()[:2]),
    "a failed launch": _called((1, 0, 2, 0, 0, 0, 3, 4, 0, "")),
    "another rank's failure": _called((2, 0, 2, 0, 0, 0, 3, 4, 0, "")),
    "a failed copy": _called((0, 0, 0, 0, 0, 0, 0, 0, 0, "aclrtMemcpyAsync returned 507899")),
    "a heap that does not open": _called(None, False),
    "a gradient of a gradient": _differentiated_twice,
    "a heap of no bytes": lambda: reserve_heap(0),
    "a closed-over tensor in a graph": _later(_in_a_graph, lambda x: x * X, X),
    "num_tokens in a graph": _later(_in_a_graph, lambda x: x * 2.0, X, num_tokens=3),
    "computed ids in a graph": _later(_in_a_graph, _by_computed_ids, *_tensors()[:2]),
}.items()})

cases("ascend", {
    "queues of another machine": _compiled(moe_ffn, _layer(), machine=hpmoe.cpu(2)),
    "queues of workers that do everything": _compiled(moe_ffn, _layer(), machine=hpmoe.cpu(3)),
    "collectives": _compiled(moe_ffn, _layer(), overlap=False),
    "long rows": _compiled(lambda x, w: ms.mint.matmul(x, w),
                           [ShapeDtypeStruct((16, 32), "bfloat16"), ShapeDtypeStruct((32, 65552), "bfloat16")]),
    "many choices": _compiled(moe_ffn, _layer(top_k=513, num_experts=514)),
    "guards of wide rows": _compiled(lambda x: count_and_fill(x, -3.0, 3.0, fill="zero")[0],
                                     [ShapeDtypeStruct((4, 16385), "float32")],
                                     overlap=False),
    "choices of wide rows": _compiled(lambda x: ms.mint.topk(x, 2)[0], [ShapeDtypeStruct((4, 2049), "float32")],
                                      overlap=False),
    "an expert that does not exist": _missing_expert,
    "times": _traced_emulator,
})
