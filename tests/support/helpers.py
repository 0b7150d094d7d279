"""Helpers for tests of the whole chain: small random layers, two float64 oracles, and runs of a level in both passes."""

import dataclasses
import functools
import math

import jax
import mindspore as ms
import numpy as np
from jax import numpy as jnp
from judge import assert_ordered

import hpmoe
from hpmoe import assign_queues, chain, fuse_persistent, overlap_comm, tile_partition
from hpmoe.support.dtypes import dtype_name, rounded, widen
from hpmoe.testing import assert_same
from hpmoe.tiling.rebuild import rebuild

TOLERANCE = 1e-5
TIMEOUT = 10.0  # seconds; a good schedule needs none of it
SMALL_NPU = hpmoe.machines.ascend_a3.replace(num_aic=2, num_aiv=3)
DIFFERENTIABLE = (0, 2, 3, 4)
U = {"bfloat16": 2.0 ** -8, "float16": 2.0 ** -11}  # half a unit in the last place, relative
HALVES = tuple(U)


def stages(rows=2, cols=3, machine=None, policy="critical_path", put_cols=None, num_peers=None, parts=None,
           **comm):
    """Every prefix of the chain by name, with tiles small enough that several exist; puts for as many peers, and rows of a
    unit in as many parts, as told."""
    tile = tile_partition(rows=rows, cols=cols)
    tile = chain(tile, in_parts(parts=parts)) if parts else tile
    overlap, queues = overlap_comm(put_cols=put_cols, **comm), assign_queues(machine=machine or hpmoe.cpu(2), policy=policy)
    overlap = chain(overlap, for_several(num_peers=num_peers)) if num_peers else overlap
    fuse = fuse_persistent(timeout=TIMEOUT)
    return {
        "plain": chain(),
        "tiles": tile,
        "overlap": chain(tile, overlap),
        "queues": chain(tile, overlap, queues),
        "blocking": chain(tile, queues, fuse),
        "fused": chain(tile, overlap, queues, fuse),
    }


def at_stages(layers):
    """Returns (layer, stage) pairs: the first layer at every stage, all others fused, every second at one more in turn."""
    first, *others = layers
    some = [name for name in stages() if name != "fused"]
    return [*((first, name) for name in stages()), *((layer, "fused") for layer in others),
            *((layer, some[i % len(some)]) for i, layer in enumerate(others[::2]))]


def some_stages(i):
    """The names of both ends of the chain and, in turn, of one stage between them."""
    plain, *between, last = stages()
    return plain, between[i % len(between)], last


@hpmoe.transform(requires="tiles")
def for_several(flow, *, num_peers):
    """Puts of which a unit has no more than num_peers tasks, each for several ranks where there are more of these."""
    return rebuild(flow, tuple(op.replace(num_peers=min(num_peers, op.num_peers)) for op in flow.ops))


@hpmoe.transform(requires="tiles")
def in_parts(flow, *, parts):
    """Operations on whole rows of their own, with the rows of each unit divided among tasks."""
    return rebuild(flow, tuple(op.replace(parts=parts) if op.can_divide_rows else op for op in flow.ops))


def fused(**options):
    return stages(**options)["fused"]


