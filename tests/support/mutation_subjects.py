"""The taskflows that are mutated, each with a judge that knows every routing of it, and what running a mutant shows."""

import itertools

import numpy as np
from helpers import SMALL_NPU, Layer, stages
from judge import Judge, every_arrival
from mindspore import Tensor
from orders import interleaved
from variants import VARIANTS, arguments

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.interpreters.interpret import interpret
from hpmoe.kernels.cpu.target import CPU
from hpmoe.support.dtypes import dtype_name, numpy_dtype
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.transforms.launch_kernels import launch_kernels

ONE = Layer(ep=1, T=3, H=2, I=2, E=2, K=1)
CHOICES = Layer(ep=1, T=2, H=2, I=1, E=3, K=2)
TWO = Layer(ep=2, T=2, H=2, I=1, E=2, K=1)
SINGLE = Layer(ep=2, T=1, H=2, I=1, E=4, K=1)
PAIRS = Layer(ep=2, T=1, H=2, I=1, E=4, K=2)
THREE = Layer(ep=3, T=1, H=1, I=1, E=3, K=1)
DENSE = Layer(ep=1, T=4, H=3, I=2, E=1, K=1)
SUBJECTS = (
    ("moe_ffn", ONE, {"rows": 2, "cols": 2}),
    ("moe_ffn", CHOICES, {"rows": 1, "cols": 2, "signal": "expert"}),
    ("moe_ffn", TWO, {"rows": 1, "cols": 1, "put_cols": 1}),
    ("moe_ffn", TWO, {"rows": 1, "cols": 2, "returns": 1}),
    ("moe_ffn", ONE, {"rows": 1, "cols": 2, "returns": 2}),
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer", "order": "sequential", "combine_order": "ratr"}),
    ("moe_ffn", PAIRS, {"rows": 1, "cols": 2, "signal": "expert", "order": "sequential"}),
    ("moe_ffn", THREE, {"rows": 2, "cols": 1, "signal": "tile", "combine_order": "sequential"}),
    ("moe_ffn", THREE, {"rows": 1, "cols": 1, "num_peers": 2}),
    ("expert_biases", ONE, {"rows": 1, "cols": 2, "signal": "peer"}),
    ("softmax_weights", CHOICES, {"rows": 2, "cols": 1}),
    ("dense_with_bias", DENSE, {"rows": 2, "cols": 2}),
    ("summed_over_tokens", SINGLE, {"rows": 1, "cols": 2, "signal": "expert"}),
    ("deduplicating", PAIRS, {"rows": 1, "cols": 2}),
    ("aligning", SINGLE, {"rows": 2, "cols": 2}),
    ("aligning_once", PAIRS, {"rows": 1, "cols": 2}),
    ("quantising", PAIRS, {"rows": 1, "cols": 2}),
    ("quantising_weights", SINGLE, {"rows": 1, "cols": 2}),
    ("replicating", SINGLE, {"rows": 1, "cols": 2, "signal": "expert"}),
    ("quantising", TWO, {"rows": 2, "cols": 2, "parts": 2}),
)
WIDE = Layer(ep=1, T=2, H=3, I=3, E=3, K=2)
APART = Layer(ep=2, T=1, H=3, I=3, E=4, K=1)
OTHERS = tuple((name, *rest) for name in (
    *VARIANTS, "dropping", "dropping_the_lightest", "in_capacity", "accumulating", "recomputing", "recomputing_swiglu",
    "saving_nothing", "deduplicating", "aligning", "aligning_once", "replicating", "replicating_and_accumulating",
    "bfloat16", "float16") for rest in (
    (WIDE, {"rows": 2, "cols": 2}), (APART, {"rows": 1, "cols": 2, "signal": "expert"})))
IN_STAGES = (  # full-device kernels one after another, and weight gradients behind what reads the same rows
    ("moe_ffn", PAIRS, {"rows": 1, "cols": 2}, "forward", ("launched", SMALL_NPU, "round_robin")),
    ("moe_ffn", ONE, {"rows": 2, "cols": 2}, "backward", ("launched", hpmoe.cpu(2), "stage_order")),
    ("moe_ffn", CHOICES, {"rows": 2, "cols": 2}, "backward", ("queues", SMALL_NPU, interleaved(POLICIES["critical_path"]))),
    ("moe_ffn", SINGLE, {"rows": 1, "cols": 1}, "backward", ("queues", SMALL_NPU, interleaved(POLICIES["stage_order"]))))
