"""The sides of a comparison: the MoE-FFN in each framework, and limits of the machine, each in a process of its own.

`worker.py` is that process; it loads one file of this folder without importing hpmoe, so that a side has nothing loaded
but its own framework. A side's function takes a LayerProblem and returns its passes and how results become NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to compute the layer, to multiply matrices or to read memory.

    Attributes:
        title: as tables name it.
        module, entry: the file of this package and its function.
        package: what pip installs for it, also the name of the module to import.
        not_in: why there is no such side, by dtype.
        variants: environment variables to choose from by time, by the name of the choice; the first is the default. What
            the first side of a package chooses holds for the others.
        ceiling: True if the side only multiplies matrices or reads memory; its rate is what the machine can do.
    """

    title: str
    module: str
    entry: str
    package: str
    not_in: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=lambda: {"": {}})
    ceiling: bool = False


OPENBLAS = {"default": {}, **{kind: {"OPENBLAS_CORETYPE": kind} for kind in ("COOPERLAKE", "SKYLAKEX", "HASWELL")}}
# Fresh pages for the arrays of every run cost more than some of the work done in them.
MALLOC = {"default malloc": {},
          "malloc that keeps its memory": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2 ** 34)}}
NO_MINDSPORE = {"bfloat16": "MindSpore's CPU backend has no bfloat16 matmul"}
NO_NUMPY = {"bfloat16": "NumPy has no bfloat16"}

SIDES = {
    "hpmoe": Side("hpmoe", "hpmoe_fused", "fused", "hpmoe"),
    "mindspore": Side("MindSpore op by op", "mindspore_loop", "op_by_op", "mindspore", NO_MINDSPORE),
    "mindspore_jit": Side("MindSpore ms.jit", "mindspore_loop", "jit", "mindspore", NO_MINDSPORE),
    "torch": Side("PyTorch eager", "pytorch_loop", "eager", "torch", variants=MALLOC),
    "torch_compile": Side("torch.compile", "pytorch_loop", "compiled", "torch", variants=MALLOC),
    "jax": Side("JAX jit", "jax_loop", "compiled", "jax", variants=MALLOC),
    "numpy": Side("NumPy, OpenBLAS", "numpy_loop", "layer", "numpy", NO_NUMPY, OPENBLAS),
    "matmul_onednn": Side("matmul, MindSpore's oneDNN", "matmul_alone", "onednn", "mindspore",
                          {"bfloat16": "its C interface has no plain bfloat16 matmul"}, ceiling=True),
    "matmul_numpy": Side("matmul, NumPy's OpenBLAS", "matmul_alone", "numpy", "numpy", NO_NUMPY, OPENBLAS, ceiling=True),
    "matmul_torch": Side("matmul, PyTorch", "matmul_alone", "torch", "torch", ceiling=True),
    "matmul_jax": Side("matmul, JAX", "matmul_alone", "jax", "jax", ceiling=True),
    "read_numpy": Side("read, NumPy's OpenBLAS", "matmul_alone", "numpy_read", "numpy", variants=OPENBLAS, ceiling=True),
    "read_torch": Side("read, PyTorch", "matmul_alone", "torch_read", "torch", ceiling=True),
}
