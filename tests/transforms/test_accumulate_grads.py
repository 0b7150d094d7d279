"""accumulate_grads: main gradients grow by exactly what the gradients are, at every stage, in place."""

import mindspore as ms
import numpy as np
import pytest
from helpers import DIFFERENTIABLE, Layer, assert_close, run_spmd, stages, tensors

import hpmoe
from hpmoe import ArgumentError, accumulate_grads, chain, save_for_backward

WEIGHTS = ("gate_up_weight", "down_weight")


def start(shape, seed=5):
    return ms.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("stage", stages())
def test_main_gradients_grow_by_the_gradients(stage):
    others = Layer(ep=1, T=4, E=3, K=2), Layer(ep=2, T=3, E=8, K=1, routing="one rank")
    for layer in (Layer(ep=2, T=5), *others * (stage == "fused")):
        args, cotangent = layer.arguments(), layer.cotangent()
        outs, grads = run_spmd(stages()[stage](hpmoe.moe_ffn), layer.ep, args, [cotangent])
        mains = {name: start(a.shape) for name, a in zip(WEIGHTS, args[3:], strict=True)}
        before = [m.asnumpy().copy() for m in mains.values()]
        f = stages()[stage](accumulate_grads(hpmoe.moe_ffn, into=mains))
        for times in (1, 2):
            again, left = run_spmd(f, layer.ep, args, [cotangent])
            assert_close([*again, *left[:2]], [*outs, *grads[:2]])
            assert not left[2].any() and not left[3].any()
            want = [m + times * g for m, g in zip(before, grads[2:], strict=True)]
            assert_close([m.asnumpy() for m in mains.values()], want, f"{stage} after {times}")


def test_the_kernel_writes_the_main_gradient_itself():
    layer = Layer(ep=2, T=6)
    args = tensors(layer.arguments())
    mains = {name: ms.ops.zeros(a.shape) for name, a in zip(WEIGHTS, args[3:], strict=True)}
    f = accumulate_grads(hpmoe.moe_ffn, into=mains)
    text = str(hpmoe.spmd(f, hpmoe.Mesh(2)).lower(*args, direction="backward"))
    assert text.splitlines()[0] == "# moe_ffn_vjp | accumulate_grads(into=gate_up_weight, down_weight)"
    assert [line.split()[-1] for line in text.splitlines() if "= grouped_weight_grad" in line] == [
        "main_down_weight", "main_gate_up_weight"]


def test_native_launch_writes_where_it_is_told():
    add = stages()["fused"](lambda x, y: x + y)
    x, y = np.ones((5, 4), np.float32), np.full((5, 4), 2.0, np.float32)
    kernel = add.lower(*tensors([x, y]))
    ((out,),) = kernel.run([[x, y]], into={0: [y]})
    assert np.shares_memory(out, y) and (y == 3.0).all()


def test_dense_weights_sums_of_gradients_and_other_uses():
    rng = np.random.default_rng(3)
    x, w, b = (ms.Tensor(rng.standard_normal(s).astype(np.float32)) for s in ((7, 4), (4, 4), (4,)))

    def f(x, w, b):
        return ((x @ w) @ w + b) * b

    def loss(g):
        return ms.grad(lambda x, w, b: g(x, w, b).sum() + (b * b).sum(), (0, 1, 2))

    want = [g.asnumpy() for g in loss(f)(x, w, b)]
    for stage in stages().values():
        mains = {"w": start((4, 4)), "b": start((4,))}
        before = {n: m.asnumpy().copy() for n, m in mains.items()}
        dx, dw, db = (g.asnumpy() for g in loss(stage(accumulate_grads(f, into=mains)))(x, w, b))
        assert_close([dx, db], [want[0], 2 * b.asnumpy()])  # the part of the loss outside f comes back as a gradient
        assert not dw.any()
        assert_close([mains["w"].asnumpy(), mains["b"].asnumpy()],
                     [before["w"] + want[1], before["b"] + want[2] - 2 * b.asnumpy()])


def test_main_gradients_that_are_views_of_one_buffer():
    rng = np.random.default_rng(7)
    x, a, b = (ms.Tensor(rng.standard_normal(s).astype(np.float32)) for s in ((7, 4), (4, 3), (4, 3)))
    flat = start((30,))
    before, want = flat.asnumpy().copy(), np.zeros(30)
    want[2:14] = want[14:26] = np.repeat(x.asnumpy().sum(0), 3)
    mains = {"a": flat[2:14].view(4, 3), "b": flat[14:26].view(4, 3)}
    f = stages()["fused"](accumulate_grads(lambda x, a, b: x @ a + x @ b, into=mains))
    ms.grad(lambda x, a, b: f(x, a, b).sum(), (0, 1, 2))(x, a, b)
    assert_close([flat.asnumpy()], [before + want])
    mains["b"] = flat[13:25].view(4, 3)
    with pytest.raises(ArgumentError, match=r"into\['b'\] is in the memory of into\['a'\]; it must be memory of its own"):
        accumulate_grads(lambda x, a, b: x @ a + x @ b, into=mains)(x, a, b)


def test_parameters_of_a_cell_under_other_transforms():
    weight = ms.Parameter(ms.Tensor(np.ones((4, 3), np.float32)), name="weight")
    main = ms.ops.zeros((4, 3))
    first = chain(accumulate_grads(into={"weight": main}), save_for_backward(policy="everything"))
    f = stages()["fused"](first(lambda x: x @ weight))
    x = ms.Tensor(np.arange(8, dtype=np.float32).reshape(2, 4))
    ms.value_and_grad(lambda x: f(x).sum(), None, (weight,))(x)
    assert main.asnumpy().tolist() == [[4.0] * 3, [6.0] * 3, [8.0] * 3, [10.0] * 3]


@pytest.mark.parametrize("stage", ("plain", "queues", "fused"))
def test_half_precision_weights_have_float32_main_gradients(stage):
    x, w = (ms.Tensor(np.random.default_rng(i).standard_normal(s).astype(np.float32)).astype(ms.bfloat16)
            for i, s in enumerate(((9, 4), (4, 3))))
    main = start((4, 3))
    before = main.asnumpy().copy()
    f = stages()[stage](accumulate_grads(lambda x, w: (x @ w).astype(ms.float32), into={"w": main}))
    dw = ms.grad(lambda w: f(x, w).sum())(w)
    assert dw.dtype == ms.bfloat16 and not dw.astype(ms.float32).asnumpy().any()
    wide = x.astype(ms.float32).asnumpy().astype(np.float64)
    assert_close([main.asnumpy()], [before + wide.T @ np.ones((9, 3))], tolerance=1e-6)


assert DIFFERENTIABLE == (0, 2, 3, 4)  # grads[2:] above are those of the weights
