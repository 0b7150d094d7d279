"""A layer on the emulator, forward and backward, whose kernels take one of several plans when they start."""

import numpy as np
from ascend_helpers import npu
from helpers import Layer, assert_close, numpy_moe_ffn

import hpmoe
from hpmoe.autodiff.vjp import linearize
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows

LAYER = Layer(ep=4, T=12, H=32, I=16, E=8, K=2)
EXPECTED = 24, 40, 80  # rows of a rank; balanced ones are 24


def kernel_of(program, expected, tile_rows=(4, 4, 4), blocks=1, rewrite=lambda program: program):
    """A kernel that takes one of the plans for these, which may have other tiles, or has but one."""
    def flow(n, rows):
        planned = with_planned_rows(program, [PlannedRows(route.aval.max_rows, n) for route in routes_of(program)])
        tiles = hpmoe.tile_partition.apply_to(rewrite(planned), rows=rows, cols=32)
        return hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(tiles), machine=npu(blocks))
    return EMULATOR.compile([flow(n, rows) for n, rows in zip(expected, tile_rows, strict=False)], 20.0)


def ids_of(layer, routing):
    rng, shape = np.random.default_rng(3), (layer.ep, layer.T, layer.K)
    ids = np.arange(np.prod(shape)).reshape(shape) % layer.E
    if routing == "hot":
        ids[..., 0], ids[..., 1] = layer.E - 1, rng.integers(0, layer.E - 1, shape[:2])
    if routing == "half":
        ids = np.stack([[rng.permutation(layer.E // 2)[:layer.K] for _ in range(layer.T)] for _ in range(layer.ep)])
    if routing == "one rank":
        ids[...] = range(layer.K)
    return ids.astype(np.int32)


def plan_for(fullest, expected=EXPECTED):
    """The plan whose expected rows are nearest to the fullest rank's, where one for fewer is three times as far."""
    return int(np.argmin([n - fullest if n >= fullest else 3 * (fullest - n) for n in expected]))


class ChosenRun:
    """Launches of the same kernels with one routing after the other: what each gives, and in `taken` its plans.

    `f` is moe_ffn or like it, with the `limit` of limit_rows; for `options` see kernel_of.
    """

    def __init__(self, f=hpmoe.moe_ffn, limit=None, layer=LAYER, expected=EXPECTED,
                 routings=("balanced", "half", "one rank", "hot", "balanced", "one rank"), **options):
        self.layer, self.routings, self.taken = layer, routings, []
        shapes = [a.shape[1:] for a in self.layer.arguments()]
        avals = [hpmoe.ShapeDtypeStruct(s, "int32" if i == 1 else "float32") for i, s in enumerate(shapes)]
        program = hpmoe.trace(f, *avals, mesh=layer.mesh)
        self.lin = linearize(hpmoe.limit_rows.apply_to(program, rank_capacity_factor=limit) if limit else program)
        self.kernels = [kernel_of(program, expected, **options) for program in (self.lin.forward, self.lin.backward)]

    def of(self, routing):
        """Arguments with the rank axis first, and what the layer gives: output and gradients."""
        layer, (forward, backward) = self.layer, self.kernels
        x, _, *rest = layer.arguments()
        args, cotangent = [x, ids_of(layer, routing), *rest], layer.cotangent()
        inputs = [[a[rank] for a in args] for rank in range(layer.ep)]
        outputs = forward.run(inputs, layer.num_tokens)
        saved = [[*(mine[i] for i in self.lin.kept_inputs), *out[1:], cotangent[rank]]
                 for rank, (mine, out) in enumerate(zip(inputs, outputs, strict=True))]
        grads = backward.run(saved, layer.num_tokens)
        self.taken.append((forward.state.counts.plan, backward.state.counts.plan))
        return args, [np.stack(of_all) for of_all in zip(*(
            [out[0], *mine] for out, mine in zip(outputs, grads, strict=True)), strict=True)]

    def __call__(self):
        """All results, and the plans that the launches took."""
        found = [a for routing in self.routings for a in self.of(routing)[1]]
        return [*found, np.array(self.taken[-len(self.routings):])]

    def assert_close_to_float64(self):
        found = [self.of(routing) for routing in self.routings]
        for args, got in found:
            out, grads = numpy_moe_ffn(args, self.layer.cotangent(), self.layer.num_tokens)
            assert_close(got, [out, *grads], tolerance=3e-6)
        return [*(a for _, got in found for a in got), np.array(self.taken[-len(self.routings):])]
