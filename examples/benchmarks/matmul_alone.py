"""Square matrix products, and reading as many bytes as a layer's weights have, on all cores: limits of the machine."""

import concurrent.futures
import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np

SIZE = 3072


def numpy(problem):
    a, b = operands()
    out = np.empty((SIZE, SIZE), np.float32)
    return passes(lambda: np.matmul(a, b, out=out), np.asarray)


def torch(problem):
    import torch  # pyright: ignore[reportMissingImports]  an extra
    a, b = (torch.from_numpy(x).to(getattr(torch, problem.dtype)) for x in operands())
    out = torch.empty_like(a)
    return passes(lambda: torch.mm(a, b, out=out), lambda t: t.float().numpy())


def jax(problem):
    import jax
    a, b = (jax.numpy.asarray(x, problem.dtype) for x in operands())
    multiply = jax.jit(jax.numpy.matmul)
    return passes(lambda: multiply(a, b).block_until_ready(), lambda t: np.asarray(t.astype("float32")))


def onednn(problem):
    """dnnl_sgemm of the library in MindSpore, which works on the calling thread: one for each core, on rows of its own."""
    spec = importlib.util.find_spec("mindspore")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = spec.submodule_search_locations[0]
    sgemm = ctypes.CDLL(str(min(Path(folder, "lib").glob("libdnnl.so*")))).dnnl_sgemm
    a, b = operands()
    out, threads = np.empty((SIZE, SIZE), np.float32), len(os.sched_getaffinity(0))
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    n, one, zero = ctypes.c_int64(SIZE), ctypes.c_float(1), ctypes.c_float(0)

    def rows(i):
        begin, end = SIZE * i // threads, SIZE * (i + 1) // threads
        sgemm(ctypes.c_char(b"N"), ctypes.c_char(b"N"), ctypes.c_int64(end - begin), n, n, one, pointer(a[begin:]), n,
              pointer(b), n, zero, pointer(out[begin:]), n)

    def multiply():
        list(pool.map(rows, range(threads)))
        return out

    return passes(multiply, np.asarray)


def numpy_read(problem):
    x = bytes_to_read(problem)
    return {"read": lambda: [np.dot(x, x)]}, np.atleast_1d


def torch_read(problem):
    import torch  # pyright: ignore[reportMissingImports]  an extra
    x = torch.from_numpy(bytes_to_read(problem))
    return {"read": lambda: [torch.dot(x, x)]}, lambda t: np.atleast_1d(t.numpy())


def bytes_to_read(problem):
    """Ones of as many bytes as the weights that a forward pass reads; their sum is exact in float32."""
    return np.ones(problem.weight_bytes["forward"] // 4, np.float32)


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def operands():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))


def first_rows(dtype):
    """[8, SIZE] float64: the rows that a check compares."""
    a, b = operands()
    if dtype == "bfloat16":
        a, b = round_to_bfloat16(a), round_to_bfloat16(b)
    return a[:8].astype(np.float64) @ b.astype(np.float64)


def round_to_bfloat16(array):
    """The nearest bfloat16 values, ties to even, as float32."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def passes(multiply, to_numpy):
    return {"matmul": lambda: [multiply()]}, to_numpy
