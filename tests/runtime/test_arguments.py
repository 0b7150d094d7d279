"""Arguments of a call: bound as Python binds them, and arrays that share and keep the memory of tensors."""

import gc
import inspect

import mindspore as ms
import numpy as np
import optree
import pytest
from mindspore import Tensor, ops

from hpmoe.runtime.arguments import Parameters, RankAxes
from hpmoe.runtime.rank_arrays import to_array

FUNCTIONS = {
    "positional": lambda x, y: None,
    "defaults": lambda x, y=2, z=None: None,
    "named": lambda x, y=(1, 2), *, named="error", other=None: None,
    "named without a default": lambda x, *, named: None,
    "any number": lambda x, *rest, named=1: None,
    "any name": lambda x, y=1, **rest: None,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("kwargs", [{}, {"named": 3}, {"y": 4}], ids=str)
def test_arguments_are_bound_as_python_binds_them(function, count, kwargs):
    args = tuple(range(10, 10 + count))
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=str(error)):
            Parameters(function, RankAxes(None)).flatten(args, kwargs)
        return
    bound.apply_defaults()
    given = Parameters(function, RankAxes(None)).flatten(args, kwargs)
    flat = optree.tree_flatten((bound.args, bound.kwargs), none_is_leaf=True)
    assert (str(given.leaves), given.tree) == (str(flat[0]), flat[1])
    assert given.is_array == [isinstance(x, Tensor) for x in given.leaves]


def tensors():
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    for name in ("float32", "float16", "bfloat16", "int32", "int64", "bool_", "float64"):
        yield name, Tensor(numbers).astype(getattr(ms, name))
    x = Tensor(numbers)
    yield from {"first rows": x[:3], "last rows": x[1:], "columns": x[:, 1:3], "transposed": x.T, "no rows": x[:0],
                "scalar": Tensor(1.5), "of NumPy's memory": Tensor.from_numpy(numbers), "Parameter": ms.Parameter(x),
                "computed": x * 2 + 1}.items()


@pytest.mark.parametrize(("name", "tensor"), list(tensors()))
def test_an_array_is_what_asnumpy_gives(name, tensor):
    array, expected = to_array(tensor), tensor.asnumpy()
    assert (array.dtype, array.shape, array.strides) == (expected.dtype, expected.shape, expected.strides)
    assert array.tobytes() == expected.tobytes()
    is_view = name in ("first rows", "last rows", "columns", "transposed", "no rows")
    assert is_view or array.ctypes.data == expected.ctypes.data


def test_a_tensor_that_is_not_initialised_yet():
    made = ms.common.initializer.initializer("ones", (3, 4), ms.float32)
    assert to_array(made).tolist() == np.ones((3, 4)).tolist()


def test_an_array_waits_for_what_computes_it():
    x = Tensor(np.random.default_rng(0).standard_normal((600, 600)), ms.float32)
    y = ops.matmul(ops.matmul(x, x), x)
    array, first_rows = to_array(y), to_array(ops.matmul(y, x)[:100])
    assert np.array_equal(array, y.asnumpy()) and np.array_equal(first_rows, ops.matmul(y, x).asnumpy()[:100])


@pytest.mark.parametrize("lose", ["delete", "set_data"])
def test_an_array_keeps_the_memory(lose):
    """A tensor that is gone, or was given other memory, leaves the array what it was; what is written in place shows."""
    x = ms.Parameter(Tensor(np.ones((500, 1000)), ms.float32), name="x")
    array = to_array(x)
    ops.assign(x, Tensor(np.full((500, 1000), 2), ms.float32))
    assert (array == 2).all()
    if lose == "set_data":
        x.set_data(Tensor(np.full((500, 1000), 3), ms.float32))
        assert (to_array(x) == 3).all()
    else:
        del x
    gc.collect()
    others = [Tensor(np.full((500, 1000), i), ms.float32) + 1 for i in range(8)]  # take memory that is free
    assert (array == 2).all() and len(others) == 8


def test_arrays_wait_for_writes_in_place():
    """PyNative queues writes in place; the storage of a tensor that was read before does not wait for them."""
    for _ in range(50):
        x = ms.Tensor(np.ones((4, 8, 12), np.float32))
        assert (to_array(x) == 1).all()
        x.copy_(ms.mint.add(x, 0.0) * 2)
        assert (to_array(x) == 2).all()
