"""Train a small MoE language model on the sources of the Python standard library, fused and op by op, side by side.

    python examples/06_train_moe_language_model.py [--steps 100] [--batch 12] [--plot losses.png]

Two copies of one byte-level transformer start from the same weights and see the same batches. In one the FFN of every
layer is a persistent kernel made by the chain, in the other the same function runs op by op; embedding, attention,
router and AdamW are ordinary MindSpore in both. The losses agree to float32 rounding, about 1e-6 nats, as long as all
tokens go to the same experts in both. A token whose second and third expert are closer than rounding may not: it then
goes to another expert in one of the models, and from that step on the losses are up to some 1e-4 apart. The run says how
many tokens did. Where training is unstable, say without the decay of the learning rate, it amplifies rounding: the curves
may then be 1e-2 apart after some hundred steps, and so are two op-by-op runs whose first weights differ in the last bits.
"""

import argparse
import itertools
import os
import pathlib
import time

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from mindspore.experimental import optim

import hpmoe

VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS, NUM_HEADS = 256, 96, 2, 4
NUM_EXPERTS, TOP_K, INTERMEDIATE_SIZE = 8, 2, 96
SEQUENCE_LENGTH, LEARNING_RATE, WARMUP_STEPS = 64, 4e-3, 20

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


class RMSNorm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(mint.ones(HIDDEN_SIZE))

    def construct(self, x):
        return x * mint.rsqrt(mint.mean(x * x, -1, True) + 1e-6) * self.weight


