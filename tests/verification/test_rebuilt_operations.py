"""Operations that a user's transform changes and rebuilds: verify proves that all is written once and nothing unwritten
is read, and refuses by name every fault that runs would show."""

import collections
import dataclasses

import numpy as np
import pytest
from changed_operations import mutations
from helpers import TWO_RANKS, Layer, lowered, stages
from mutation_subjects import CHOICES, DENSE, ONE, PAIRS, SINGLE, THREE, TWO
from rebuilt import Rebuilt, harm, judged

import hpmoe
from hpmoe import TransformError, VerifyError
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.params import WeightBlock
from hpmoe.tiling.rebuild import rebuild

SUBJECTS = (
    ("moe_ffn", ONE, {"rows": 2, "cols": 2}), ("moe_ffn", TWO, {"rows": 1, "cols": 1, "put_cols": 1}),
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer"}),
    ("moe_ffn", PAIRS, {"rows": 1, "cols": 2, "signal": "expert"}),
    ("moe_ffn", THREE, {"rows": 1, "cols": 1, "num_peers": 2}),
    ("expert_biases", ONE, {"rows": 1, "cols": 2}), ("dense_with_bias", DENSE, {"rows": 2, "cols": 2}),
    ("deduplicating", PAIRS, {"rows": 1, "cols": 2}), ("replicating_and_accumulating", SINGLE, {"rows": 1, "cols": 2}),
    ("dropping", CHOICES, {"rows": 1, "cols": 2}), ("summed_over_tokens", SINGLE, {"rows": 1, "cols": 2}))


