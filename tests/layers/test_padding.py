"""num_tokens: each rank computes what it would of arrays without padding, or the function is refused by name."""

import collections

import numpy as np
import pytest
from helpers import assert_close, stages, tensors
from mindspore import mint

import hpmoe
from hpmoe import ArgumentError, ShapeDtypeStruct, TransformError
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.tiling.tile_program import tile_program

T, H, LENGTHS = 6, 4, (2, 5)
F = mint.nn.functional
STAGES = ("plain", "tiles", "fused")


def arrays(seed=0):
    """x [T, H], a weight [H, H], a vector of tokens [T], a vector of columns [H]; of two ranks."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, *s)).astype(np.float32) for s in ((T, H), (H, H), (T,), (H,))]


# Without a dispatch: (what it computes, the same in NumPy on the rank's own rows). x comes first, so its rows are tokens.

KEPT = {
    "token by token": (lambda x, w, v, b: F.silu(x @ w + b), lambda x, w, v, b: (x @ w + b) / (1 + np.exp(-(x @ w + b)))),
    "a vector": (lambda x, w, v, b: (x.sum(-1) * v, x), lambda x, w, v, b: (x.sum(-1) * v, x)),
    "a sum over tokens": (lambda x, w, v, b: mint.exp(x @ w).sum(0), lambda x, w, v, b: np.exp(x @ w).sum(0)),
    "a sum over all": (lambda x, w, v, b: mint.exp(x).sum(), lambda x, w, v, b: np.exp(x).sum()),
    "a sum of a vector": (lambda x, w, v, b: (x * v.reshape(-1, 1), mint.exp(v).sum()),
                          lambda x, w, v, b: (x * v[:, None], np.exp(v).sum())),
    "a flat sum": (lambda x, w, v, b: mint.exp(x.reshape(-1)).sum(), lambda x, w, v, b: np.exp(x).sum()),
    "flat": (lambda x, w, v, b: mint.exp(x.reshape(-1)), lambda x, w, v, b: np.exp(x).reshape(-1)),
    "a norm": (lambda x, w, v, b: x / mint.sqrt((x * x).mean(-1, keep_dims=True) + 1.0),
               lambda x, w, v, b: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1)),
    "a sum broadcast back": (lambda x, w, v, b: x - mint.tanh(x.sum(0, keepdim=True)) * b,
                             lambda x, w, v, b: x - np.tanh(x.sum(0, keepdims=True)) * b),
    "a maximum of a token": (lambda x, w, v, b: mint.amax(x, -1), lambda x, w, v, b: x.max(-1)),
}


def assert_padded(out, want):
    """`out` begins with the elements of `want`, and the rest is zero."""
    flat, whole = out.reshape(-1), np.zeros(out.size)
    whole[:want.size] = want.reshape(-1)
    assert_close([flat], [whole])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", KEPT)
def test_a_rank_computes_what_it_would_of_its_own_rows(name, stage):
    f, in_numpy = KEPT[name]
    outs = hpmoe.spmd(stages()[stage](f), hpmoe.Mesh(2))(*tensors(arrays()), num_tokens=LENGTHS)
    for rank, n in enumerate(LENGTHS):
        x, w, v, b = (a[rank].astype(np.float64) for a in arrays())
        want = in_numpy(x[:n], w, v[:n], b)
        for out, one in zip(outs if isinstance(outs, tuple) else (outs,), want if isinstance(want, tuple) else (want,),
                            strict=True):
            assert_padded(out.asnumpy()[rank], np.asarray(one))


REFUSED = {
    "all with all": (lambda x, w, v, b: x @ mint.transpose(x, 0, 1),
                     "(matmul) of <lambda> mixes the rows of several tokens of f32[6,4]"),
    "a product with itself": (lambda w, x: w @ w, "(matmul)"),
    "one row": (lambda x, w, v, b: x.reshape(1, -1) * 2.0, "(reshape)"),
    "rows of two tokens": (lambda x, w, v, b: x.reshape(T // 2, -1) * 2.0, "(reshape)"),
    "one token for all": (lambda x, w, v, b: x + x[:1], "(slice)"),
    "the next token": (lambda x, w, v, b: mint.cat([x[1:], x[:1]], dim=0), "(slice)"),
    "twice as many": (lambda x, w, v, b: mint.cat([x, x], dim=0), "(concat)"),
    "transposed": (lambda x, w, v, b: mint.transpose(x, 0, 1), "(transpose)"),
    "a mean": (lambda x, w, v, b: x.mean(0), "(reduce_sum) of <lambda> takes a mean over tokens, and would divide"),
    "a mean of all": (lambda x, w, v, b: x.mean(), "takes a mean over tokens"),
    "a variance": (lambda x, w, v, b: x.var(0), "takes a mean over tokens"),
    "a maximum": (lambda x, w, v, b: mint.amax(x, 0), "(reduce_max) of <lambda> takes a maximum over tokens"),
    "a softmax": (lambda x, w, v, b: F.softmax(x, dim=0), "takes a maximum over tokens"),
    "tokens as columns": (lambda x, w, v, b: (x * v.reshape(-1, 1), w[:1].reshape(H, 1) * v),
                          "(mul) of <lambda> mixes the rows"),
    "a sum of pairs": (lambda x, w, v, b: x.reshape(T // 2, 2, H).sum(1), "mixes the rows of several tokens of f32[3,2,4]"),
    "columns of pairs": (lambda x, w, v, b: x.reshape(T // 2, 2, H).sum(-1),
                         "mixes the rows of several tokens of f32[3,2,4]"),
    "tokens by an index": (lambda x, i: x[i], "(gather) of <lambda> picks rows of f32[6,4], which are tokens, by an index"),
    "permuted": (lambda x, i: hpmoe.token_ops.permute(x, i)[0], "(permute) of <lambda> mixes the rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_count_padding_in_is_refused(name):
    f, words = REFUSED[name]
    args = arrays()
    if f.__code__.co_varnames[:2] == ("w", "x"):
        args = [args[1], args[0]]
    elif f.__code__.co_varnames[:2] == ("x", "i"):
        args = [args[0], np.zeros((2, T), np.int32)]
    layer, lengths = hpmoe.spmd(f, hpmoe.Mesh(2)), (2, 3)
    layer(*tensors(args))
    for call in (layer, layer.interpret):
        with pytest.raises(ArgumentError) as error:
            call(*tensors(args), num_tokens=lengths)
        text = str(error.value)
        assert text.startswith("spmd: num_tokens is [2, 3]; it must be left out: equation ") and words in text
        assert "\n  > " in text and "written at " in text and "test_padding.py:" in text
    program = hpmoe.trace(f, *(ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in args), mesh=hpmoe.Mesh(2))
    with pytest.raises(ArgumentError, match="hpmoe.interpret: num_tokens is "):
        interpret(program, [[a[r] for a in args] for r in range(2)], lengths)


def test_more_tokens_than_rows_and_functions_without_tokens():
    double = hpmoe.spmd(stages()["fused"](lambda x: x * 2.0), hpmoe.Mesh(2))
    with pytest.raises(ArgumentError, match=r"num_tokens is \[2, 7\]; it must be at most 6, the rows of x\."):
        double(*tensors(arrays()[:1]), num_tokens=(2, 7))
    words = r"num_tokens is \[0, 0\]; it must be left out, as <lambda> has no rows of tokens: x has none\."
    with pytest.raises(ArgumentError, match=words):
        double(*tensors([np.ones(2, np.float32)]), num_tokens=(0, 0))


# Random functions of tokens against the same on fewer rows, values and gradients; rows past them hold NaN.

def one_of(rng, a):
    """A random step on an array, as a function; it may not fit."""
    rows, axis = a.shape[0], int(rng.integers(len(a.shape)))
    last = len(a.shape) - 1
    return [
        lambda a, w, b: mint.exp(-a * a), lambda a, w, b: a + b, lambda a, w, b: a @ w, lambda a, w, b: mint.tanh(a + 1.0),
        lambda a, w, b: a * mint.sum(a, dim=-1, keepdim=True), lambda a, w, b: mint.sum(a, dim=axis),
        lambda a, w, b: mint.sum(a, dim=axis, keepdim=True) + a, lambda a, w, b: mint.amax(a, dim=axis),
        lambda a, w, b: mint.mean(a, dim=axis), lambda a, w, b: a.reshape(-1), lambda a, w, b: a.reshape(a.shape[0], 2, -1),
        lambda a, w, b: a.reshape(a.shape[0] * 2, -1), lambda a, w, b: a.reshape(1, *a.shape),
        lambda a, w, b: a.reshape(-1, 4),
        lambda a, w, b: a.reshape(-1, 2), lambda a, w, b: a.swapaxes(0, last),
        lambda a, w, b: a.swapaxes(max(0, last - 1), last),
        lambda a, w, b: mint.cat([a, a], dim=axis), lambda a, w, b: a[:1] + a, lambda a, w, b: a[..., :1] * a,
        lambda a, w, b: F.softmax(a, dim=axis), lambda a, w, b: a + mint.sum(a, dim=-1).reshape(rows, 1),
    ][int(rng.integers(22))]


def random_function(rng):
    steps = rng.integers(0, 2 ** 31, size=int(rng.integers(2, 6)))

    def f(x, w, b):
        values = [x]
        for seed in steps:
            rng = np.random.default_rng(seed)
            a = values[-1 if rng.random() < 0.8 else int(rng.integers(len(values)))]
            values.append(one_of(rng, a)(a, w, b))
        return values[-1], values[len(values) // 2]
    return f


def run(program, inputs, lengths, tiled, cotangents=None):
    """Outputs and gradients of all ranks."""
    lin = linearize(program)
    execute = lambda p, arrays: (interpret(tile_program(p, 2, 3), arrays, lengths, seed=0) if tiled  # noqa: E731
                                 else interpret(p, arrays, lengths))
    outs = execute(lin.forward, inputs)
    count = len(program.outputs)
    given = [[*(mine[i] for i in lin.kept_inputs), *out[count:], *(cotangents[r][i] for i in lin.cotangents)]
             for r, (mine, out) in enumerate(zip(inputs, outs, strict=True))]
    return [out[:count] for out in outs], execute(lin.backward, given)


def alone(f, inputs, cotangents, n):
    """One rank's outputs and gradients of its own rows."""
    mine = [inputs[0][:n], *inputs[1:]]
    program = hpmoe.trace(f, *(ShapeDtypeStruct(a.shape, "float32") for a in mine))
    cots = [c.reshape(-1)[:np.prod(o.aval.shape, dtype=int)].reshape(o.aval.shape)
            for c, o in zip(cotangents, program.outputs, strict=True)]
    (outs,), (grads,) = run(program, [mine], None, False, [cots])
    return outs, grads


