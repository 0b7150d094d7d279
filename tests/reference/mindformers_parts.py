"""MindFormers' mixture-of-experts modules on a CPU: its own files, with stand-ins for what they import and CPUs lack.

The files of `mindformers/pynative/transformers/moe` and what they are made of are those of the package. Stand-ins are: every
package's `__init__`; hyper_parallel, with a DTensor that is one rank's part; TransformerConfig, a namespace; the logger; the
styles' base class and `distribute_module`; recompute; the model's `parallelize`; and, as CPUs lack them, GroupedMatmul,
ops.swiglu, GELU and some of mint, in other words.
"""

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

PACKAGES = ("", "pynative", "pynative.transformers", "pynative.transformers.moe", "pynative.layers", "pynative.distributed",
            "pynative.base_models", "pynative.base_models.gpt", "parallel_core", "parallel_core.utils", "models", "tools")

MOE = "pynative.transformers.moe"
FILES = ("pynative.layers.activation", "pynative.layers.linear", "parallel_core.utils.spec_utils",
         "pynative.transformers.mlp", f"{MOE}.experts", f"{MOE}.moe_utils", f"{MOE}.router", f"{MOE}.shared_experts",
         f"{MOE}.moe_layer", "pynative.distributed.expert_parallel")


class OfParts(type):
    def __instancecheck__(cls, x):
        return hasattr(x, "to_local")


class DTensor(metaclass=OfParts):
    """Sharded tensors, of which a rank has its part: here a Parameter that says so."""


class ParallelStyle:
    pass


def distribute_module(module, device_mesh, parameter_shard_plan=None, input_fn=None, output_fn=None):
    """Cuts Parameters along their first axis, for the rank that the mesh says; hooks are kept to be looked at."""
    for name in parameter_shard_plan:
        p = getattr(module, name)
        part = Parameter(Tensor(np.split(p.asnumpy(), device_mesh.size)[device_mesh.rank]), name=p.name)
        part.device_mesh, part.to_local = SimpleNamespace(mesh_dim_names=("ep",)), lambda part=part: part
        setattr(module, name, part)
    module.hooks = input_fn, output_fn
    return module


class GroupedMatmul:
    """Rows of each group times its matrix; group_list are the groups' last rows, cumulative."""

    def __init__(self, split_item, group_type):
        assert (split_item, group_type) == (3, 0)

    def __call__(self, x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list):
        ends = group_list.asnumpy().tolist()
        starts = [0, *ends[:-1]]
        groups = [(e, a, b) for e, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < b]
        return [mint.cat([mint.matmul(x[0][a:b], weight[0][e]) for e, a, b in groups], dim=0)]


def swiglu(x, dim=-1):
    gate, up = mint.chunk(x, 2, dim)
    return mint.nn.functional.silu(gate) * up


def swiglu_grad(grad, x, dim):
    return ms.grad(lambda x: (swiglu(x, dim) * grad).sum())(x)


def histc(x, bins, min, max):
    assert (min, max) == (0, bins)
    return Tensor(np.bincount(x.asnumpy().reshape(-1).astype(np.int64), minlength=bins), ms.float32)


def scatter_(x, dim, index, value):
    array = x.asnumpy().copy()
    np.put_along_axis(array, index.asnumpy(), value, dim)
    return x.assign_value(Tensor(array))


