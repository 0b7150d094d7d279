"""Composable transforms that turn a pure MoE-FFN written with MindSpore into one persistent kernel.

A layer, as a function of tensors:
    dispatch                 sends tokens' rows to the ranks of their experts
    grouped_matmul           multiplies the rows of each local expert by its weight
    swiglu                   silu(gate) * up of each row
    combine                  returns each token the weighted sum of its experts' rows
    route                    chooses the top-k experts of each token and their weights
    moe_ffn                  a whole MoE-FFN: the functions above in order

The chain, which makes a kernel of a function:
    tile_partition           splits operators into tile tasks with dependencies
    overlap_comm             makes of collectives one-sided puts with signals, in an order that overlaps
    assign_queues            schedules tasks on static queues of matrix and vector units
    fuse_persistent          binds the queues to one persistent kernel, differentiable
    chain                    composes transforms, the first one innermost
    transform                makes a transform of a function from IR to IR
    spmd                     runs a per-rank function on all ranks of a mesh
    Mesh                     number of ranks by axis: ep, tp, nodes
    autotune                 chooses the options of the chain by a machine model

Transforms that change a function before it is tiled:
    send_rows                sends rows directly, once to each rank, or once to each node
    quantize_rows            sends and multiplies rows as int8, fp8 or mxfp8
    quantize_weights         multiplies by weights as int8, fp8 or mxfp8
    replicate_experts        gives hot experts replicas on other ranks
    limit_rows               bounds the memory for received rows
    save_for_backward        chooses the values that are saved, not recomputed
    select_grads             computes the gradients of some arguments only
    accumulate_grads         adds gradients to float32 main gradients
    guard_values             checks values for NaN, infinity and range

Looking at a level:
    trace                    the Program of a function
    vjp                      outputs of a function and its vector-Jacobian product
    verify                   proves that a Taskflow is a correct schedule
    interpret                runs a Program or a Taskflow in NumPy
    ShapeDtypeStruct         shape and dtype of an array without values

Predicting and measuring:
    simulate                 predicts the timeline of a Taskflow on a machine model
    measure                  records the timeline of a call on this machine
    launch_kernels           runs one kernel for each operator, as a baseline
    prefetch_weights         loads weights into L2 before their first use
    Timeline                 when each task ran, with views and reports
    Machine                  workers, rates, links and costs of a machine
    load_machine             reads a machine from a preset or a TOML file
    cpu                      the machine model of this CPU

Ranks as processes:
    world                    the ranks of the launcher as a Mesh
    all_reduce_gradients     sums gradients over ranks

Errors:
    ArgumentError            an argument has a wrong type, shape or value
    TraceError               a function does what a Program cannot record
    ProgramError             a Program is not valid
    TransformError           a transform cannot be applied here
    VerifyError              a Taskflow is not a correct schedule
    LaunchError              a launch failed, or a rank of it

Modules:
    hpmoe.nn                 layers as Cells, checkpoints of Hugging Face
    hpmoe.router             losses, counts, noise and forced choices beside route
    hpmoe.balance            loads of experts, relocation and replicas between steps
    hpmoe.token_ops          permute, unpermute, exchange, init_routing, rms_norm_rows
    hpmoe.mindformers        enable(), which puts the kernels into MindFormers' layers
    hpmoe.tuning             compare_plans, the table that autotune chooses from
    hpmoe.machines           presets: ascend_a2, ascend_a3, ascend_950pr, ascend_950dt
    hpmoe.ranks              synchronize
    hpmoe.rewriting          IR and its editing, for transforms of your own
    hpmoe.testing            assertions and random inputs for transforms
    hpmoe.transforms         the modules of the transforms

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
import hpmoe.kernels.ascendc.target  # noqa: F401  registers ascend
import hpmoe.kernels.cpu.target  # noqa: F401  registers the cpu target
import hpmoe.kernels.token_rows  # noqa: F401  how token operators run on tensors
from hpmoe.interpreters.interpret import interpret as interpret
from hpmoe.ir.avals import ShapeDtypeStruct as ShapeDtypeStruct
from hpmoe.kernels.simulate import simulate as simulate
from hpmoe.machines.machine import Machine as Machine, Mesh as Mesh
from hpmoe.machines.machine_files import load_machine as load_machine
from hpmoe.machines.this_cpu import cpu as cpu
from hpmoe.moe import moe_ffn as moe_ffn
from hpmoe.primitives.dispatch import combine as combine, dispatch as dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul as grouped_matmul
from hpmoe.primitives.swiglu import swiglu as swiglu
from hpmoe.ranks.gradients import all_reduce_gradients as all_reduce_gradients
from hpmoe.ranks.world import world as world
from hpmoe.router.route import route as route
from hpmoe.runtime.spmd import spmd as spmd
from hpmoe.runtime.transform import chain as chain, transform as transform
from hpmoe.runtime.vjp import vjp as vjp
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
from hpmoe.tracing import trace as trace
from hpmoe.transforms.accumulate_grads import accumulate_grads as accumulate_grads
from hpmoe.transforms.assign_queues import assign_queues as assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent as fuse_persistent
from hpmoe.transforms.guard_values import guard_values as guard_values
from hpmoe.transforms.launch_kernels import launch_kernels as launch_kernels
from hpmoe.transforms.limit_rows import limit_rows as limit_rows
from hpmoe.transforms.overlap_comm import overlap_comm as overlap_comm
from hpmoe.transforms.prefetch_weights import prefetch_weights as prefetch_weights
from hpmoe.transforms.quantize_rows import quantize_rows as quantize_rows
from hpmoe.transforms.quantize_weights import quantize_weights as quantize_weights
from hpmoe.transforms.replicate_experts import replicate_experts as replicate_experts
from hpmoe.transforms.save_for_backward import save_for_backward as save_for_backward
from hpmoe.transforms.select_grads import select_grads as select_grads
from hpmoe.transforms.send_rows import send_rows as send_rows
from hpmoe.transforms.tile_partition import tile_partition as tile_partition
from hpmoe.tuning.autotune import autotune as autotune
from hpmoe.verification.verify import verify as verify

# isort: split
from hpmoe import (
    balance as balance,
    machines as machines,
    mindformers as mindformers,
    nn as nn,
    ranks as ranks,
    router as router,
    token_ops as token_ops,
    transforms as transforms,
    tuning as tuning,
)

# isort: split
from hpmoe import rewriting as rewriting  # lists all primitives, which the others define

__all__ = [
    "ArgumentError", "LaunchError", "Machine", "Mesh", "ProgramError", "ShapeDtypeStruct", "Timeline", "TraceError",
    "TransformError", "VerifyError", "accumulate_grads", "all_reduce_gradients", "assign_queues", "autotune", "chain",
    "combine", "cpu", "dispatch", "fuse_persistent", "grouped_matmul", "guard_values", "interpret", "launch_kernels",
    "limit_rows", "load_machine", "measure", "moe_ffn", "overlap_comm", "prefetch_weights", "quantize_rows",
    "quantize_weights", "replicate_experts", "route", "save_for_backward", "select_grads", "send_rows", "simulate", "spmd",
    "swiglu", "tile_partition", "trace", "transform", "verify", "vjp", "world",
]


def __getattr__(name: str) -> object:
    modules = token_ops, router, rewriting, machines, ranks, nn, balance
    where = [module.__name__ for module in modules if hasattr(module, name)]
    hint = f"; write {where[0]}.{name}" if where and not name.startswith("_") else "; help(hpmoe) lists its names"
    raise AttributeError(f"module 'hpmoe' has no attribute {name!r}{hint}.")
