"""Random numbers inside a traced function are refused; what only looks like a draw is not."""

import random
import threading

import mindspore as ms
import numpy as np
from helpers import Layer, tensors
from mindspore import Tensor, mint, nn

import hpmoe
from hpmoe.tracing import trace
from hpmoe.tracing.draws import states

X = hpmoe.ShapeDtypeStruct((3, 4), "float32")


def test_tracing_and_planning_draw_nothing():
    before, ms_before = states(), ms.get_rng_state().asnumpy().tolist()
    layer = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)(hpmoe.moe_ffn)
    args = tensors(a[0] for a in Layer(ep=1).arguments())
    ms.grad(lambda *args: layer(*args).sum(), 0)(*args)
    assert states() == before and ms.get_rng_state().asnumpy().tolist() == ms_before


def test_draws_of_other_threads_are_none_of_the_function():
    """They happen while the function runs, every time."""
    asked, done, stop = threading.Event(), threading.Event(), threading.Event()

    def draw():
        while not stop.is_set():
            if asked.wait(0.01):
                asked.clear()
                random.random()
                np.random.rand()
                mint.abs(Tensor([1.0]))
                done.set()

    def f(x):
        done.clear()
        asked.set()
        assert done.wait(60)
        return x * 2.0

    other = threading.Thread(target=draw)
    other.start()
    try:
        assert len(trace(f, X).equations) == 1
    finally:
        stop.set()
        other.join()


def test_a_layer_that_is_made_at_its_first_call_is_no_draw():
    class Lazy(nn.Cell):
        def __init__(self):
            super().__init__()
            self.linear = None

        def construct(self, x):
            if self.linear is None:
                self.linear = mint.nn.Linear(4, 2)
            return self.linear(x)

    lazy, x = Lazy(), Tensor(np.ones((3, 4), np.float32))
    fused = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(lazy)))
    np.testing.assert_allclose(fused(x).asnumpy(), lazy(x).asnumpy(), atol=1e-6)  # 5 terms of at most 0.5, which may cancel


def test_dropout_that_is_off_is_traced():
    off = mint.nn.Dropout(0.5)
    off.set_train(False)
    for f in (off, nn.Dropout(p=0.5), lambda x: mint.nn.functional.dropout(x, 0.5, training=False)):
        assert len(trace(lambda x, f=f: f(x) + 1.0, X).equations) == 1


def test_generators_work_as_before_once_a_draw_was_refused():
    own = ms.Generator()
    for draw in (lambda: mint.rand((3, 4), generator=own), lambda: ms.ops.randn(3, 4), random.random):
        try:
            trace(lambda x, draw=draw: x + draw(), X)
        except hpmoe.TraceError:
            pass
        else:
            raise AssertionError("a draw is not refused")
    assert ms.ops.randn(3, 4).shape == (3, 4) and 0 <= random.random() < 1
