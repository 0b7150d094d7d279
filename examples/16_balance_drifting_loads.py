"""Loads that drift: experts change ranks and hot ones get copies while training, and weights and Adam's moments go along.

    python examples/16_balance_drifting_loads.py [--steps 12] [--tokens 768] [--hidden 384]

Of 16 experts three take 60 % of the tokens, and others do from phase to phase: A, B, then A again. The same batches train
three layers that start equal: one whose experts stay, one whose experts are relocated every few steps, and one whose hot
experts get copies too. What the first two end with is the same bit for bit. The third sums weight gradients of copied
experts in another order.

First each of two ranks has a core of its own and one worker: a rank with 3/4 of the rows takes 3/4 of the work.
Then any free core serves all ranks, which is the default on a CPU. There no rank is late under any
routing, so balancing only saves rows in half-filled tiles. On an NPU ranks are devices: that
is simulated, for 8 of them.
"""

import argparse
import time

import mindspore as ms
import numpy as np
from mindspore.experimental import optim

import hpmoe
from hpmoe import balance

NUM_EXPERTS, TOP_K, EVERY = 16, 2, 3
PHASES = {"A": (0, 1, 2), "B": (4, 5, 6), "A again": (0, 1, 2)}
VARIANTS = {"fixed": None, "relocated": 0, "relocated, copies": 2}  # copies that a rank can hold


def draw_ids(rng, hot, *rows):
    """Two distinct experts for each token, of which the hot ones are three fifths of all entries."""
    share = np.full(NUM_EXPERTS, 0.37 / (NUM_EXPERTS - len(hot)))
    share[list(hot)] = 0.63 / len(hot)  # a token takes an expert once, which costs the hot ones some
    return np.argsort(-np.log(share) - rng.gumbel(size=(*rows, NUM_EXPERTS)), -1)[..., :TOP_K].astype(np.int32)


def counts_of(ids):
    return np.bincount(ids.reshape(-1), minlength=NUM_EXPERTS)


class Trainer:
    """Experts' weights and their Adam, on ranks whose load is balanced, or not."""

    def __init__(self, machine, ep_size, hidden, replicas):
        def to_layer(copies):
            self.layers_made += 1
            chain = hpmoe.chain(copies, hpmoe.tile_partition(rows=128, cols=256), hpmoe.overlap_comm,
                                hpmoe.assign_queues(machine=machine), hpmoe.fuse_persistent)
            return hpmoe.spmd(chain(hpmoe.moe_ffn), hpmoe.Mesh(ep_size))

        rng, local, self.layers_made = np.random.default_rng(0), NUM_EXPERTS // ep_size, 0
        self.weights = [ms.Parameter(ms.Tensor(rng.standard_normal(shape, np.float32) * hidden ** -0.5), name=name)
                        for name, shape in (("weight1", (ep_size, local, hidden, 2 * hidden)),
                                            ("weight2", (ep_size, local, hidden, hidden)))]
        self.optimizer = optim.AdamW(self.weights, lr=1e-3)
        self.balancer = balance.Balancer(to_layer, num_experts=NUM_EXPERTS, ep_size=ep_size, every=EVERY,
                                         replicas=replicas or 0)
        self.balances, self.losses = replicas is not None, []

    def state(self):
        """All that is kept for each expert."""
        return [*self.weights, *balance.states_of(self.optimizer, self.weights)]

    def step(self, x, ids, topk_weights):
        """A step of training towards zero, and the seconds of its passes and of what moved."""
        def loss():
            places = balance.physical_ids(ms.Tensor(ids), self.balancer.places)
            return (self.balancer.layer(x, places, topk_weights, *self.weights) ** 2).mean()

        begin = time.perf_counter()
        value, grads = ms.value_and_grad(loss, None, self.weights)()
        passed = time.perf_counter()
        self.optimizer(grads)
        self.losses.append(float(value))
        updated = time.perf_counter()
        if self.balances:
            self.balancer.step(counts_of(ids), self.state())
        return passed - begin, time.perf_counter() - updated


def measure(machine, ep_size, steps, tokens, hidden, monitor=None):
    """Trainers by name after all phases, and the seconds of each step's passes and moves, [phase][variant] -> [steps, 2]."""
    rng, times = np.random.default_rng(1), {}
    trainers = {name: Trainer(machine, ep_size, hidden, replicas) for name, replicas in VARIANTS.items()}
    for phase, hot in PHASES.items():
        seconds = {name: [] for name in trainers}
        for _ in range(steps):
            x = ms.Tensor(rng.standard_normal((ep_size, tokens, hidden), np.float32))
            ids, topk_weights = draw_ids(rng, hot, ep_size, tokens), ms.Tensor(
                rng.dirichlet(np.ones(TOP_K), (ep_size, tokens)).astype(np.float32))
            if monitor:
                monitor.record(f"phase {phase}", counts_of(ids))
            for name, trainer in trainers.items():
                seconds[name].append(trainer.step(x, ids, topk_weights))
        times[phase] = {name: np.array(s) for name, s in seconds.items()}
    return trainers, times


def show_times(times):
    """Milliseconds of both passes of the fastest step after the first decision of a phase, and how many times as fast."""
    print(f"  {'phase':<9}" + "".join(f"{name:>26}" for name in VARIANTS))
    for phase, seconds in times.items():
        ms_of = {name: 1e3 * s[EVERY:, 0].min(initial=s[-1, 0]) for name, s in seconds.items()}
        print(f"  {phase:<9}" + "".join(f"{took:>16.1f} ms  {ms_of['fixed'] / took:.2f}x" for took in ms_of.values()))