class CausalAttention(nn.Cell):
    def __init__(self, normal):
        super().__init__()
        self.qkv = normal(HIDDEN_SIZE, 3 * HIDDEN_SIZE)
        self.out = normal(HIDDEN_SIZE, HIDDEN_SIZE)
        self.mask = ms.Tensor(np.triu(np.full((SEQUENCE_LENGTH, SEQUENCE_LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        batch, length, _ = x.shape
        heads = mint.reshape(mint.matmul(x, self.qkv), (batch, length, 3, NUM_HEADS, -1))
        q, k, v = ops.unstack(mint.permute(heads, (2, 0, 3, 1, 4)), 0)
        scores = mint.matmul(q, mint.transpose(k, -2, -1)) * q.shape[-1] ** -0.5 + self.mask
        mixed = mint.matmul(ops.softmax(scores, -1), v)
        return mint.matmul(mint.reshape(mint.transpose(mixed, 1, 2), x.shape), self.out)


class MoE(nn.Cell):
    """A router and the experts' weights; `ffn` is `hpmoe.moe_ffn` or a kernel made of it."""

    def __init__(self, normal, ffn):
        super().__init__()
        self.ffn = ffn
        self.router = normal(HIDDEN_SIZE, NUM_EXPERTS)
        self.gate_up_weight = normal(NUM_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE)
        self.down_weight = normal(NUM_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE)

    def construct(self, x):
        tokens = mint.reshape(x, (-1, HIDDEN_SIZE))
        logits, topk_ids = ops.topk(mint.matmul(tokens, self.router), TOP_K)
        self.topk_ids = topk_ids
        out = self.ffn(tokens, topk_ids, ops.softmax(logits, -1), self.gate_up_weight, self.down_weight)
        return mint.reshape(out, x.shape)


class LanguageModel(nn.Cell):
    """Predicts the next byte. `seed` decides the weights, so that two models can start from the same ones."""

    def __init__(self, ffn, seed=0):
        super().__init__()
        rng, names = np.random.default_rng(seed), itertools.count()

        def normal(*shape, scale=None):
            value = rng.standard_normal(shape).astype(np.float32) * (scale or shape[-2] ** -0.5)
            return ms.Parameter(ms.Tensor(value), name=f"weight_{next(names)}")

        self.embedding = normal(VOCAB_SIZE, HIDDEN_SIZE, scale=0.5)
        self.position = normal(SEQUENCE_LENGTH, HIDDEN_SIZE, scale=0.1)
        self.attentions = nn.CellList([CausalAttention(normal) for _ in range(NUM_LAYERS)])
        self.moes = nn.CellList([MoE(normal, ffn) for _ in range(NUM_LAYERS)])
        self.norms = nn.CellList([RMSNorm() for _ in range(2 * NUM_LAYERS + 1)])
        self.unembedding = normal(HIDDEN_SIZE, VOCAB_SIZE)

    def construct(self, inputs, targets):
        """The mean cross entropy of `targets`, in nats per byte."""
        x = ops.gather(self.embedding, inputs, 0) + self.position
        for i in range(NUM_LAYERS):
            x = x + self.attentions[i](self.norms[2 * i](x))
            x = x + self.moes[i](self.norms[2 * i + 1](x))
        logits = mint.matmul(self.norms[-1](x), self.unembedding)
        return ops.cross_entropy(mint.reshape(logits, (-1, VOCAB_SIZE)), mint.reshape(targets, (-1,)))


class Trainer:
    """A model's weights, their optimizer, the losses so far and the seconds they took."""

    def __init__(self, ffn, steps):
        model = LanguageModel(ffn)
        self.num_steps = steps
        self.weights = model.trainable_params()
        self.optimizer = optim.AdamW(self.weights, lr=LEARNING_RATE, weight_decay=0.01)
        self.loss_and_grad = ms.value_and_grad(model, None, self.weights)
        self.losses, self.seconds, self.moes = [], [], model.moes

    def experts(self):
        """The experts of each token in the last step, in order, [layers, tokens, top_k]."""
        return np.sort([moe.topk_ids.asnumpy() for moe in self.moes], axis=-1)

    def step(self, inputs, targets):
        start, done = time.perf_counter(), len(self.losses)
        rate = LEARNING_RATE * min((done + 1) / WARMUP_STEPS, 1 - done / self.num_steps)
        ops.assign(self.optimizer.param_groups[0]["lr"], ms.Tensor(rate, ms.float32))
        loss, grads = self.loss_and_grad(inputs, targets)
        self.optimizer(grads)
        self.losses.append(float(loss))
        self.seconds.append(time.perf_counter() - start)

    def median_seconds(self):
        """Median seconds of a step; the first steps also trace, plan and warm up."""
        return np.median(self.seconds)


def standard_library_text(num_bytes=4_000_000):
    """The top-level modules of the standard library, in alphabetical order."""
    files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    return np.frombuffer(b"".join(f.read_bytes() for f in files)[:num_bytes], np.uint8)


def batches(text, size, seed=0):
    """Random windows of the text and the bytes that follow, without end."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - SEQUENCE_LENGTH, (size, 1))
        windows = text[starts + np.arange(SEQUENCE_LENGTH + 1)].astype(np.int32)
        yield ms.Tensor(windows[:, :-1].copy()), ms.Tensor(windows[:, 1:].copy())


def train(steps, batch_size):
    """Both trainers after `steps` steps, reporting on the way, and the tokens of each step that went to other experts in
    one than in the other."""
    text = standard_library_text()
    fused, plain = Trainer(to_kernel(hpmoe.moe_ffn), steps), Trainer(hpmoe.moe_ffn, steps)
    print(f"{len(text):,} bytes of Python's standard library; {NUM_LAYERS} layers, {NUM_EXPERTS} experts, top {TOP_K}; "
          f"{batch_size * SEQUENCE_LENGTH} tokens a step\n")
    print("step   fused loss   op by op   difference")
    elsewhere = []
    for step, batch in enumerate(itertools.islice(batches(text, batch_size), steps)):
        fused.step(*batch)
        plain.step(*batch)
        elsewhere.append((fused.experts() != plain.experts()).any((0, 2)).sum())
        if step % max(1, steps // 12) == 0 or step == steps - 1:
            a, b = fused.losses[-1], plain.losses[-1]
            print(f"{step:>4}   {a:>10.5f}   {b:>8.5f}   {abs(a - b):>10.1e}", flush=True)
    return fused, plain, elsewhere


def plot(curves, path):
    """The loss curves as text, or as a picture in the file of this name where matplotlib is installed."""
    if path is None:
        print(f"\n{text_plot(curves)}")
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"\n{text_plot(curves)}\n(with matplotlib installed this is a picture)")
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="nats per byte", title="Loss of a MoE language model")
    for (label, losses), width in zip(curves.items(), (5, 1.2), strict=True):
        axes.plot(losses, linewidth=width, label=label)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"\nboth curves are in {path}")


def text_plot(curves, height=12, width=72):
    """Curves drawn with the first letter of their label, `*` where they cross; a column is the mean of some steps."""
    columns = {label: [part.mean() for part in np.array_split(losses, min(width, len(losses)))]
               for label, losses in curves.items()}
    low, high = min(map(min, columns.values())), max(map(max, columns.values()))
    grid = np.full((height, width), " ")
    for label, values in columns.items():
        for column, value in enumerate(values):
            row = round((high - value) / max(high - low, 1e-9) * (height - 1))
            grid[row, column] = label[0] if grid[row, column] == " " else "*"
    levels = np.linspace(high, low, height)
    lines = [f"{level:6.2f} |{''.join(row)}".rstrip() for level, row in zip(levels, grid, strict=True)]
    return "\n".join([*lines, "        " + ", ".join(f"{label[0]} {label}" for label in curves) + ", * both"])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=12, help="sequences of a step")
    parser.add_argument("--plot", help="where to write a picture of both curves, which are text otherwise")
    args = parser.parse_args(argv)
    ms.runtime.launch_blocking()  # asynchronous dispatch costs milliseconds an operator on a machine of few cores
    fused, plain, elsewhere = train(args.steps, args.batch)
    plot({"op by op": plain.losses, "fused": fused.losses}, args.plot)
    apart = np.abs(np.subtract(fused.losses, plain.losses))
    same = int(np.argmax(elsewhere)) if any(elsewhere) else len(elsewhere)
    weights = max(np.abs(a.asnumpy() - b.asnumpy()).max() for a, b in zip(fused.weights, plain.weights, strict=True))
    print(f"largest difference of the losses {apart[:same].max(initial=0.0):.1e} nats per byte in {same} steps in which all "
          f"tokens go to the same experts; in the {len(apart) - same} after these {apart[same:].max(initial=0.0):.1e}, and "
          f"{sum(elsewhere)} tokens to others;\nlargest difference of the final weights {weights:.1e}")
    fast, slow = (args.batch * SEQUENCE_LENGTH / trainer.median_seconds() for trainer in (fused, plain))
    print(f"tokens per second: fused {fast:,.0f}, op by op {slow:,.0f}, {fast / slow:.2f}x")


if __name__ == "__main__":
    main()