# What CPUs lack of mint, in other words.
ON_CPUS = {
    "topk": lambda x, k, dim=-1, largest=True, sorted=True: ms.ops.topk(x, k, dim, largest, sorted),
    "histc": histc,
    "ones_like": lambda x, dtype=None: ms.ops.ones(x.shape, dtype or x.dtype),
    "cumsum": lambda x, dim, dtype=None: ms.ops.cumsum(x, dim, dtype),
    "floor_divide": lambda x, y: Tensor(x.asnumpy() // y),
    "argsort": lambda x, stable=False: Tensor(np.argsort(x.asnumpy(), kind="stable")),
}


def module(name, **values):
    made = ModuleType(name)
    vars(made).update(values)
    return made


def load(patch):
    """The modules of MindFormers by their last name; None where it is not installed."""
    spec = importlib.util.find_spec("mindformers")
    if spec is None:
        return None
    root = Path(spec.submodule_search_locations[0])
    stubs = [module(f"mindformers.{name}".rstrip("."), __path__=[str(root.joinpath(*name.split(".")))]) for name in PACKAGES]
    placements = module("hyper_parallel.core.dtensor.placement_types", Shard=lambda dim: ("shard", dim))
    stubs += [
        module("hyper_parallel", DTensor=DTensor, DeviceMesh=object, __path__=[]), placements,
        *(module(name, __path__=[]) for name in ("hyper_parallel.core", "hyper_parallel.core.dtensor")),
        module("hyper_parallel.core.dtensor.dtensor", DTensor=DTensor),
        module("hyper_parallel.platform", get_platform=None),
        module("mindformers.tools.logger", logger=logging.getLogger("mindformers")),
        module("mindformers.parallel_core.transformer_config", TransformerConfig=SimpleNamespace),
        module("mindformers.parallel_core.utils.init_method", init_method_zero=None),
        module("mindformers.models.utils", convert_mstype=lambda dtype: dtype),
        module("mindformers.pynative.distributed.style", ParallelStyle=ParallelStyle, register_comm_op=lambda *a: None,
               _call_comm_op=None),
        module("mindformers.pynative.distributed.utils", distribute_module=distribute_module),
        module("mindformers.pynative.distributed.activation_checkpoint", is_in_recompute=lambda: False,
               get_recompute_metadata=lambda key: None, save_for_recompute=lambda key, value: False)]
    for stub in stubs:
        patch.setitem(sys.modules, stub.__name__, stub)
    patch.setattr(ms.ops, "swiglu", swiglu)
    patch.setattr(mint.nn.functional, "softplus", lambda x: mint.log(1 + mint.exp(x)))
    patch.setattr(Tensor, "scatter_", scatter_)
    for name, f in ON_CPUS.items():
        patch.setattr(mint, name, f)
    found = {name.rpartition(".")[2]: load_file(patch, root, name) for name in FILES}
    styles = found["expert_parallel"]
    parallelize = module("mindformers.pynative.base_models.gpt.parallelize", ExpertParallel=styles.ExpertParallel,
                         DeredundancyExpertParallel=styles.DeredundancyExpertParallel)
    patch.setitem(sys.modules, parallelize.__name__, parallelize)
    patch.setattr(found["experts"], "GroupedMatmul", GroupedMatmul)
    patch.setattr(found["activation"].GELU, "construct", lambda self, x: x * 0.5 * (1 + mint.erf(x * 0.5**0.5)))
    patch.setattr(found["activation"], "_swiglu_grad", swiglu_grad)
    return SimpleNamespace(**found, parallelize=parallelize)


def load_file(patch, root, name):
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"mindformers.{name}", path)
    made = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, made.__name__, made)
    spec.loader.exec_module(made)
    return made


def make_config(**options):
    """Returns the fields of a TransformerConfig that the modules read, with small sizes."""
    sizes = {"hidden_size": 16, "num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 12,
             "moe_shared_expert_intermediate_size": 10, "shared_expert_num": 0}
    router = {"moe_router_score_function": "softmax", "norm_topk_prob": True, "moe_router_topk_scaling_factor": None,
              "moe_router_num_groups": None, "moe_router_group_topk": None, "moe_router_enable_expert_bias": False,
              "moe_router_bias_update_rate": 1e-3, "moe_router_force_expert_balance": False, "moe_n_hash_layers": 0,
              "moe_aux_loss_coeff": 0.0, "moe_router_load_balancing_type": "aux_loss"}
    experts = {"moe_apply_probs_on_input": False, "add_bias_linear": False, "hidden_act": "fusedswiglu",
               "activation_func_clamp_value": None, "gated_linear_unit": True, "moe_token_dispatcher_type": "alltoall",
               "moe_permute_fusion": False, "use_shared_expert_gating": False, "init_method": None,
               "output_layer_init_method": None}
    dtypes = {"compute_dtype": ms.float32, "moe_router_dtype": ms.float32}
    return SimpleNamespace(**{**sizes, **router, **experts, **dtypes, **options})


def fill(layer: nn.Cell, seed):
    """Draws the values of a layer's Parameters, which MindFormers leaves empty; counts begin at zero."""
    rng = np.random.default_rng(seed)
    for name, p in layer.parameters_and_names():
        values = np.zeros(p.shape) if "tokens_per_expert" in name else rng.standard_normal(p.shape) * 0.3
        p.set_data(Tensor(values, p.dtype))
