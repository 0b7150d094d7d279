"""Public names of `import hpmoe`; a new public name is a decision, made here too."""

import importlib
import inspect
import re
import types

import pytest

import hpmoe

LAYER = "dispatch grouped_matmul swiglu combine route moe_ffn".split()
CHAIN = "tile_partition overlap_comm assign_queues fuse_persistent chain transform spmd Mesh autotune".split()
CHANGES = ("send_rows quantize_rows quantize_weights replicate_experts limit_rows save_for_backward select_grads "
           "accumulate_grads guard_values").split()
LOOKING = "trace vjp verify interpret ShapeDtypeStruct".split()
PREDICTING = "simulate measure launch_kernels prefetch_weights Timeline Machine load_machine cpu".split()
RANKS = "world all_reduce_gradients".split()
ERRORS = "ArgumentError TraceError ProgramError TransformError VerifyError LaunchError".split()
PUBLIC = LAYER + CHAIN + CHANGES + LOOKING + PREDICTING + RANKS + ERRORS
MODULES = "nn router balance token_ops mindformers tuning machines ranks rewriting testing transforms".split()


def test_public_names_are_the_listed_ones():
    names = [n for n, v in vars(hpmoe).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)]
    assert sorted(names) == sorted(PUBLIC) == sorted(set(PUBLIC)) == hpmoe.__all__ and len(PUBLIC) <= 45


def test_the_docstring_has_a_line_for_each_name():
    told = dict(re.findall(r"^    (\S+) +(.{20,})$", hpmoe.__doc__.split("Example:")[0], re.MULTILINE))
    assert list(told) == PUBLIC + [f"hpmoe.{module}" for module in MODULES]


def test_a_name_of_a_module_says_where_it_is():
    with pytest.raises(AttributeError, match=r"no attribute 'permute'; write hpmoe.token_ops.permute\.$"):
        _ = hpmoe.permute
    with pytest.raises(AttributeError, match=r"no attribute 'permutte'; help\(hpmoe\) lists its names\.$"):
        _ = hpmoe.permutte


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_the_docstring_have_documented_names(name):
    module = importlib.import_module(f"hpmoe.{name}")
    assert module.__doc__ and all(hasattr(module, n) for n in getattr(module, "__all__", []))


def test_a_star_imports_the_public_names():
    names = {}
    exec("from hpmoe import *", names)
    assert names.keys() - {"__builtins__"} == set(PUBLIC)


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
