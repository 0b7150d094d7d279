"""The kernels: the packed image, the native runtime and its tile bodies."""

if __name__ != "hpmoe.kernels":
    raise ImportError(f"{__name__!r} is a source folder of hpmoe: import hpmoe.kernels instead")

from hpmoe.kernels import protocol as protocol
from hpmoe.kernels.cpu.launch import launch as launch
from hpmoe.kernels.native import load as load, use_amx as use_amx, use_blas as use_blas
