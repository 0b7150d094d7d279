"""Train a GPT with four MoE layers on Python's manual, beside the same model with MoE layers of plain MindSpore.

    python examples/10_train_gpt_moe.py [--steps 150] [--dtype bfloat16] [--plot losses.png]
    python examples/10_train_gpt_moe.py --steps 150 --checkpoint gpt.ckpt --save_every 50
    python examples/10_train_gpt_moe.py --steps 150 --resume gpt.ckpt

Each MoE layer is one `hpmoe.nn.MoELayer`: router, experts and balance loss are one function, run as kernels. The bias of its
router is updated after every step, which balances the experts without a loss. Embeddings, attention and AdamW are ordinary
MindSpore on both sides, initial weights and batches are equal, so the losses are equal up to rounding, until some
token's second and third expert are closer than that and it goes to another expert on one side.

A checkpoint has all that a step depends on: what `--resume` continues ends with the bits of a run that was never
interrupted. The digests of weights and optimizer printed at the end show it.

In bfloat16, tokens are rounded where they enter the MoE layers, beside float32 weights; MindSpore has no such matmul on
CPUs, so its side stays in float32.
"""

import argparse
import hashlib
import math
import pydoc_data.topics
import time

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from mindspore.experimental import optim

import hpmoe
from hpmoe.balance import LoadMonitor

NUM_LAYERS, NUM_HEADS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 4, 4, 128, 256
NUM_EXPERTS, TOP_K, SEQUENCE_LENGTH, VOCAB_SIZE = 8, 2, 128, 256
LEARNING_RATE, WARMUP_STEPS, AUX_LOSS, BIAS_RATE = 3e-3, 20, 1e-2, 1e-3


