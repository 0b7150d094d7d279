"""RMSNorm of received rows as one tile operation, forward and backward, against JAX and float64: on the interpreter, the
CPU, the simulator and the Ascend kernel's emulator."""

import jax
import jax.numpy as jnp
import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import ProgramRun, bf16, from_seed
from mindspore import ops

import hpmoe
from hpmoe import ShapeDtypeStruct, trace
from hpmoe.autodiff.vjp import linearize
from hpmoe.tile_ops.norms import RMS_NORM, RMS_NORM_GRAD, rms_norm_grad

EPS = 0.1  # large enough to be seen


def normed(x):
    return hpmoe.token_ops.rms_norm_rows(x, eps=EPS)


def layer(x, topk_ids, topk_weights, gain, w1, w2):
    rows, routing = hpmoe.dispatch(x, topk_ids, num_local_experts=4)
    rows = hpmoe.token_ops.rms_norm_rows(rows, eps=EPS) * gain
    rows = hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, w1, routing)), w2, routing)
    return hpmoe.combine(rows, routing, topk_weights)


def in_jax(x, topk_ids, topk_weights, gain, w1, w2):
    scaled = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * gain
    hidden = jnp.einsum("th,ehf->tef", scaled, w1)
    gate, up = jnp.split(hidden, 2, -1)
    out = jnp.einsum("tei,eih->teh", jax.nn.silu(gate) * up, w2)
    return jnp.einsum("tkh,tk->th", jnp.take_along_axis(out, topk_ids[..., None], 1), topk_weights)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    floats = [rng.standard_normal(s).astype(np.float32) for s in ((9, 12), (9, 2), (12,), (4, 12, 10), (4, 5, 12))]
    ids = np.argsort(rng.random((9, 4)), axis=1)[:, :2].astype(np.int32)
    return floats[0], ids, *floats[1:]


def scheduled(f, target="cpu"):
    machine = hpmoe.cpu(2) if target == "cpu" else hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2)
    return hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(f, rows=4, cols=8)), machine=machine)


def fused(f, target="cpu"):
    return hpmoe.fuse_persistent(scheduled(f, target), target=target)


@pytest.mark.parametrize("target", ["cpu", "ascend-emulator"])
def test_a_layer_and_its_gradients_equal_jax(arrays, target):
    """Compares MindSpore op by op, the interpreter and the kernel."""
    grad_by = (0, 2, 3, 4, 5)
    want = in_jax(*arrays)
    wanted = jax.grad(lambda *a: jnp.sum(jnp.sin(in_jax(*a))), grad_by)(*arrays)
    tensors = [ms.Tensor(a) for a in arrays]
    kernel = fused(layer, target)
    for f in (layer, kernel):
        np.testing.assert_allclose(f(*tensors).asnumpy(), want, rtol=1e-4, atol=1e-5)
    (interpreted,), = hpmoe.interpret(scheduled(layer, target).lower(*tensors), [arrays])
    np.testing.assert_allclose(interpreted, want, rtol=1e-4, atol=1e-5)
    got = ms.grad(lambda *a: ops.sum(ops.sin(kernel(*a))), grad_by)(*tensors)
    for name, g, w in zip(("x", "weights", "gain", "w1", "w2"), got, wanted, strict=True):
        np.testing.assert_allclose(g.asnumpy(), w, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("direction, primitive", [("forward", RMS_NORM), ("backward", RMS_NORM_GRAD)])
def test_it_is_one_task_for_a_tile_of_rows(arrays, direction, primitive):
    flow = scheduled(layer, "ascend-emulator").lower(*map(ms.Tensor, arrays), direction=direction)
    number, = (i for i, op in enumerate(flow.ops) if op.primitive is primitive)
    line = hpmoe.simulate(flow, hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2))
    assert np.all(line.end[flow.tasks["op"][line.task] == number] > 0)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("aval", [bf16(19, 72), ShapeDtypeStruct((3, 9001), "float32"),
                                  ShapeDtypeStruct((5, 4, 24), "float16"), bf16(7, 1)],
                         ids=str)
def test_the_kernel_equals_float64_in_any_order(monkeypatch, aval, direction):
    program = trace(normed, aval)
    run, seen = ProgramRun(program if direction == "forward" else linearize(program).backward), set()
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        seen.add(b"".join(a.tobytes() for a in run.assert_close_to_float64()))
    assert len(seen) == 1


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 3e-3)])
def test_every_dtype_on_the_cpu(dtype, tolerance):
    x = np.random.default_rng(1).standard_normal((33, 700)).astype(np.float32)
    given = ms.Tensor(x).astype(getattr(ms, dtype))
    exact = given.astype(ms.float32).asnumpy().astype(np.float64)
    exact = exact / np.sqrt(np.mean(exact ** 2, -1, keepdims=True) + EPS)
    got = fused(normed)(given)
    assert got.dtype == given.dtype
    np.testing.assert_allclose(got.astype(ms.float32).asnumpy(), exact, rtol=tolerance, atol=tolerance)


def test_large_rows_have_gradients_op_by_op():
    """Elements of 1e16 have a cube that float32 cannot hold."""
    x, w = (np.random.default_rng(2).standard_normal((3, 8)) for _ in range(2))
    x = (x * 1e16).astype(np.float32)
    weight = ms.Tensor(w.astype(np.float32))
    got = ms.grad(lambda a: (hpmoe.token_ops.rms_norm_rows(a) * weight).sum())(ms.Tensor(x)).asnumpy()
    np.testing.assert_allclose(got, rms_norm_grad(w, x.astype(np.float64), 1e-6), rtol=1e-4, atol=1e-21)


@pytest.mark.parametrize("x, eps, words", [
    (ms.Tensor([1.0, 2.0]), EPS, "rms_norm_rows: x is of shape .*; it must be rows"),
    (ms.Tensor([[1.0, 2.0]]), 0.0, "rms_norm_rows: eps is 0.0; it must be a positive number"),
    (ms.Tensor([[1.0, 2.0]]), 1e-60, "rms_norm_rows: eps is 1e-60; it must be a positive number that float32 holds"),
    (ms.Tensor([[1.0, 2.0]]), 10**400, "rms_norm_rows: eps is 10"),
    (ms.Tensor([[1.0, 2.0]]), "small", "rms_norm_rows: eps is 'small'; it must be a positive number"),
])
def test_what_it_cannot_take_is_said(x, eps, words):
    with pytest.raises(hpmoe.ArgumentError, match=words):
        hpmoe.token_ops.rms_norm_rows(x, eps)