def check_random(seed):
    rng = np.random.default_rng(seed)
    f, lengths = random_function(rng), [int(n) for n in rng.integers(1, T + 1, 2)]
    avals = [ShapeDtypeStruct((T, H), "float32"), ShapeDtypeStruct((H, H), "float32"), ShapeDtypeStruct((H,), "float32")]
    try:
        program = hpmoe.trace(f, *avals, mesh=hpmoe.Mesh(2))
    except Exception:
        return "does not fit"
    inputs = [[rng.standard_normal(a.shape).astype(np.float32) / 2 for a in avals] for _ in range(2)]
    cots = [[rng.standard_normal(o.aval.shape).astype(np.float32) for o in program.outputs] for _ in range(2)]
    for mine, n in zip(inputs, lengths, strict=True):
        mine[0][n:] = np.nan
    outcomes = []
    for tiled in (False, True):
        try:
            if tiled:
                interpret(program, inputs, lengths)
            outs, grads = run(program, inputs, lengths, tiled, cots)
        except ArgumentError as error:
            assert "it must be left out" in str(error)
            return "refused"
        except TransformError:
            return "untiled"
        for r, n in enumerate(lengths):
            for got, want in zip([*outs[r], *grads[r]], [x for part in alone(f, inputs[r], cots[r], n) for x in part],
                                 strict=True):
                flat, whole = got.reshape(-1), np.zeros(got.size)
                whole[:want.size] = want.reshape(-1)
                assert np.allclose(flat, whole, 1e-3, 1e-4), (seed, tiled, program)
        outcomes.append("right")
    return "tiled"


def test_random_functions_are_right_or_refused():
    counts = collections.Counter(check_random(seed) for seed in range(110))
    print(dict(counts))
    assert min(counts["refused"], counts["tiled"]) >= 8, counts
