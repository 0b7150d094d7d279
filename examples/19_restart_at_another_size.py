"""Restart at another size: a run goes on from its ranks' files on more ranks, fewer ranks, or without one that has died.

    python examples/19_restart_at_another_size.py
    hpmoe launch -n 4 examples/19_restart_at_another_size.py save ckpt
    hpmoe launch -n 2 examples/19_restart_at_another_size.py resume ckpt
    rm ckpt/rank_00003*; hpmoe launch -n 3 examples/19_restart_at_another_size.py resume ckpt

The first line does both in one process. Each rank writes the experts that it holds, and the optimizer's state of these.
Whoever reads finds what it is to hold in these files, and training goes on with the losses that it would have had. In the
last line rank 3 and its files are gone: its experts come from the copies that the rank before it wrote, or, with these gone
too, are left out, and tokens choose among the others.
"""

import argparse
import tempfile

import mindspore as ms
import numpy as np
from mindspore import nn

import hpmoe

NUM_EXPERTS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_SEQUENCES, LENGTH = 12, 32, 16, 12, 16
HALF, NUM_STEPS = 5, 10


class Run:
    """A layer, its optimizer and its steps, on this process's part of the experts and of the tokens."""

    def __init__(self, mesh):
        ms.set_seed(1)
        self.mesh = mesh
        self.layer = hpmoe.nn.MoELayer(hidden_size=HIDDEN_SIZE, moe_ffn_hidden_size=INTERMEDIATE_SIZE,
                                       num_moe_experts=NUM_EXPERTS, mesh=mesh)
        self.weights = list(self.layer.trainable_params())
        self.optimizer = nn.Adam(self.weights, 0.01)
        self.step = ms.value_and_grad(self.loss_of, None, self.weights)

    def loss_of(self, x):
        return ((self.layer(x) - ms.mint.tanh(x)) ** 2).sum() / (NUM_SEQUENCES * LENGTH * HIDDEN_SIZE)

    def __call__(self, steps):
        """Trains, and returns the loss of all tokens at each step."""
        losses = []
        for i in steps:
            tokens = np.random.default_rng(i).standard_normal((NUM_SEQUENCES, LENGTH, HIDDEN_SIZE)).astype(np.float32)
            loss, (router, *experts) = self.step(ms.Tensor(np.split(tokens, self.mesh.size)[self.mesh.rank]))
            loss, router = hpmoe.all_reduce_gradients((loss, router), self.mesh)
            self.optimizer((router, *experts))
            losses.append(float(loss))
        return losses

    def save(self, folder):
        copies = 1 if self.mesh.num_ranks > 1 else 0
        hpmoe.nn.save_shards(folder, self.layer, self.mesh, self.optimizer, copies=copies)

    def resume(self, folder):
        lost = hpmoe.nn.load_shards(folder, self.layer, self.mesh, self.optimizer, missing="zeros")
        self.layer.mask_experts(lost)
        self.say(f"lost experts: {lost or 'none'}")

    def say(self, line):
        if self.mesh.rank == 0:
            print(line)


def shown(losses):
    return " ".join(f"{loss:.6f}" for loss in losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("save", "resume", "both"), default="both")
    parser.add_argument("folder", nargs="?", help="of the files; a new one for both on one rank where not given")
    args = parser.parse_args()
    if args.what != "both" and args.folder is None:
        parser.error(f"{args.what} takes the folder of the files")
    ms.runtime.launch_blocking()
    mesh = hpmoe.world()
    if args.folder is None and mesh.size > 1:
        parser.error("on several ranks both takes the folder too, which all of them see")
    folder = args.folder or tempfile.mkdtemp()
    if args.what in ("save", "both"):
        run = Run(mesh)
        run.say(f"{mesh.size} ranks, steps 0 to {HALF - 1}: {shown(run(range(HALF)))}")
        run.save(folder)
        run.say(f"as it goes on, steps {HALF} to {NUM_STEPS - 1}: {shown(run(range(HALF, NUM_STEPS)))}")
    if args.what in ("resume", "both"):
        run = Run(mesh)
        run.resume(folder)
        run.say(f"{mesh.size} ranks from the files, the same steps: {shown(run(range(HALF, NUM_STEPS)))}")


if __name__ == "__main__":
    main()