class PlainMoELayer(hpmoe.nn.MoELayer):
    """MoE layer with the same Parameters in MindSpore's own operators: a loop over the experts that tokens chose."""

    def construct(self, hidden_states, with_losses=True):
        x = mint.reshape(hidden_states, (-1, HIDDEN_SIZE))
        scores = mint.sigmoid(mint.matmul(x, self.router.weight.T))
        _, ids = ops.topk(scores + self.expert_bias, TOP_K)
        chosen = ops.gather_elements(scores, 1, ids)
        weights = chosen / mint.sum(chosen, -1, True)
        flat = ids.asnumpy().reshape(-1)
        counts, order = np.bincount(flat, minlength=NUM_EXPERTS), flat.argsort(kind="stable").astype(np.int32)
        ops.assign(self.tokens_per_expert, ms.Tensor(counts.astype(np.float32)))
        ops.assign_add(self.counted_tokens, ms.Tensor(np.tile(counts, (2, 1)), ms.int64))
        rows = ms.Tensor(order // TOP_K)
        used = np.flatnonzero(counts)
        received = mint.split(ops.gather(x, rows, 0), tuple(map(int, counts[used])))
        up, down = ops.unstack(self.experts.weight1, 0), ops.unstack(self.experts.weight2, 0)
        outputs = []
        for rows_of_expert, e in zip(received, used, strict=True):
            gate, value = mint.chunk(mint.matmul(rows_of_expert, up[e]), 2, -1)
            outputs.append(mint.matmul(mint.nn.functional.silu(gate) * value, down[e]))
        weighted = mint.cat(outputs) * ops.gather(mint.reshape(weights, (-1, 1)), ms.Tensor(order), 0)
        out = mint.index_add(mint.zeros(x.shape), 0, rows, weighted)
        return mint.reshape(out, hidden_states.shape), self.balance_loss(scores)

    def balance_loss(self, scores):
        """AUX_LOSS * E / K * sum over experts of (share of tokens that have it among their best, mean probability)."""
        _, best = ops.topk(ops.stop_gradient(scores), TOP_K)
        share = np.bincount(best.asnumpy().reshape(-1), minlength=NUM_EXPERTS) / len(scores)
        mean = mint.mean(scores / mint.sum(scores, -1, True), 0)
        return mint.sum(ms.Tensor(share.astype(np.float32)) * mean) * (AUX_LOSS * NUM_EXPERTS / TOP_K)


class Block(nn.Cell):
    """Attention and a MoE layer, each behind a norm and beside a residual."""

    def __init__(self, normal, make_moe, dtype):
        super().__init__()
        self.dtype = dtype
        self.norm1, self.norm2 = (ms.Parameter(mint.ones(HIDDEN_SIZE)) for _ in range(2))
        self.qkv, self.projection = normal(HIDDEN_SIZE, 3 * HIDDEN_SIZE), normal(HIDDEN_SIZE, HIDDEN_SIZE)
        self.moe = make_moe(hidden_size=HIDDEN_SIZE, moe_ffn_hidden_size=INTERMEDIATE_SIZE, num_moe_experts=NUM_EXPERTS,
                            moe_router_topk=TOP_K, moe_router_score_function="sigmoid", moe_aux_loss_coeff=AUX_LOSS,
                            moe_router_enable_expert_bias=True, moe_router_bias_update_rate=BIAS_RATE)
        self.mask = ms.Tensor(np.triu(np.full((SEQUENCE_LENGTH, SEQUENCE_LENGTH), -1e9, np.float32), 1))

    def attention(self, x):
        batch, length, _ = x.shape
        heads = mint.reshape(mint.matmul(x, self.qkv), (batch, length, 3, NUM_HEADS, -1))
        q, k, v = ops.unstack(mint.permute(heads, (2, 0, 3, 1, 4)), 0)
        scores = mint.matmul(q, mint.transpose(k, -2, -1)) * q.shape[-1] ** -0.5 + self.mask
        mixed = mint.matmul(ops.softmax(scores, -1), v)
        return mint.matmul(mint.reshape(mint.transpose(mixed, 1, 2), x.shape), self.projection)

    def construct(self, x):
        x = x + self.attention(normed(x, self.norm1))
        out, loss = self.moe(normed(x, self.norm2).astype(self.dtype), with_losses=True)
        return x + out.astype(ms.float32), loss


def normed(x, weight):
    return x * mint.rsqrt(mint.mean(x * x, -1, True) + 1e-6) * weight


class GPT(nn.Cell):
    """Predicts the next byte. `seed` decides the weights."""

    def __init__(self, make_moe, dtype, seed):
        super().__init__()
        rng = np.random.default_rng(seed)

        def normal(*shape, scale=None):
            return ms.Parameter(ms.Tensor(rng.standard_normal(shape, np.float32) * (scale or shape[-2] ** -0.5)))

        self.embedding = normal(VOCAB_SIZE, HIDDEN_SIZE, scale=0.5)
        self.position = normal(SEQUENCE_LENGTH, HIDDEN_SIZE, scale=0.1)
        self.blocks = nn.CellList([Block(normal, make_moe, dtype) for _ in range(NUM_LAYERS)])
        self.norm = ms.Parameter(mint.ones(HIDDEN_SIZE))
        for block in self.blocks:
            for weight in (block.moe.router.weight, block.moe.experts.weight1, block.moe.experts.weight2):
                weight.set_data(normal(*weight.shape, scale=HIDDEN_SIZE ** -0.5))

    def construct(self, inputs, targets):
        """(cross entropy in nats per byte, that and the balance losses of all layers)."""
        x, balance = ops.gather(self.embedding, inputs, 0) + self.position, 0.0
        for block in self.blocks:
            x, loss = block(x)
            balance = balance + loss
        logits = mint.matmul(normed(x, self.norm), self.embedding.T) * HIDDEN_SIZE ** -0.5
        entropy = ops.cross_entropy(mint.reshape(logits, (-1, VOCAB_SIZE)), mint.reshape(targets, (-1,)))
        return entropy + balance, entropy


class Trainer:
    """A model, its optimizer, the losses of all steps and the seconds of those taken here."""

    def __init__(self, make_moe, dtype, steps, seed):
        self.model, self.num_steps = GPT(make_moe, dtype, seed), steps
        self.weights = self.model.trainable_params()
        self.optimizer = optim.AdamW(self.weights, lr=LEARNING_RATE, weight_decay=0.01)
        self.loss_and_grad = ms.value_and_grad(self.model, None, self.weights, has_aux=True)
        self.losses, self.seconds = [], []

    def step(self, inputs, targets):
        begin, done = time.perf_counter(), len(self.losses)
        rate = LEARNING_RATE * min((done + 1) / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * done / self.num_steps))
        ops.assign(self.optimizer.param_groups[0]["lr"], ms.Tensor(rate, ms.float32))
        (_, entropy), grads = self.loss_and_grad(inputs, targets)
        self.optimizer(grads)
        for block in self.model.blocks:
            block.moe.update_expert_bias()
        self.losses.append(float(entropy))
        self.seconds.append(time.perf_counter() - begin)

    def state(self):
        """Weights, biases of the routers, moments and step of the optimizer, by name."""
        return {**self.model.parameters_dict(), **self.optimizer.parameters_dict()}

    def digest(self):
        """Returns a digest of all bits of the state."""
        digest = hashlib.sha256()
        for name, value in sorted(self.state().items()):
            digest.update(name.encode() + np.ascontiguousarray(value.asnumpy()).tobytes())
        return digest.hexdigest()[:16]

    def tokens_per_second(self, batch):
        """Returns tokens per second of the median step; the first steps also trace, plan and warm up."""
        return batch * SEQUENCE_LENGTH / np.median(self.seconds)


