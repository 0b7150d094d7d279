"""What `import hpmoe` offers: a new public name is a decision, made here too."""

import inspect
import re
import types

import pytest

import hpmoe

PUBLIC = """
    ArgumentError LaunchError Machine Mesh Program ProgramError ShapeDtypeStruct Taskflow Timeline TraceError TransformError
    VerifyError accumulate_grads all_reduce_gradients ascend_a2 ascend_a3 assign_queues autotune chain combine cpu
    deduplicate_rows dispatch drop_counts evaluate exchange exchange_back fuse_persistent grouped_matmul guard_values
    init_routing interpret launch_kernels limit_rows load_machine measure moe_ffn overlap_comm permute permute_with_ep
    prefetch_weights quantize_rows quantize_weights relay_rows replicate_experts rms_norm_rows route save_for_backward
    select_grads send_rows simulate spmd swiglu synchronize tile_partition trace transform unpermute
    unpermute_with_ep verify vjp world
""".split()


def test_public_names_are_the_listed_ones():
    names = [n for n, v in vars(hpmoe).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)]
    assert sorted(names) == sorted(PUBLIC) == sorted(set(PUBLIC)) == hpmoe.__all__


def test_a_star_imports_the_public_names():
    names = {}
    exec("from hpmoe import *", names)
    assert names.keys() - {"__builtins__"} == set(PUBLIC)


def test_help_of_the_package_tells_what_each_name_is_for():
    told = hpmoe.__doc__.split("Example:")[0]
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", told)] == []


def test_every_public_function_and_class_is_documented():
    undocumented = [n for n in PUBLIC if callable(getattr(hpmoe, n)) and not (getattr(hpmoe, n).__doc__ or "").strip()]
    assert undocumented == []


@pytest.mark.parametrize("name", [n for n in PUBLIC if callable(getattr(hpmoe, n))
                                  and not inspect.isclass(getattr(hpmoe, n))])
def test_the_signature_has_the_arguments_of_the_docstring(name):
    f = getattr(hpmoe, name)
    section = re.search(r"^Args:\n(.*?)(?:^\S|\Z)", inspect.getdoc(f), re.DOTALL | re.MULTILINE)
    documented = re.findall(r"^    ([\w*][\w*, ]*):", section[1], re.MULTILINE) if section else []
    names = [name.strip(" *") for together in documented for name in together.split(",")]
    assert sorted(names) == sorted(inspect.signature(f).parameters)
