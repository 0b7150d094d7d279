"""Strided columns, [R, heads, N] rows and reshapes across a token's own row, at stages in turn against JAX in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Layer, assert_close, entry_weights, jax_vjp, run_spmd, some_stages, stages, tensors, token_mask
from mindspore import mint

import hpmoe

H, HEADS, N = 12, 3, 4


def heads(rows):
    return rows.reshape(-1, HEADS, N)


def flat(rows):
    return rows.reshape(-1, rows.shape[1] * rows.shape[2])


def cut(rows):
    """`heads` in JAX, on any leading axes."""
    return rows.reshape(*rows.shape[:-1], HEADS, N)


def joined(rows):
    return rows.reshape(*rows.shape[:-2], -1)


def rms_norm(h, mean, rsqrt, weight):
    return h * rsqrt(mean(h * h) + 1e-6) * weight


# For each change of received rows: in MindSpore, in JAX on any leading axes, and the shapes of further weights.
CHANGES = {
    "every second": (lambda r: r[:, ::2] * r[:, 1::2], lambda r: r[..., ::2] * r[..., 1::2], ()),
    "every third, from within": (lambda r: r[:, 1:11:3] - r[..., 2::3], lambda r: r[..., 1:11:3] - r[..., 2::3], ()),
    "a step past the end": (lambda r: r[:, 3::99] * r[:, :4], lambda r: r[..., 3::99] * r[..., :4], ()),
    "columns of heads": (lambda r: flat(heads(r)[..., 1::2]), lambda r: joined(cut(r)[..., 1::2]), ()),
    "softmax over heads": (lambda r: flat(mint.softmax(heads(r), 1)), lambda r: joined(jax.nn.softmax(cut(r), -2)), ()),
    "a norm of heads": (
        lambda r, w: flat(rms_norm(heads(r), lambda h: mint.mean(h, -1, keepdim=True), mint.rsqrt, w)),
        lambda r, w: joined(rms_norm(cut(r), lambda h: h.mean(-1, keepdims=True), jax.lax.rsqrt, w)), ((N,),)),
    "weights of heads": (lambda r, a, b: flat(heads(r) * a + b), lambda r, a, b: joined(cut(r) * a + b),
                         ((HEADS, 1), (HEADS, N))),
    "one matrix for all heads": (lambda r, w: flat(mint.matmul(heads(r), w)), lambda r, w: joined(cut(r) @ w), ((N, 5),)),
    "a matrix for each head": (
        lambda r, w: mint.cat([mint.matmul(heads(r)[:, i], w[i]) for i in range(HEADS)], -1),
        lambda r, w: joined(jnp.einsum("...hn,hnm->...hm", cut(r), w)), ((HEADS, N, 5),)),
    "SwiGLU of heads": (lambda r: flat(hpmoe.swiglu(heads(r))), lambda r: joined(
        jax.nn.silu(cut(r)[..., :N // 2]) * cut(r)[..., N // 2:]), ()),
    "rotated heads": (
        lambda r: flat(mint.cat([-heads(r)[..., N // 2:], heads(r)[..., :N // 2]], -1)) * r,
        lambda r: joined(jnp.concatenate([-cut(r)[..., N // 2:], cut(r)[..., :N // 2]], -1)) * r, ()),
    "put in turn": (lambda r: mint.cat([r[:, :6, None], r[:, 6:, None]], -1).reshape(-1, H) * r,
                    lambda r: joined(jnp.stack([r[..., :6], r[..., 6:]], -1)) * r, ()),
    "the largest of a head": (lambda r: flat(heads(r) * mint.amax(heads(r), -1, keepdim=True)),
                              lambda r: joined(cut(r) * cut(r).max(-1, keepdims=True)), ()),
    "each head in order, and its sums": (
        lambda r: flat(mint.topk(heads(r), 2, dim=-1)[0] * mint.cumsum(heads(r), -1)[..., 1:3]),
        lambda r: joined(-jnp.sort(-cut(r), -1)[..., :2] * jnp.cumsum(cut(r), -1)[..., 1:3]), ()),
    "heads by an order of their own": (
        lambda r: flat(mint.gather(heads(r), -1, mint.argsort(heads(r), dim=-1)[..., 1:3]) * mint.scatter_add(
            mint.zeros_like(heads(r)), -1, mint.argsort(heads(r), dim=-1), heads(r) * 2.0)[..., :2]),
        lambda r: joined(jnp.sort(cut(r), -1)[..., 1:3] * jnp.take_along_axis(
            cut(r) * 2.0, jnp.argsort(jnp.argsort(cut(r), -1), -1), -1)[..., :2]), ()),
    "heads transposed": (lambda r: flat(mint.transpose(heads(r), 1, 2)) * flat(mint.cumsum(heads(r), 1)),
                     lambda r: joined(jnp.swapaxes(cut(r), -1, -2)) * joined(jnp.cumsum(cut(r), -2)), ()),
}
UNEVEN = Layer(ep=3, T=4, H=H, E=6, num_tokens=(0, 4, 1))


def stages_of(name):
    """Returns the kernel, and in turn the plain function or a level between them."""
    place = list(CHANGES).index(name)
    plain, between, last = some_stages(place)
    return map(stages().get, (between if place % 3 else plain, last))


def with_change(change):
    """A layer whose received rows are multiplied, changed, and go back."""
    def layer(x, ids, weights, expert_weight, *more):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=expert_weight.shape[0])
        return hpmoe.combine(change(hpmoe.grouped_matmul(rows, expert_weight, route), *more), route, weights)
    return layer


def arguments(layer, shapes):
    rng = np.random.default_rng(2)
    x, ids, weights, *_ = layer.arguments()
    local = rng.standard_normal((layer.ep, layer.E // layer.ep, H, H)).astype(np.float32) / 4
    one = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return [x, ids, weights, local, *(np.repeat(a[None], layer.ep, 0) for a in one)]


@pytest.mark.parametrize("name", CHANGES)
def test_received_rows(name):
    change, in_jax, shapes = CHANGES[name]
    args, ep = arguments(UNEVEN, shapes), UNEVEN.ep
    mask = token_mask(args[0].shape, UNEVEN.num_tokens)

    def oracle(x, ids, weights, local, *more):
        rows = jnp.einsum("rth,rtkhn->rtkn", x, entry_weights(local, ids))
        changed = jnp.stack([in_jax(rows[r], *(m[r] for m in more)) for r in range(ep)])
        return jnp.einsum("rtk,rtkh->rth", weights, changed) * mask

    positions = [0, 2, 3]
    width = jax.eval_shape(oracle, *args).shape
    cotangent = np.random.default_rng(3).standard_normal(width).astype(np.float32)
    want, want_grads = jax_vjp(oracle, args, cotangent, positions)
    for stage in stages_of(name):
        (out,), grads = run_spmd(stage(with_change(change)), ep, args, [cotangent], UNEVEN.num_tokens, positions)
        assert_close([out, *grads], [want, *want_grads])


@pytest.mark.parametrize("name", [name for name, (_, _, shapes) in CHANGES.items() if shapes])
def test_gradients_of_shared_weights(name):
    """On one rank, where they are of all rows."""
    change, in_jax, shapes = CHANGES[name]
    layer = Layer(ep=1, T=5, H=H)
    args = arguments(layer, shapes)

    def oracle(x, ids, weights, local, *more):
        rows = jnp.einsum("rth,rtkhn->rtkn", x, entry_weights(local, ids))
        return jnp.einsum("rtk,rtkh->rth", weights, in_jax(rows[0], *(m[0] for m in more))[None])

    cotangent = np.ones(jax.eval_shape(oracle, *args).shape, np.float32)
    positions = list(range(4, len(args)))
    want, want_grads = jax_vjp(oracle, args, cotangent, positions)
    for stage in stages_of(name):
        (out,), grads = run_spmd(stage(with_change(change)), 1, args, [cotangent], positions=positions)
        assert_close([out, *grads], [want, *want_grads])


@pytest.mark.parametrize("name", CHANGES)
def test_tokens(name):
    """Without a route, a padded array is changed as the plain function changes the rows before the padding, which is NaN."""
    change, _, shapes = CHANGES[name]
    rng = np.random.default_rng(4)
    args = [rng.standard_normal((2, 5, H)).astype(np.float32),
            *(np.repeat(rng.standard_normal(s).astype(np.float32)[None], 2, 0) for s in shapes)]
    mask = token_mask(args[0].shape, (3, 0))
    f = lambda x, *more: change(x * 1.5, *more)  # noqa: E731

    width, positions = hpmoe.spmd(f, hpmoe.Mesh(2))(*tensors(args)).shape[-1], list(range(len(args)))
    cotangent = rng.standard_normal((2, 5, width)).astype(np.float32) * mask
    (want,), want_grads = run_spmd(f, 2, args, [cotangent], positions=positions)
    given = [np.where(mask, args[0], np.nan).astype(np.float32), *args[1:]]
    _, between, last = some_stages(list(CHANGES).index(name))
    for stage in (between, last):
        (out,), grads = run_spmd(stages()[stage](f), 2, given, [cotangent], (3, 0), positions)
        assert_close([out, *grads], [want * mask, *want_grads])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_move_as_they_are(dtype):
    """Picked and placed elements are the very bits."""
    layer = Layer(ep=1, T=5, H=H)
    x, ids, *_ = layer.arguments()
    half = hpmoe.support.dtypes.rounded(x[0], dtype)

    def f(x, ids):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=4)
        return hpmoe.combine(mint.cat([rows[:, 1::2], rows[:, ::2]], -1), route)

    fused = stages()["fused"](f)
    got = fused(*tensors([half, ids[0]])).asnumpy()
    want = 2 * half.astype(np.float32)[:, [*range(1, H, 2), *range(0, H, 2)]]
    assert np.array_equal(got.astype(np.float32), want)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(dtype):
    """One-hot of choices, summed over them, is how experts are counted; what does not fit wraps around."""
    ids = np.argsort(np.random.default_rng(5).random((5, 4)), -1)[:, :2].astype(dtype)
    big = (ids - 1) * np.array(np.iinfo(dtype).max // 2, dtype)

    def f(ids, big):
        hot = mint.nn.functional.one_hot(ids, 4)
        pairs = mint.stack([big, big], 1)  # [T, 2, 2]
        transposed = mint.transpose(pairs * ids[:, None], 1, 2)
        return hot.sum(1), hot.sum(1).sum(0), mint.amax(hot, 1), mint.cumsum(hot, 1), pairs.sum(1), transposed

    hot = (ids[..., None] == np.arange(4)).astype(np.int64)
    pairs = np.stack([big, big], 1)
    with np.errstate(over="ignore"):
        want = [hot.sum(1), hot.sum((0, 1)), hot.max(1), hot.cumsum(1), pairs.sum(1), (pairs * ids[:, None]).swapaxes(1, 2)]
    for stage in ("tiles", "overlap", "fused"):  # MindSpore has no one_hot on CPUs
        for got, by_numpy in zip(stages()[stage](f)(*tensors([ids, big])), want, strict=True):
            np.testing.assert_array_equal(got.asnumpy(), by_numpy)
