"""The verifier against random mutants of real taskflows: all that can change a result or hang are rejected, all others are
accepted. What a mutant can do is decided by judge.py, for every routing of layers small enough to list them all; one that
only so few tokens keep from harm, but not other rows that its slots have room for, counts as harmful."""

import collections

import numpy as np
import pytest
from helpers import SMALL_NPU
from mutants import MUTATIONS, changes, mutant
from mutation_subjects import CHOICES, IN_STAGES, OTHERS, SCHEDULES, SINGLE, SUBJECTS, Subject, lowered

import hpmoe
from hpmoe import VerifyError
from hpmoe.verification import cycles
from hpmoe.verification.verify import verify

# Kinds of mutants of a subject that are refused though the judge finds no harm in them: the proof follows events and queues,
# not how long tasks take that have begun. One of the 2,000 that are drawn by default.
REFUSED_ALL_THE_SAME = {("waits for what its producers wait for", "moe_ffn backward ep=1 queues round_robin 3")}
MANY = 3000  # mutants, from which on there are some of a few of these, too


def accepted(flow):
    try:
        verify(flow)
    except VerifyError:
        return False
    return True


def some_others(number, seed):
    """Programs that the seed picks, each in some stages."""
    rng, count = np.random.default_rng(seed), number // MANY * 3
    chosen = [OTHERS[i] for i in rng.permutation(len(OTHERS))[:count]]
    return [(*other, str(rng.choice(["forward", "backward"])), SCHEDULES[i])
            for other in chosen for i in rng.choice(len(SCHEDULES), size=2, replace=False)]


@pytest.fixture(scope="module")
def subjects(request):
    number, seed = (request.config.getoption(name) for name in ("--mutants", "--mutants-seed"))
    chosen = [(*subject, direction, schedule) for i, subject in enumerate(SUBJECTS) for direction in ("forward", "backward")
              for j, schedule in enumerate(SCHEDULES) if (i + j) % 2 == 0 or j == 3]
    return [Subject(*one) for one in (*chosen, *IN_STAGES, *some_others(number, seed))]


def test_verifier_is_right_about_every_mutant(subjects, request, capsys):
    """At least 2,000 mutants, or --mutants=N. Counts are printed by kind of mutation."""
    rng = np.random.default_rng(request.config.getoption("--mutants-seed"))
    counts, wrong = collections.Counter(), []
    for subject in subjects:
        assert accepted(subject.flow) and subject.judge.harm(subject.flow) is None, subject.name
    number = request.config.getoption("--mutants")
    for i in range(number):
        subject = subjects[i * len(subjects) // number]
        kind, flow = mutant(rng, subject.flow)
        anew = kind in MUTATIONS and MUTATIONS[kind][2]
        verdict = accepted(flow)
        harm = subject.harm(flow, anew, rng, verdict)
        what = "harmful" if harm else "benign" if verdict else subject.why_rejected(flow, anew)
        counts[kind, what, "accepted" if verdict else "rejected"] += 1
        if verdict == bool(harm) and what != "other rows" and (
                verdict or (kind, subject.name) not in REFUSED_ALL_THE_SAME):
            wrong.append(f"mutant {i} ({kind}) of {subject.name} is {'accepted' if verdict else 'rejected'}: {harm}, "
                         f"{changes(subject.flow, flow)}")
        if verdict and not harm and i % 20 == 0:
            case = int(rng.integers(len(subject.cases)))
            found = subject.differs(flow, case, int(rng.integers(100)), native=bool(flow.queues))
            assert not found, f"mutant {i} ({kind}) of {subject.name}: {found} in case {case}"
    with capsys.disabled():
        print(table(counts))
    assert not wrong, f"the verifier is wrong about {len(wrong)} mutants\n" + "\n".join(wrong[:40])


HARD = (  # backward schedules with waits that only a closer look at the rows finds implied
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer"}, ("queues", hpmoe.cpu(2), "critical_path")),
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer"}, ("queues", SMALL_NPU, "stage_order")),
    ("softmax_weights", CHOICES, {"rows": 2, "cols": 1}, ("queues", hpmoe.cpu(2), "critical_path")),
    ("summed_over_tokens", SINGLE, {"rows": 1, "cols": 2, "signal": "expert"}, ("queues", SMALL_NPU, "critical_path")),
)


@pytest.mark.parametrize("name, layer, options, schedule", HARD, ids=[f"{h[0]} {h[3][2]}" for h in HARD])
def test_every_wait_left_out_and_every_queue_in_order(name, layer, options, schedule):
    subject = Subject(name, layer, options, "backward", schedule)
    flow, queues = subject.flow, [np.sort(q) for q in subject.flow.queues]
    others = [flow.replace(waits=np.delete(flow.waits, i)) for i in range(len(flow.waits))]
    others += [flow.replace(queues=(*flow.queues[:q], queue, *flow.queues[q + 1:])) for q, queue in enumerate(queues)]
    for other in others:
        harm = subject.judge.harm(other)
        assert accepted(other) != bool(harm) or subject.why_rejected(other, False) == "other rows", (
            harm, changes(flow, other))


def test_a_cycle_of_too_many_cases_is_refused(monkeypatch):
    flow = lowered(*HARD[0][:3], "backward", HARD[0][3])
    in_order = flow.replace(queues=(np.sort(flow.queues[0]), *flow.queues[1:]))
    verify(in_order)
    monkeypatch.setattr(cycles, "MAX_WORK", 0)
    with pytest.raises(VerifyError, match=r"t\d+ .* can never run: a cycle leads through what it waits for"):
        verify(in_order)


def table(counts):
    columns = [("harmful", "rejected"), ("harmful", "accepted"), ("benign", "accepted"), ("other rows", "rejected"),
               ("benign", "rejected")]
    lines = [f"\n{'mutation':<30}" + "".join(f"{' '.join(c):>21}" for c in columns)]
    for kind in [*MUTATIONS, "two at once"]:
        lines.append(f"{kind:<30}" + "".join(f"{counts[(kind, *c)]:>21}" for c in columns))
    totals = [sum(n for (_, *rest), n in counts.items() if tuple(rest) == c) for c in columns]
    return "\n".join([*lines, f"{sum(totals):<30}" + "".join(f"{n:>21}" for n in totals)])