ARRIVALS = 20  # that are judged together
SCHEDULES = (("tiles", None, None), ("overlap", None, None), ("queues", hpmoe.cpu(1), "stage_order"),
             ("queues", hpmoe.cpu(2), "critical_path"), ("queues", hpmoe.cpu(3), "round_robin"),
             ("queues", SMALL_NPU, "critical_path"), ("queues", SMALL_NPU, "stage_order"))


def dropping(x, ids, w, up, down, dense_up, dense_down):
    """With a shared expert, and a capacity that some choices are over."""
    return hpmoe.moe_ffn(x, ids, w, up, down, dense_up, dense_down, capacity_factor=0.5, drop_policy="position")


def dropping_the_lightest(x, ids, w, up, down):
    return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=0.5, drop_policy="probs")


def in_capacity(x, ids, w, up, down):
    """One that no routing is over."""
    return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=float(w.shape[0]) * 8)


def aligning(x, ids, w, up, down):
    """Rows of zeros fill those of each expert up to pairs."""
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=up.shape[0], expert_alignment=2)
    return hpmoe.combine(hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route)), down, route), route, w)


def accumulating(layer):
    local = layer.E // layer.ep
    shapes = {"gate_up_weight": (local, layer.H, 2 * layer.I), "down_weight": (local, layer.I, layer.H)}
    mains = {name: Tensor(np.ones(shape, np.float32)) for name, shape in shapes.items()}
    return hpmoe.accumulate_grads(hpmoe.moe_ffn, into=mains)


def replicating(layer, f=hpmoe.moe_ffn):
    """Copies of the first experts on the last ranks."""
    return hpmoe.replicate_experts(f, loads=[2 ** (layer.E - e) for e in range(layer.E)])


def saving(policy):
    return lambda layer: hpmoe.save_for_backward(hpmoe.moe_ffn, policy=policy)


MADE = {"accumulating": accumulating, "replicating": replicating, "recomputing": saving("dispatched_rows"),
        "recomputing_swiglu": saving("recompute_swiglu"), "saving_nothing": saving(lambda eqn: False),
        "quantising": lambda layer: hpmoe.quantize_rows(hpmoe.moe_ffn, backward="quantized"),
        "quantising_weights": lambda layer: hpmoe.quantize_weights(hpmoe.quantize_rows(hpmoe.moe_ffn), row_dtype="int8"),
        "deduplicating": lambda layer: hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"),
        "aligning": lambda layer: aligning, "aligning_once": lambda layer: hpmoe.send_rows(aligning, scheme="deduplicated"),
        "replicating_and_accumulating": lambda layer: replicating(layer, accumulating(layer))}
WITH_CAPACITY = {f.__name__: f for f in (dropping, dropping_the_lightest, in_capacity)}


def function(name, layer):
    """The function of a subject and the arrays it is lowered for."""
    if name in VARIANTS or name in WITH_CAPACITY:
        f = WITH_CAPACITY[name] if name in WITH_CAPACITY else VARIANTS[name][0]
        return f, arguments(f, layer)
    f = MADE[name](layer) if name in MADE else hpmoe.moe_ffn
    return f, [a.astype(numpy_dtype(name)) if name in ("bfloat16", "float16") and a.dtype != np.int32 else a
               for a in layer.arguments()]


def lowered(name, layer, options, direction, schedule):
    stage, machine, policy = schedule
    f, args = function(name, layer)
    if stage == "launched":
        tiled = launch_kernels(hpmoe.tile_partition(f, rows=options["rows"], cols=options["cols"]))
        made = hpmoe.assign_queues(tiled, machine=machine, policy=policy)
    else:
        made = stages(machine=machine, policy=policy or "critical_path", **options)[stage](f)
    avals = [ShapeDtypeStruct(a.shape[1:], dtype_name(a.dtype)) for a in args]
    return made.lower(*avals, mesh=hpmoe.Mesh(layer.ep), direction=direction)


