"""Every way a function cannot be traced: the error names the call, the line, and what to write instead."""

import inspect
import re
import weakref

import mindspore as ms
import pytest
from mindspore import Tensor, mint, nn, ops
from untraceable import CATALOGUE, WEIGHT, X, branch, square_sum

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.support.errors import ArgumentError, TraceError
from hpmoe.tracing import pynative, trace
from hpmoe.tracing.tracer import Tracer


def test_error_names_the_call_the_line_and_what_to_write_instead():
    """test_every_error.py compares the texts of the whole catalogue."""
    with pytest.raises(TraceError, match=r"into a number.* is not traceable: ") as caught:
        trace(CATALOGUE["int"], X)
    lines = str(caught.value).split("\n")
    assert lines[2].startswith("  write instead: ") and re.fullmatch(r"  at (tests/support/)?untraceable\.py:\d+", lines[1])


def test_rows_of_two_routes_are_said_to_be_of_two():
    def f(x, ids, others):
        (rows, route), (more, _) = (dispatch(x, i, num_local_experts=2) for i in (ids, others))
        return combine(rows + more, route)

    ids = ShapeDtypeStruct((3, 2), "int32")
    with pytest.raises(ArgumentError, match=r"\(R, 4\) and \(R, 4\).*Received rows of two routes are different rows"):
        trace(f, X, ids, ids)


def test_a_tracer_that_outlives_its_trace():
    kept = []
    trace(lambda x: (kept.append(x), x)[1], X)
    assert isinstance(kept[0], Tracer) and str(kept[0]) == "Tracer(f32[3,4])" and kept[0].shape == (3, 4)
    with pytest.raises(TraceError, match="finished trace"):
        mint.exp(kept[0])
    with pytest.raises(TraceError, match="another trace"):
        trace(lambda x: x + kept[0], X)


def test_the_first_error_is_raised_even_if_it_is_swallowed():
    def swallowing(x):
        try:
            ops.cumprod(x, 0)
        except TypeError:
            raise RuntimeError("MindSpore lost the type") from None

    def silent(x):
        try:
            return ops.cumprod(x, 0)
        except TypeError:
            return x

    for f in (swallowing, silent):
        with pytest.raises(TraceError, match="CumProd"):
            trace(f, X)


def test_the_users_own_errors_pass_unchanged():
    def f(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        trace(f, X)
    with pytest.raises(IndexError):
        trace(lambda x: x[7], X)


def test_the_line_is_the_users_also_inside_cells():
    class Cell(nn.Cell):
        def construct(self, x):
            return ops.cumprod(x, 0)

    line = inspect.getsourcelines(Cell.construct)[1] + 1
    with pytest.raises(TraceError, match=f"test_tracing_errors.py:{line}\n"):
        trace(Cell(), X)


def test_gradients_and_indexing_work_after_refused_gradients():
    for _ in range(3):
        with pytest.raises(TraceError):
            trace(lambda x: ms.grad(square_sum)(x), X)
    assert WEIGHT[0].shape == (4,)
    assert ms.grad(square_sum)(Tensor([1.0, 2.0])).asnumpy().tolist() == [2, 4]


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert trace(lambda x: x + 1.0, X).equations[0].source.startswith("test_tracing_errors.py:")
    with pytest.raises(TraceError, match="at untraceable.py:"):
        trace(branch, X)


def test_ctrl_c_at_the_end_of_a_trace_leaves_nothing_behind(monkeypatch):
    unpatch, calls = pynative._unpatch, []

    def interrupted(running):
        calls.append(running)
        if len(calls) == 1:
            raise KeyboardInterrupt
        unpatch(running)

    monkeypatch.setattr(pynative, "_unpatch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace(lambda x: x + 1.0, X)
    assert len(calls) == 2 and pynative.current_recorder() is None and "hpmoe_record" not in vars(Tensor)


def test_a_trace_that_is_gone_is_not_the_current_one():
    pynative._LOCAL.__dict__.setdefault("stack", []).append(weakref.ref(pynative._Running(None)))
    assert pynative.current_recorder() is None and not pynative._LOCAL.stack
