"""Script of test_world.py on two ranks, of which the second has no tokens: as on virtual ranks with num_tokens=[T, 0]."""

import mindspore as ms
import numpy as np
from whole_lines import say

import hpmoe

mesh = hpmoe.world()
me, EP, S, H, W, E, K = mesh.rank, mesh.size, 3, 8, 4, 2 * mesh.size, 2
T, rng = 2 * S, np.random.default_rng(0)
x, up, down = (rng.standard_normal(s).astype(np.float32) for s in ((EP, T, H), (EP, 2, H, 2 * W), (EP, 2, W, H)))
ids, weights = rng.random((EP, T, E)).argsort(-1)[..., :K].astype(np.int32), rng.random((EP, T, K)).astype(np.float32)
virtual, lengths = hpmoe.Mesh(EP), [T] + [0] * (EP - 1)
to_kernel = hpmoe.chain(hpmoe.tile_partition(rows=8, cols=8), hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def same(mine, whole):
    """This rank's part of what virtual ranks have; a rank without tokens has their rows of it, none."""
    whole = whole.asnumpy()[me]
    assert mine.asnumpy().tobytes() == (whole if mine.shape == whole.shape else whole[:0]).tobytes(), (mine, whole)


def own(arrays, rows):
    """This rank's part of arrays; of the first ones, which are of tokens, no rows where it has none."""
    return [ms.Tensor(a[me][:0] if me and i < rows else a[me]) for i, a in enumerate(arrays)]


def gradients(layer, args, **options):
    def loss(*args):
        out = layer(*args, **options)
        return (out * out).sum(), out
    return ms.value_and_grad(loss, (0, 2, 3, 4), has_aux=True)(*args)


for stage in (hpmoe.chain(), hpmoe.tile_partition(rows=8, cols=8), to_kernel):
    arrays = x, ids, weights, up, down
    (_, mine), grads = gradients(hpmoe.spmd(stage(hpmoe.moe_ffn), mesh), own(arrays, 3))
    (_, whole), all_grads = gradients(hpmoe.spmd(stage(hpmoe.moe_ffn), virtual), [ms.Tensor(a) for a in arrays],
                                      num_tokens=lengths)
    [same(a, b) for a, b in zip((mine, *grads), (whole, *all_grads), strict=True)]
    if me == 0:  # by one token after the other, in float64
        gate_up, last = (a.astype(np.float64).reshape(E, *a.shape[2:]) for a in (up, down))
        for t, token in enumerate(x[0].astype(np.float64)):
            hidden = [token @ gate_up[e] for e in ids[0, t]]
            want = sum(w * (h[:W] / (1 + np.exp(-h[:W])) * h[W:]) @ last[e]
                       for w, h, e in zip(weights[0, t], hidden, ids[0, t], strict=True))
            np.testing.assert_allclose(mine.asnumpy()[t], want, rtol=2e-5, atol=1e-5)


def trained(ranks, kind, x, **options):
    """The output, the loss and the gradients of a layer."""
    ms.set_seed(7)
    layer = hpmoe.nn.MoELayer(hidden_size=H, moe_ffn_hidden_size=W, num_moe_experts=E, moe_router_topk=K, mesh=ranks,
                              moe_router_load_balancing_type=kind, moe_aux_loss_coeff=0.1, moe_z_loss_coeff=0.01,
                              init_method_std=0.5)

    def f(x):
        out, loss = layer(x, with_losses=True, **options)
        return (out * out).sum() + loss, (out, loss)
    (_, (out, loss)), (d_x, grads) = ms.value_and_grad(f, 0, layer.trainable_params(), has_aux=True)(ms.Tensor(x))
    return layer, out, loss, d_x, grads


for kind in ("aux_loss", "seq_aux_loss"):
    batch = x.reshape(EP, 2, S, H)
    _, whole, whole_loss, d_whole, whole_grads = trained(virtual, kind, batch, num_tokens=lengths)
    for nothing in (np.zeros((0, S, H), np.float32), np.zeros((2, 0, H), np.float32)):
        layer, out, loss, d_x, grads = trained(mesh, kind, batch[0] if me == 0 else nothing)
        same(out, whole)
        same(d_x, d_whole)
        loss, d_router = hpmoe.all_reduce_gradients((loss, grads[0]), mesh)
        np.testing.assert_allclose(loss.asnumpy(), whole_loss.asnumpy(), rtol=1e-6)
        np.testing.assert_allclose(d_router.asnumpy(), whole_grads[0].asnumpy(), rtol=1e-5, atol=1e-6)
        for mine, all_ranks in zip(grads[1:], whole_grads[1:], strict=True):
            assert mine.asnumpy().tobytes() == np.split(all_ranks.asnumpy(), EP)[me].tobytes()
        assert layer.tokens_per_expert.asnumpy().sum() == (0 if me else T * K)
    _, out, loss, d_x, grads = trained(mesh, kind, batch[me][:0])  # no rank has tokens
    assert out.shape == d_x.shape == (0, S, H) and float(loss) == 0 and not any(g.asnumpy().any() for g in grads)

layer = hpmoe.spmd(to_kernel(hpmoe.moe_ffn), mesh)


@ms.jit
def in_graph(*args):
    return layer(*args)


given = own((x, ids, weights, up, down), 3)
found = in_graph(*given) if me == 0 else layer(*given)  # a graph has no arrays without rows; other ranks may be in one
same(found, hpmoe.spmd(to_kernel(hpmoe.moe_ffn), virtual)(*map(ms.Tensor, (x, ids, weights, up, down)), num_tokens=lengths))

for rows, call in ((T - me, layer), (T - me, in_graph)):
    try:
        call(*(a[:rows] if i < 3 else a for i, a in enumerate(own((x, ids, weights, up, down), 0))))
    except Exception as error:
        say(f"rank {me} {type(error).__name__} {str(error).splitlines()[0]}")
same(layer(*own((x, ids, weights, up, down), 0)), hpmoe.spmd(to_kernel(hpmoe.moe_ffn), virtual)(
    *map(ms.Tensor, (x, ids, weights, up, down))))
say(f"rank {me} ends")