def every_case(layer, flow):
    """Every number of tokens and every choice of experts, some of them none, of every rank through every route of its own
    ids, with some weights. The order of a token's choices only names its entries; it is that of the experts, or the other
    way round."""
    of_ids = [i for i, plan in enumerate(flow.routes) if not plan.kind.is_of_tokens]
    chosen = itertools.combinations([*range(layer.E), *[-1] * layer.K], layer.K)
    one_token = [c[::1 - 2 * (i % 2)] for i, c in enumerate(dict.fromkeys(chosen))]
    rank = [(n, ids) for n in range(layer.T + 1) for ids in itertools.product(one_token, repeat=n * len(of_ids))]
    cases = []
    for ranks in itertools.product(rank, repeat=layer.ep):
        ids = [[np.array([*chosen[i * n:(i + 1) * n], *[one_token[0]] * (layer.T - n)], np.int32).reshape(layer.T, layer.K)
                for n, chosen in ranks] for i in range(len(of_ids))]
        of_route = [ids[of_ids.index(i if not plan.kind.is_of_tokens else plan.of)] for i, plan in enumerate(flow.routes)]
        weights = np.random.default_rng(len(cases)).standard_normal((layer.ep, layer.T, layer.K)).astype(np.float32)
        cases.append((of_route, [n for n, _ in ranks], list(weights)))
    return cases


def random_inputs(x, ids, weights, seed):
    """Inputs of every rank of an expansion: its ids and weights, and random numbers."""
    rng, flow = np.random.default_rng(seed), x.flow
    given = {plan.weights: weights for plan in flow.routes} | {plan.ids: ids[i] for i, plan in enumerate(flow.routes)}

    def array(b, rank):
        buffer = flow.buffers[b]
        shape = tuple(d if isinstance(d, int) else x._num_rows(rank, b) for d in buffer.shape)
        return given[b][rank].copy() if b in given else rng.standard_normal(shape).astype(numpy_dtype(buffer.dtype))
    return [[array(b, rank) for b in flow.inputs] for rank in x.ranks]


class Subject:
    """A taskflow, its judge and its results."""

    judges, other_judges = {}, {}

    def __init__(self, name, layer, options, direction, schedule):
        self.layer = layer
        stage, machine, policy = schedule
        self.name = (f"{name} {direction} ep={layer.ep} {stage} {getattr(policy, '__name__', policy)} "
                     f"{getattr(machine, 'num_queues', '')}")
        self.flow = lowered(name, layer, options, direction, schedule)
        self.key = name, layer, str(options), direction, stage if stage in ("tiles", "launched") else ""
        if self.key not in self.judges:
            self.judges[self.key] = Judge(self.flow, every_case(layer, self.flow))
        self.judge = self.judges[self.key]
        self.cases = self.judge.cases
        self.results = {}

    def inputs(self, case):
        """Random inputs of every rank for a case."""
        ids, num_tokens, weights = self.cases[case]
        return random_inputs(self.judge.expansions[case], ids, weights, case), num_tokens

    def result(self, flow, case, seed=None):
        inputs, num_tokens = self.inputs(case)
        return [(a.shape, a.tobytes()) for outs in interpret(flow, inputs, num_tokens, seed=seed) for a in outs]

    def native_result(self, flow, case, timeout=10.0):
        """By the kernel; without queues, in program order on one worker."""
        inputs, num_tokens = self.inputs(case)
        if not flow.queues:
            flow = flow.replace(queues=(np.arange(flow.num_tasks),), machine=hpmoe.cpu(1))
        kernel = CPU.compile([flow], timeout=timeout)
        return [(a.shape, a.tobytes()) for outs in kernel.run(inputs, num_tokens) for a in outs]

    def want(self, case, run=None):
        key = case, run
        if key not in self.results:
            self.results[key] = (run or self.result)(self.flow, case)
        return self.results[key]

    def differs(self, flow, case, seed, native=True, timeout=10.0):
        """Runs a mutant; returns the error or the kind of difference, None if all results are equal bit by bit."""
        try:
            if self.result(flow, case, seed) != self.want(case):
                return "another result"
            if native and self.native_result(flow, case, timeout) != self.want(case, self.native_result):
                return "another result of the kernel"
        except Exception as error:  # noqa: BLE001, whatever a broken taskflow makes of it
            return f"{type(error).__name__}: {error}"
        return None

    def judges_of_arrivals(self):
        """Yields Judges, each of some arrivals, made on first use."""
        made = self.other_judges.setdefault(self.key, [])
        if not made:
            arrivals = every_arrival(self.flow, np.random.default_rng(0), 300) if self.flow.routes else []
            order = np.random.default_rng(1).permutation(len(arrivals)).tolist()
            made += [[arrivals[i] for i in order[first:first + ARRIVALS]] for first in range(0, len(order), ARRIVALS)]
        for i, some in enumerate(made):
            if isinstance(some, list):
                made[i] = Judge(self.flow, some, some)
            yield made[i]

    def may_hang(self, flow):
        """Returns True if some row counts that fit into the slots make the schedule hang or read too early."""
        return any(judge.harm(flow) for judge in self.judges_of_arrivals())