def show_moves(trainers, times):
    for name, trainer in trainers.items():
        if not trainer.balances:
            continue
        for move in trainer.balancer.moves:
            seen = "new" if move.is_new else "seen before, nothing is planned"
            print(f"  {name}, after step {move.step}: {move.moved} experts moved, {move.copies} copies, load of the fullest "
                  f"rank {move.before:.2f} -> {move.after:.2f} of the mean ({seen})")
        took = max(s[name][:, 1].max() for s in times.values())
        print(f"  {name}: {trainer.layers_made} layers made; the longest move took {1e3 * took:.1f} ms, once")


def show_state(trainers):
    """Prints the trained weights, with every expert in its own place again."""
    for trainer in trainers.values():
        balance.move_experts(trainer.state(), trainer.balancer.experts, range(NUM_EXPERTS))
    fixed, moved, copied = ([t.asnumpy() for t in trainer.state()] for trainer in trainers.values())
    losses = [trainer.losses for trainer in trainers.values()]
    same = losses[0] == losses[1] and all(np.array_equal(a, b) for a, b in zip(fixed, moved, strict=True))
    apart = max(np.abs(a - b).max() for a, b in zip(fixed, copied, strict=True))
    print(f"  losses, weights and moments of fixed and relocated are the same bit for bit: {same}")
    print(f"  with copies they differ by {apart:.1e} at most")


def simulated(phase, hot, balancer, balances, ep_size, tokens, hidden):
    """Simulated seconds of both passes after a decision about this phase, and the average number of matrix workers that are
    at work on each expert in the forward pass, [E]."""
    ids = draw_ids(np.random.default_rng(len(phase)), hot, ep_size, tokens)
    if balances:
        balancer.step(counts_of(ids))
    local, places = NUM_EXPERTS // ep_size, balancer.places.asnumpy()[ids]
    avals = [hpmoe.ShapeDtypeStruct((ep_size, *shape), dtype) for shape, dtype in (
        ((tokens, hidden), "bfloat16"), ((tokens, TOP_K), "int32"), ((tokens, TOP_K), "float32"),
        ((local, hidden, hidden), "bfloat16"), ((local, hidden // 2, hidden), "bfloat16"))]
    lines = [hpmoe.simulate(balancer.layer.lower(*avals, direction=each), routing=list(places))
             for each in ("forward", "backward")]
    workers = balance.workers_per_expert(lines[0], places)[balancer.places.asnumpy()]
    return sum(line.span for line in lines) / 1e6, workers


def simulate(ep_size, *sizes):
    """Simulates what `measure` measures, with an NPU per rank, and the workers of each expert in the last phase."""
    def to_layer(copies):
        return hpmoe.spmd(hpmoe.chain(
            copies, hpmoe.tile_partition(machine=hpmoe.machines.ascend_a3, rows="auto", cols="auto"),
            hpmoe.overlap_comm(put_cols="auto", returns=2), hpmoe.assign_queues)(hpmoe.moe_ffn), hpmoe.Mesh(ep_size))

    times, workers = {phase: {} for phase in PHASES}, {}
    for name, replicas in VARIANTS.items():
        balancer = balance.Balancer(to_layer, num_experts=NUM_EXPERTS, ep_size=ep_size, every=1, replicas=replicas or 0)
        for phase, hot in PHASES.items():
            seconds, workers[name] = simulated(phase, hot, balancer, replicas is not None, ep_size, *sizes)
            times[phase][name] = np.array([[seconds, 0.0]])
    return times, workers


def show_simulated(ep_size, tokens, hidden):
    times, workers = simulate(ep_size, tokens, hidden)
    print(f"simulated: {ep_size} ranks of ascend_a3, {tokens} tokens each, H = 2I = {hidden}, bfloat16; forward + backward")
    show_times(times)
    print("  workers that compute on rows of each expert, on average over the last forward pass, simulated")
    for name, each in workers.items():
        print(f"  {name:<18}" + "".join(f"{n:6.1f}" for n in each))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="steps of a phase")
    parser.add_argument("--tokens", type=int, default=768, help="of each of two ranks")
    parser.add_argument("--hidden", type=int, default=384, help="hidden size, and intermediate size")
    parser.add_argument("--simulated_ranks", type=int, default=8)
    parser.add_argument("--simulated_tokens", type=int, default=4096, help="of each of these")
    args = parser.parse_args(argv)
    ms.runtime.launch_blocking()
    monitor, sizes = balance.LoadMonitor(), (2, args.steps, args.tokens, args.hidden)
    print("measured: 2 ranks, a worker each; forward + backward of the fastest step", flush=True)
    trainers, times = measure(hpmoe.cpu(num_workers=1, ep_size=2), *sizes, monitor)
    show_times(times)
    show_moves(trainers, times)
    show_state(trainers)
    print(f"\nloads of experts, in means of all\n{monitor}\n")
    print("measured: 2 ranks that share all cores", flush=True)
    show_times(measure(hpmoe.cpu(ep_size=2), *sizes)[1])
    print(flush=True)
    show_simulated(args.simulated_ranks, args.simulated_tokens, 4096)


if __name__ == "__main__":
    main()