@dataclasses.dataclass(frozen=True)
class Layer:
    """Sizes of a small MoE layer and how its tokens are routed."""

    ep: int = 2
    T: int = 5
    H: int = 4
    I: int = 3  # noqa: E741
    E: int = 4
    K: int = 2
    num_tokens: tuple | None = None
    routing: str = "random"
    node_size: int | None = None

    @property
    def mesh(self):
        return hpmoe.Mesh(self.ep, nodes=self.node_size and self.ep // self.node_size)

    def ids(self, rng):
        experts = np.arange(self.E)
        if self.routing == "one expert":  # every token's first choice is the last expert
            experts = np.roll(experts, 1)
            pick = lambda: np.concatenate([experts[:1], rng.permutation(experts[1:])])[:self.K]  # noqa: E731
        elif self.routing == "one rank":  # nothing leaves for any rank but the first, as far as top_k allows
            near = max(self.K, self.E // self.ep)
            pick = lambda: experts[:near][rng.permutation(near)][:self.K]  # noqa: E731
        else:
            pick = lambda: rng.permutation(experts)[:self.K]  # noqa: E731
        tokens = [[pick() for _ in range(self.T)] for _ in range(self.ep)]
        return np.array(tokens, np.int32).reshape(self.ep, self.T, self.K)

    def arguments(self, seed=0):
        """hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight, each with the rank axis first."""
        rng, local = np.random.default_rng(seed), self.E // self.ep
        normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        return [normal(self.ep, self.T, self.H), self.ids(rng), normal(self.ep, self.T, self.K),
                normal(self.ep, local, self.H, 2 * self.I), normal(self.ep, local, self.I, self.H)]

    def cotangent(self, seed=1):
        return np.random.default_rng(seed).standard_normal((self.ep, self.T, self.H)).astype(np.float32)


TWO_RANKS = Layer(ep=2, T=4, E=4, K=2)  # the layer of `queued`

# Oracles. Both see all ranks at once and know nothing of slots, routes or tiles.

def entry_weights(weight, ids):
    """[ep, T, K, ...]: the weight of each entry's expert, from weights stacked rank by rank."""
    return weight.reshape(-1, *weight.shape[2:])[ids]


def token_mask(shape, num_tokens):
    """1 for rows that are tokens and 0 for padding, [ep, T, 1]."""
    ep, tokens = shape[:2]
    lengths = np.full(ep, tokens) if num_tokens is None else np.asarray(num_tokens)
    return (np.arange(tokens)[None, :] < lengths[:, None])[:, :, None]


def jax_moe_ffn(x, ids, weights, up, down):
    gate_up = jnp.einsum("rth,rtkhn->rtkn", x, entry_weights(up, ids))
    gate, value = jnp.split(gate_up, 2, axis=-1)
    out = jnp.einsum("rtki,rtkih->rtkh", jax.nn.silu(gate) * value, entry_weights(down, ids))
    return jnp.einsum("rtk,rtkh->rth", weights, out)


def jax_vjp(f, args, cotangents, positions):
    """(outputs, gradients at `positions`) of `f` in float64; compiled as one, which is quicker than each operation alone."""
    with jax.experimental.enable_x64():
        return jax.tree.map(np.asarray, _compiled_vjp(f, tuple(positions))(
            [jax.tree.map(_wide, a) for a in args], jax.tree.map(_wide, cotangents)))


@functools.lru_cache(maxsize=64)
def _compiled_vjp(f, positions):
    def both(wide, cotangents):
        def of(*chosen):
            full = list(wide)
            for i, a in zip(positions, chosen, strict=True):
                full[i] = a
            return f(*full)

        out, back = jax.vjp(of, *(wide[i] for i in positions))
        return out, list(back(cotangents))

    return jax.jit(both)


def _wide(a):
    a = np.asarray(a)
    return jnp.asarray(a.astype(np.float64) if a.dtype == np.float32 else a)


def numpy_moe_ffn(args, cotangent, num_tokens=None, kept=None, round_act=lambda act: act):
    """Output and gradients of the MoE-FFN, token by token in float64; gradients derived by hand.

    `kept` [ep, T, K] says which entries have an effect, all by default; those with an id of -1 have none. What SwiGLU makes
    is rounded by `round_act`, straight through which gradients go.
    """
    x, ids, w, up, down = (a.astype(np.float64) if a.dtype == np.float32 else a for a in args)
    g = cotangent.astype(np.float64)
    out, dx, dw, d_up, d_down = (np.zeros_like(a) for a in (x, x, w, up, down))
    local, half = up.shape[1], down.shape[2]
    for r, t, k in np.ndindex(ids.shape):
        if (num_tokens is not None and t >= num_tokens[r]) or (kept is not None and not kept[r, t, k]) or ids[r, t, k] < 0:
            continue
        owner, e = divmod(int(ids[r, t, k]), local)
        h = x[r, t] @ up[owner, e]
        gate, value = h[:half], h[half:]
        s = 1 / (1 + np.exp(-gate))
        act = round_act(gate * s * value)
        y = act @ down[owner, e]
        out[r, t] += w[r, t, k] * y
        dw[r, t, k] = g[r, t] @ y
        dy = w[r, t, k] * g[r, t]
        d_down[owner, e] += np.outer(act, dy)
        d_act = down[owner, e] @ dy
        dh = np.concatenate([d_act * value * s * (1 + gate * (1 - s)), d_act * gate * s])
        d_up[owner, e] += np.outer(x[r, t], dh)
        dx[r, t] += up[owner, e] @ dh
    return out, [dx, dw, d_up, d_down]


def kept_by_hand(ids, weights, factor, policy, num_experts, num_tokens=None):
    """[ep, T, K] bool and the drop counts [ep, E]: one token after the other takes a place while there is one; an id of -1
    takes none."""
    kept, dropped = np.zeros(ids.shape, bool), np.zeros((len(ids), num_experts), np.int32)
    for r in range(len(ids)):
        n = ids.shape[1] if num_tokens is None else num_tokens[r]
        capacity = math.ceil(n * ids.shape[2] / num_experts * factor)
        entries = [(t, k) for t in range(n) for k in range(ids.shape[2]) if ids[r, t, k] >= 0]
        if policy == "probs":
            entries.sort(key=lambda at: -float(weights[r][at]))  # stable: of equal weights the first entry
        taken = np.zeros(num_experts, int)
        for t, k in entries:
            e = ids[r, t, k]
            kept[r, t, k] = taken[e] < capacity
            dropped[r, e] += taken[e] >= capacity
            taken[e] += 1
    return kept, dropped


# Running.

def tensors(args):
    return [ms.Tensor(a) for a in args]


def in_dtype(args, dtype, but=()):
    """Float arrays rounded to `dtype`, those at positions `but` left float32."""
    return [rounded(a, dtype) if a.dtype == np.float32 and i not in but else a for i, a in enumerate(args)]


def avals_of(args):
    """Returns one rank's avals of arguments with a rank axis."""
    return [hpmoe.ShapeDtypeStruct(a.shape[1:], dtype_name(a.dtype)) for a in args]


def lowered(f, args, ep, direction="forward"):
    return f.lower(*avals_of(args), mesh=as_mesh(ep), direction=direction)


def queued(direction="forward", machine=SMALL_NPU, **options):
    """The schedule of a small layer on two ranks."""
    stage = stages(machine=machine, **options)["queues"]
    return lowered(stage(hpmoe.moe_ffn), TWO_RANKS.arguments(), TWO_RANKS.ep, direction)


def as_mesh(ep):
    """Returns a mesh, or makes one of `ep` ranks."""
    return ep if isinstance(ep, hpmoe.Mesh) else hpmoe.Mesh(ep)


def run_spmd(f, ep, args, cotangents, num_tokens=None, positions=DIFFERENTIABLE):
    """(outputs, gradients) of a stage on a mesh, through MindSpore's autograd; one cotangent for each output."""
    distributed, given = hpmoe.spmd(f, as_mesh(ep)), tensors(args)
    weights = tensors(cotangents)

    def loss(*chosen):
        full = list(given)
        for i, a in zip(positions, chosen, strict=True):
            full[i] = a
        out = distributed(*full, num_tokens=num_tokens)
        outs = out if isinstance(out, tuple) else (out,)
        return sum((o.astype(ms.float32) * c).sum() for o, c in zip(outs, weights, strict=True)), outs

    (_, outs), grads = ms.value_and_grad(loss, tuple(range(len(positions))), has_aux=True)(*(given[i] for i in positions))
    grads = grads if isinstance(grads, tuple) else (grads,)
    return [o.asnumpy() for o in outs], [g.asnumpy() for g in grads]


def run_half(f, layer, dtype):
    """The output and gradients of a stage of moe_ffn in half precision but for topk_weights, dequantized; of a cotangent of
    ones."""
    args = in_dtype(layer.arguments(), dtype, but=(2,))
    outs, grads = run_spmd(f, layer.mesh, args, [np.ones(args[0].shape, np.float32)])
    return [widen(a) for a in (*outs, *grads)]


def relative_error(got, want):
    """max|got - want| / max|want|; of absolute size where want is all zeros."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    if not want.size:
        return 0.0
    return np.abs(got - want).max() / (np.abs(want).max() or 1.0)


def assert_close(got, want, what="", tolerance=TOLERANCE):
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        error = relative_error(a, b)
        assert error <= tolerance, f"{what} value {i}: relative error {error:.2e}"


def assert_equals_numpy(f, layer):
    """Compares output and gradients of a level of moe_ffn on a layer's arguments with NumPy."""
    args, cotangent = layer.arguments(), layer.cotangent()
    outs, grads = run_spmd(f, layer.mesh, args, [cotangent], layer.num_tokens)
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    assert_close([*outs, *grads], [want, *want_grads])


def assert_stays_moe_ffn(transform, layer, **options):
    """Checks with assert_same that a transform keeps moe_ffn on arguments shaped like a layer's."""
    assert_same(transform, hpmoe.moe_ffn, avals_of(layer.arguments()), layer.mesh, **{"orders": 1, **options})


def assert_every_access_ordered(flow, args, num_tokens=None):
    """For the ids of `args`, by a judge that counts cells and signals one by one."""
    all_ids = [a for a in args if a.dtype == np.int32]
    ids = [all_ids[0 if len(all_ids) == 1 or flow.buffers[plan.ids].name == "ids" else 1] for plan in flow.routes]
    assert_ordered(flow, (ids, num_tokens, args[2] if any(plan.weights >= 0 for plan in flow.routes) else None))


def nothing(eqn):
    """The policy that saves no value for the backward pass."""
    return False


def dtype_names(arrays):
    return [str(a.dtype) for a in arrays]


def bitwise_equal(a, b):
    return len(a) == len(b) and all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))
