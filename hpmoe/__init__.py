"""Composable transforms that turn a pure MoE-FFN written with MindSpore into one persistent kernel.

What there is, by what it is for:
    to choose experts: route; hpmoe.router has losses, counts, noise and forced choices beside it
    layers as Cells, with Parameters: hpmoe.nn
    to write a layer: dispatch, grouped_matmul, swiglu, rms_norm_rows, combine, drop_counts; moe_ffn, a whole one
    to write one as Megatron and MindFormers do: permute, exchange, exchange_back, unpermute; of CANN's operators also
        permute_with_ep, unpermute_with_ep, init_routing
    to make a kernel of it: tile_partition, overlap_comm, prefetch_weights, assign_queues, fuse_persistent; spmd, for all
        ranks of a Mesh
    to change it before: save_for_backward, select_grads, accumulate_grads, guard_values, limit_rows, send_rows,
        deduplicate_rows, relay_rows, quantize_rows, quantize_weights, replicate_experts
    to put transforms together: chain, transform; autotune, whose table hpmoe.tuning prints; to write one: hpmoe.rewriting;
        to test one: hpmoe.testing
    to look at a stage: trace, vjp, Program, ShapeDtypeStruct, Taskflow, verify; to run it in NumPy: evaluate, interpret
    to predict or record a run: simulate, Machine, load_machine, ascend_a2, ascend_a3, cpu, launch_kernels; measure; Timeline
    ranks as processes: world; all_reduce_gradients
    on an NPU: synchronize
    what is raised: ArgumentError, TraceError, ProgramError, TransformError, VerifyError, LaunchError

Example:
    >>> import mindspore as ms, hpmoe
    >>> to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    >>> f = to_kernel(lambda x: hpmoe.swiglu(x) * 2.0)
    >>> f(ms.Tensor([[0.0, 5.0], [20.0, 2.0]], ms.float32)).asnumpy().round(3).tolist()
    [[0.0], [80.0]]
"""

import hpmoe.support.interrupts  # noqa: F401  first: the others take seconds
from hpmoe.support.versions import __version__ as __version__  # warns of another MindSpore before that is imported

# isort: split
import hpmoe.kernels.ascendc.emulator.target  # noqa: F401  registers ascend-emulator
import hpmoe.kernels.cpu.target  # noqa: F401  registers the cpu target
import hpmoe.kernels.token_rows  # noqa: F401  how token operators run on tensors
from hpmoe.autodiff.vjp import vjp as vjp
from hpmoe.interpreters.evaluate import evaluate as evaluate
from hpmoe.interpreters.interpret import interpret as interpret
from hpmoe.ir.avals import ShapeDtypeStruct as ShapeDtypeStruct
from hpmoe.ir.program import Program as Program
from hpmoe.ir.taskflow import Taskflow as Taskflow
from hpmoe.kernels.ascendc.target import synchronize as synchronize
from hpmoe.kernels.simulate import simulate as simulate
from hpmoe.machines.machine import Machine as Machine, Mesh as Mesh
from hpmoe.machines.machine_files import load_machine as load_machine
from hpmoe.machines.presets import ascend_a2 as ascend_a2, ascend_a3 as ascend_a3, cpu as cpu
from hpmoe.moe import moe_ffn as moe_ffn
from hpmoe.primitives.dispatch import combine as combine, dispatch as dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul as grouped_matmul
from hpmoe.primitives.rms_norm import rms_norm_rows as rms_norm_rows
from hpmoe.primitives.route import drop_counts as drop_counts
from hpmoe.primitives.swiglu import swiglu as swiglu
from hpmoe.ranks.gradients import all_reduce_gradients as all_reduce_gradients
from hpmoe.ranks.world import world as world
from hpmoe.router.route import route as route
from hpmoe.runtime.spmd import spmd as spmd
from hpmoe.runtime.transform import chain as chain, transform as transform
from hpmoe.support.errors import (
    ArgumentError as ArgumentError,
    LaunchError as LaunchError,
    ProgramError as ProgramError,
    TraceError as TraceError,
    TransformError as TransformError,
    VerifyError as VerifyError,
)
from hpmoe.timelines.measure import measure as measure
from hpmoe.timelines.timeline import Timeline as Timeline
from hpmoe.token_ops import (
    exchange as exchange,
    exchange_back as exchange_back,
    init_routing as init_routing,
    permute as permute,
    permute_with_ep as permute_with_ep,
    unpermute as unpermute,
    unpermute_with_ep as unpermute_with_ep,
)
from hpmoe.tracing import trace as trace
from hpmoe.transforms.accumulate_grads import accumulate_grads as accumulate_grads
from hpmoe.transforms.assign_queues import assign_queues as assign_queues
from hpmoe.transforms.deduplicate_rows import deduplicate_rows as deduplicate_rows
from hpmoe.transforms.fuse_persistent import fuse_persistent as fuse_persistent
from hpmoe.transforms.guard_values import guard_values as guard_values
from hpmoe.transforms.launch_kernels import launch_kernels as launch_kernels
from hpmoe.transforms.limit_rows import limit_rows as limit_rows
from hpmoe.transforms.overlap_comm import overlap_comm as overlap_comm
from hpmoe.transforms.prefetch_weights import prefetch_weights as prefetch_weights
from hpmoe.transforms.quantize_rows import quantize_rows as quantize_rows
from hpmoe.transforms.quantize_weights import quantize_weights as quantize_weights
from hpmoe.transforms.relay_rows import relay_rows as relay_rows
from hpmoe.transforms.replicate_experts import replicate_experts as replicate_experts
from hpmoe.transforms.save_for_backward import save_for_backward as save_for_backward
from hpmoe.transforms.select_grads import select_grads as select_grads
from hpmoe.transforms.send_rows import send_rows as send_rows
from hpmoe.transforms.tile_partition import tile_partition as tile_partition
from hpmoe.tuning.autotune import autotune as autotune
from hpmoe.verification.verify import verify as verify

# isort: split
import hpmoe.mindformers  # noqa: F401  hpmoe.mindformers.enable
import hpmoe.nn  # noqa: F401  hpmoe.nn.MoELayer
import hpmoe.rewriting  # noqa: F401  lists all primitives, which the others define

__all__ = [
    "ArgumentError", "LaunchError", "Machine", "Mesh", "Program", "ProgramError", "ShapeDtypeStruct", "Taskflow", "Timeline",
    "TraceError", "TransformError", "VerifyError", "accumulate_grads", "all_reduce_gradients", "ascend_a2", "ascend_a3",
    "assign_queues", "autotune", "chain", "combine", "cpu", "deduplicate_rows", "dispatch", "drop_counts",
    "evaluate", "exchange", "exchange_back", "fuse_persistent", "grouped_matmul", "guard_values", "init_routing",
    "interpret", "launch_kernels", "limit_rows", "load_machine", "measure", "moe_ffn", "overlap_comm", "permute",
    "permute_with_ep", "prefetch_weights",
    "quantize_rows", "quantize_weights", "relay_rows", "replicate_experts", "rms_norm_rows", "route", "save_for_backward",
    "select_grads", "send_rows", "simulate", "spmd", "swiglu", "synchronize", "tile_partition", "trace", "transform",
    "unpermute", "unpermute_with_ep", "verify", "vjp", "world",
]