@pytest.mark.slow
def test_every_attribute_of_what_is_rebuilt(request, capsys):
    """A tenth as many mutants as --mutants says, of all of these taskflows."""
    number, seed = (request.config.getoption(name) for name in ("--mutants", "--mutants-seed"))
    rng, counts, wrong = np.random.default_rng(seed), collections.Counter(), []
    chosen = [(*s, direction, ("tiles", "overlap")[(i + j + seed) % 2])
              for i, s in enumerate(SUBJECTS) for j, direction in enumerate(("forward", "backward"))]
    for one in chosen:
        subject = Rebuilt(*one)
        every = list(mutations(subject.flow))
        for i in rng.choice(len(every), size=min(len(every), -(-number // 10 // len(chosen))), replace=False).tolist():
            what, same, make = every[i]
            verdict, why = judged(subject, make, same)
            counts[verdict] += 1
            if verdict == "harmful":
                wrong.append(f"{subject.name}: {what}: {why}")
    with capsys.disabled():
        print(f"\nrebuilt mutants: {dict(counts)}")
    assert not wrong, f"verify accepts {len(wrong)} harmful mutants\n" + "\n".join(wrong[:40])
    assert counts["refused"] and counts["benign"]


# Units.

def changed(flow, opcode, change):
    return rebuild(flow, tuple(change(op) if op.opcode == opcode else op for op in flow.ops))


def with_size(step):
    return lambda op: op.replace(domain=dataclasses.replace(op.domain, size=op.domain.size + step))


def made(direction="forward", stage="overlap", f=hpmoe.moe_ffn, **options):
    return lowered(stages(**options)[stage](f), TWO_RANKS.arguments(), TWO_RANKS.ep, direction)


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("direction, opcode, signal", [
    *(("forward", opcode, "tile") for opcode in ("PUT", "GMM", "SWIGLU", "PUT_BACK", "REDUCE")),
    *(("backward", opcode, "tile") for opcode in ("MAP", "WGRAD", "SWIGLU_GRAD", "ROW_DOT")),
    ("forward", "NOTIFY", "expert"), ("forward", "NOTIFY", "peer")])
def test_a_unit_less_or_more_is_refused(direction, opcode, signal, step):
    flow = made(direction, signal=signal)
    with pytest.raises(VerifyError, match=r"verify: \w+ has -?\d+ units?, not \d+: "):
        hpmoe.verify(changed(flow, opcode, with_size(step)))


def test_a_user_transform_that_loses_a_tile_is_refused():
    @hpmoe.transform(requires="tiles")
    def short(flow):
        return changed(flow, "MAP", with_size(-1))
    f = short(hpmoe.tile_partition(lambda x: x * x, rows=2))
    with pytest.raises(VerifyError, match="mul has 1 unit, not 2: its 4 rows are 2 tiles of 2"):
        f.lower(hpmoe.ShapeDtypeStruct((4, 2), "float32"))


def test_other_blocks_are_refused_unless_they_cover_the_same():
    flow = made("backward", cols=2)

    def in_blocks(of, rows=None):
        def change(op):
            domain = dataclasses.replace(op.domain, size=op.domain.num_rows * of, blocks=of)
            return op.replace(domain=domain, params=WeightBlock(rows or op.params.block))
        return changed(flow, "WGRAD", change)
    with pytest.raises(VerifyError, match=r"cuts matrices of \d rows into 3 blocks of 2"):
        hpmoe.verify(in_blocks(3))
    hpmoe.verify(in_blocks(1, 16))


@pytest.mark.parametrize("name, layer, opcode, change, message", [
    ("moe_ffn", TWO, "WGRAD", lambda op: op.replace(domain=AllRows(1, op.domain.route, height=1)),
     "sums all rows where a route brings those of experts"),
    ("replicating_and_accumulating", SINGLE, "WGRAD", lambda op: op.replace(
        domain=dataclasses.replace(op.domain, first_expert=1)), "adds what copies returned to experts that are not"),
    ("replicating_and_accumulating", SINGLE, "RETURN_GRADS", lambda op: op.replace(signal="peer"),
     "signals by peer; only puts and what tells of them do")])
def test_rows_and_signals_not_of_the_operation_are_refused(name, layer, opcode, change, message):
    flow = Rebuilt(name, layer, {"rows": 1, "cols": 2}, "backward", "overlap").flow
    with pytest.raises(VerifyError, match=message):
        hpmoe.verify(changed(flow, opcode, change))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: f"{s[0]} {s[1].ep}")
def test_the_columns_of_a_weight_gradient_are_its_own_choice(subject):
    """A WGRAD task reads the columns of its block from its tokens; no operand may have other columns."""
    flow = Rebuilt(*subject, "backward", "overlap").flow
    every = [make for what, _, make in mutations(flow) if "WGRAD operands" in what.partition("] ")[2] and ".cols " in what]
    assert every or all(op.opcode != "WGRAD" for op in flow.ops)
    for make in every:
        with pytest.raises(VerifyError, match="takes columns|touches columns|takes its own columns"):
            hpmoe.verify(make())


def test_what_cannot_be_tasks_at_all_is_refused_by_name():
    flow = made()
    with pytest.raises(TransformError, match="rebuild: operations, buffers and routes of moe_ffn do not fit together"):
        changed(flow, "GMM", lambda op: op.replace(domain=dataclasses.replace(op.domain, route=7)))


# The same elements in other pieces.

def in_columns(op, at):
    """An operation on columns before `at`, and one on the others."""
    def part(first, cols):
        moved = [dataclasses.replace(a, offset=a.offset + first) if a.cols is col_modes.OWN or (
            op.params.is_transposed and k >= 2) else a for k, a in enumerate(op.operands)]
        return op.replace(operands=tuple(moved), cols=cols)
    return [part(0, at), part(at, op.cols - at)]


@pytest.mark.parametrize("opcode, direction, f", [
    *((opcode, "forward", hpmoe.moe_ffn) for opcode in ("GMM", "SWIGLU", "REDUCE")),
    *((opcode, "backward", hpmoe.moe_ffn) for opcode in ("GMM", "WGRAD", "SWIGLU_GRAD", "MAP"))])
def test_complementary_columns_are_accepted_and_compute_the_same(opcode, direction, f):
    subject = Rebuilt("moe_ffn", Layer(ep=2, T=2, H=4, I=4, E=2, K=1), {"rows": 1, "cols": 2}, direction, "overlap")
    ops = [part for op in subject.flow.ops for part in (in_columns(op, 1) if op.opcode == opcode and op.cols > 1 else [op])]
    assert len(ops) > len(subject.flow.ops)
    flow = rebuild(subject.flow, tuple(ops))
    hpmoe.verify(flow)
    assert harm(subject, flow, True) is None


def test_one_of_complementary_columns_alone_is_refused():
    flow = made(cols=2)
    ops = [part for op in flow.ops for part in (in_columns(op, 1)[1:] if op.opcode == "SWIGLU" else [op])]
    with pytest.raises(VerifyError, match="reads column 0 of c, which nobody writes"):
        hpmoe.verify(rebuild(flow, tuple(ops)))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_other_column_tiles_are_accepted_and_compute_the_same(direction):
    subject = Rebuilt("moe_ffn", PAIRS, {"rows": 1, "cols": 2}, direction, "overlap")
    for tile_cols in (1, 3, 100):
        flow = rebuild(subject.flow, tuple(op.replace(tile_cols=tile_cols) if op.cols else op for op in subject.flow.ops))
        hpmoe.verify(flow)
        assert harm(subject, flow, True) is None
