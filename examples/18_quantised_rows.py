"""Rows that are dispatched as int8, fp8 or mxfp8: what that costs in error, and what it saves of links.

    python examples/18_quantised_rows.py

`quantize_rows` is a transform of the function, before `tile_partition`. The first table runs a layer in bfloat16 on this
CPU, forward and backward, and compares each result with the same layer in float64; without the transform, what is left is
the rounding of bfloat16. Bytes are counted by the kernel as it copies them between ranks. The second table only
simulates: the time of a forward pass where each rank is a node, and how long one of its puts of rows takes.
"""

import mindspore as ms
import numpy as np

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 4, 16, 4
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 96, 256, 64
NAMES = ("output", "d hidden_states", "d topk_weights", "d gate_up_weight", "d down_weight")
QUANTISED = {
    "bfloat16 rows": [],
    "int8": [hpmoe.quantize_rows(dtype="int8")],
    "float8_e4m3fn": [hpmoe.quantize_rows(dtype="float8_e4m3fn")],
    "float8_e4m3fn, scale=128": [hpmoe.quantize_rows(dtype="float8_e4m3fn", scale=128)],
    "mxfp8": [hpmoe.quantize_rows(dtype="mxfp8")],
    "int8, both ways": [hpmoe.quantize_rows(dtype="int8", combine=True)],
    "int8, gradients too": [hpmoe.quantize_rows(dtype="int8", combine=True, backward="quantized")],
}

to_kernel = (hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def random_ids(rng, ep_size, num_tokens, num_experts, top_k):
    """Experts drawn at random, distinct for each token, of all ranks."""
    return rng.random((ep_size, num_tokens, num_experts)).argsort(-1)[..., :top_k].astype(np.int32)


def make_arguments(rng):
    """Arguments of moe_ffn for all ranks, in bfloat16; rows have a few large columns, as those of language models have."""
    def normal(*shape):
        return rng.standard_normal((EP_SIZE, *shape)) / np.sqrt(shape[-2])
    local = NUM_EXPERTS // EP_SIZE
    x = rng.standard_normal((EP_SIZE, NUM_TOKENS, HIDDEN_SIZE))
    x[..., ::64] *= 8
    floats = (x, rng.random((EP_SIZE, NUM_TOKENS, TOP_K)), normal(local, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
              normal(local, INTERMEDIATE_SIZE, HIDDEN_SIZE))
    first, *others = (ms.Tensor(a.astype(np.float32)).astype(ms.bfloat16) for a in floats)
    return first, ms.Tensor(random_ids(rng, EP_SIZE, NUM_TOKENS, NUM_EXPERTS, TOP_K)), *others


def in_float64(args, cotangent):
    """Output and gradients of the layer in double precision."""
    inputs = [a.astype(ms.float32).asnumpy() if a.dtype == ms.bfloat16 else a.asnumpy() for a in args]
    avals = [hpmoe.Aval(a.shape[1:], "int32" if a.dtype == np.int32 else "float64") for a in inputs]
    program = hpmoe.trace(hpmoe.moe_ffn, *avals, mesh=hpmoe.Mesh(EP_SIZE))
    backward = hpmoe.vjp(program)
    given = dict(zip(program.input_names, inputs, strict=True)) | {"d_out": cotangent}
    saved = [name for name in backward.input_names if name not in given]
    whole = program.replace(outputs=(*program.outputs, *(backward.inputs[backward.input_names.index(n)] for n in saved)))
    forward = hpmoe.evaluate(whole, [[a[r] for a in inputs] for r in range(EP_SIZE)], dtype="float64")
    grads = hpmoe.evaluate(backward, [[given[n][r] if n in given else forward[r][1 + saved.index(n)]
                                       for n in backward.input_names] for r in range(EP_SIZE)], dtype="float64")
    return [np.stack(parts) for parts in zip(*([out[0], *mine] for out, mine in zip(forward, grads, strict=True)),
                                             strict=True)]


def run(transforms, args, cotangent):
    """Output and gradients of the kernel, and the bytes that its two launches sent from rank to rank."""
    layer = hpmoe.spmd(hpmoe.chain(*transforms, *to_kernel)(hpmoe.moe_ffn), hpmoe.Mesh(EP_SIZE))

    def loss(*args):
        out = layer(*args).astype(ms.float32)
        return (out * ms.Tensor(cotangent)).sum(), out
    ((_, out), grads), timelines = hpmoe.measure(lambda: ms.value_and_grad(loss, (0, 2, 3, 4), has_aux=True)(*args))
    sent = [bytes_sent(line) for line in timelines]
    return [a.astype(ms.float32).asnumpy() for a in (out, *grads)], sent


def bytes_sent(line):
    """From each rank to others."""
    moved = line.link_bytes()
    return moved.in_node + moved.across_nodes


def show_errors(rng):
    args = make_arguments(rng)
    cotangent = rng.standard_normal(args[0].shape).astype(np.float32)
    want = in_float64(args, cotangent)
    print("error against float64, root mean square, relative                           bytes between ranks")
    print(f"  {'rows are dispatched as':<26}" + "".join(f"{name.replace('_weight', ''):>16}" for name in NAMES)
          + "   forward  backward")
    for name, transforms in QUANTISED.items():
        got, sent = run(transforms, args, cotangent)
        errors = [np.sqrt(((g - w) ** 2).mean() / (w ** 2).mean()) for g, w in zip(got, want, strict=True)]
        print(f"  {name:<26}" + "".join(f"{e:16.1e}" for e in errors) + f"{sent[0]:10d}{sent[1]:10d}")


def show_simulated(rng):
    """A layer whose ranks are nodes."""
    ep_size, num_tokens, num_experts, top_k, hidden_size, intermediate_size = 8, 1024, 64, 8, 7168, 1024
    ids, local = random_ids(rng, ep_size, num_tokens, num_experts, top_k), num_experts // ep_size
    shapes = ((num_tokens, hidden_size), (num_tokens, top_k), (num_tokens, top_k),
              (local, hidden_size, 2 * intermediate_size), (local, intermediate_size, hidden_size))
    avals = [hpmoe.Aval(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    machine = hpmoe.ascend_a3.replace(node_size=1)
    print(f"\nsimulated, {ep_size} ranks, each a node, {num_tokens} tokens each, forward")
    print("  rows are dispatched as      MB out of all ranks   median put out, us    ms")
    for name in ("bfloat16 rows", "int8", "mxfp8", "int8, both ways"):
        stages = hpmoe.chain(*QUANTISED[name], hpmoe.tile_partition(machine=machine), hpmoe.overlap_comm(),
                             hpmoe.assign_queues(machine=machine))
        flow = stages(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(ep_size))
        line = hpmoe.simulate(flow, routing=ids)
        print(f"  {name:<26}{bytes_sent(line) / 1e6:21.1f}{median_put(line):21.1f}{line.span / 1e3:6.2f}")


def median_put(line):
    """Microseconds in which a put of rows to their experts moves them, in the median of those that move any."""
    puts = [i for i, op in enumerate(line.flow.ops) if op.primitive.sends_rows]
    took = (line.end - line.begin)[np.isin(line.flow.tasks["op"][line.task], puts)]
    return float(np.median(took[took > 1.0]))


def main():
    ms.runtime.launch_blocking()
    rng = np.random.default_rng(0)
    show_errors(rng)
    show_simulated(rng)


if __name__ == "__main__":
    main()