def save(trainers, path):
    """Everything that the next step of each trainer depends on."""
    found = []
    for side, trainer in trainers.items():
        found += [{"name": f"{side}.{name}", "data": ms.Tensor(value.asnumpy())} for name, value in trainer.state().items()]
        found.append({"name": f"{side}:losses", "data": ms.Tensor(np.array(trainer.losses))})
    ms.save_checkpoint(found, path)


def load(trainers, path):
    saved = ms.load_checkpoint(path)
    for side, trainer in trainers.items():
        trainer.losses = saved[f"{side}:losses"].asnumpy().tolist()
        for name, value in trainer.state().items():
            ops.assign(value, saved[f"{side}.{name}"])


def manual():
    """The reference manual that comes with Python, as its help() shows it, in bytes."""
    topics = pydoc_data.topics.topics
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


def batch_of(text, step, size):
    """Random windows of the text and the bytes that follow: those of a step, whenever it is taken."""
    starts = np.random.default_rng(step).integers(0, len(text) - SEQUENCE_LENGTH, (size, 1))
    windows = text[starts + np.arange(SEQUENCE_LENGTH + 1)].astype(np.int32)
    return ms.Tensor(windows[:, :-1].copy()), ms.Tensor(windows[:, 1:].copy())


def train(trainers, args):
    """All steps that are left, reporting on the way; what the experts of the first trainer were given."""
    text, monitor, begin = manual(), LoadMonitor(), time.perf_counter()
    first = len(trainers["fused"].losses)
    print(f"{len(text):,} bytes of Python's manual; {NUM_LAYERS} layers, {NUM_EXPERTS} experts, top {TOP_K}; "
          f"{args.batch * SEQUENCE_LENGTH} tokens a step; steps {first} to {args.steps}\n")
    print("step   " + "   ".join(f"{side:>8}" for side in trainers) + "   nats per byte")
    for step in range(first, args.steps):
        batch = batch_of(text, step, args.batch)
        for trainer in trainers.values():
            trainer.step(*batch)
        for i, block in enumerate(trainers["fused"].model.blocks):
            monitor.record(f"layer {i}", block.moe.tokens_per_expert)
        if step % max(1, args.steps // 12) == 0 or step == args.steps - 1:
            losses = "   ".join(f"{t.losses[-1]:8.5f}" for t in trainers.values())
            left = (time.perf_counter() - begin) / (step + 1 - first) * (args.steps - 1 - step)
            print(f"{step:>4}   {losses}   {left:.0f} s left", flush=True)
        if args.checkpoint and (step + 1) % args.save_every == 0:
            save(trainers, args.checkpoint)
    return monitor


def plot(trainers, path):
    """A picture of the loss curves, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed; pip install 'hpmoe[plot]'")
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="nats per byte", title="Loss of a GPT with four MoE layers")
    for side, trainer in trainers.items():
        axes.plot(trainer.losses, linewidth={"fused": 5, "plain": 1.2}[side], label=side)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"the loss curves are in {path}")


def report(trainers, monitor, args):
    print(f"\nloads of the experts, in means of all, the last steps\n{monitor}\n")
    for side, trainer in trainers.items():
        speed = f", {trainer.tokens_per_second(args.batch):,.0f} tokens per second" if trainer.seconds else ""
        print(f"{side}: loss {trainer.losses[-1]:.6f}, state {trainer.digest()}{speed}")
    if len(trainers) == 2:
        fused, plain = trainers.values()
        print(f"largest difference of the losses {np.abs(np.subtract(fused.losses, plain.losses)).max():.1e}; "
              f"a fused step takes 1/{np.median(plain.seconds) / np.median(fused.seconds):.2f} of a plain one")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="of the whole run; the learning rate falls until the last")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of tokens in the fused layers")
    parser.add_argument("--alone", action="store_true", help="train the fused model alone")
    parser.add_argument("--checkpoint", help="file (.ckpt) to save to")
    parser.add_argument("--save_every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--resume", help="file to continue from, with the flags of the run that saved it")
    parser.add_argument("--plot", help="file for a picture of the loss curves, .png or .svg")
    args = parser.parse_args(argv)
    ms.runtime.launch_blocking()  # asynchronous dispatch costs milliseconds an operator on a machine of few cores
    trainers = {"fused": Trainer(hpmoe.nn.MoELayer, getattr(ms, args.dtype), args.steps, args.seed)}
    if not args.alone:
        trainers["plain"] = Trainer(PlainMoELayer, ms.float32, args.steps, args.seed)
    if args.resume:
        load(trainers, args.resume)
    report(trainers, train(trainers, args), args)
    if args.plot:
        plot(trainers, args.plot)


if __name__ == "__main__":
    main()
