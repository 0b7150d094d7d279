"""The verifier against random mutants of real taskflows: it rejects all that can change a result or hang.

What a mutant can do is decided by judge.py, for every routing of layers small enough to list them all. Queues in another
order are given to requeue, which refuses only those that can hang.
"""

import collections

import numpy as np
import pytest
from helpers import SMALL_NPU
from mutants import accepted, differences, fault_of_verifier, mutant, with_deps
from mutation_subjects import CHOICES, IN_STAGES, OTHERS, SCHEDULES, SINGLE, SUBJECTS, Subject, lowered

import hpmoe
from hpmoe import VerifyError
from hpmoe.rewriting import requeue
from hpmoe.verification import cycles

MANY = 3000  # mutants, from which on there are some of a few of these, too


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
    chosen = chosen if number >= MANY else chosen[::2]
    return [Subject(*one) for one in (*chosen, *IN_STAGES, *some_others(number, seed))]


def test_no_harmful_mutant_is_accepted(subjects, request, capsys):
    """Judges 300 mutants, or --mutants=N, and prints counts by kind of mutant."""
    rng = np.random.default_rng(request.config.getoption("--mutants-seed"))
    counts, wrong = collections.Counter(), []
    assert not [subject.name for subject in subjects if subject.judge.harm(subject.flow)]
    number = request.config.getoption("--mutants")
    for i in range(number):
        subject = subjects[i * len(subjects) // number]
        kind, flow = mutant(rng, subject.flow)
        verdict = accepted(flow)
        counts[f"{kind} {'accepted' if verdict else 'refused'}"] += 1
        fault = fault_of_verifier(subject.judge, subject.flow, flow, subject.may_hang)
        if verdict and not fault:
            case = int(rng.integers(len(subject.cases)))
            fault = subject.differs(flow, case, int(rng.integers(100)), native=bool(flow.queues))
        if fault:
            wrong.append(f"mutant {i} ({kind}) of {subject.name}: {fault}; {differences(subject.flow, flow)}")
    with capsys.disabled():
        print("", *(f"{kind}: {n}" for kind, n in sorted(counts.items())), sep="\n")
    assert not wrong, f"the verifier is wrong about {len(wrong)} mutants\n" + "\n".join(wrong[:40])


HARD = (  # backward schedules with waits that only a closer look at the rows finds implied
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer"}, ("queues", hpmoe.cpu(2), "critical_path")),
    ("moe_ffn", SINGLE, {"rows": 2, "cols": 2, "signal": "peer"}, ("queues", SMALL_NPU, "stage_order")),
    ("softmax_weights", CHOICES, {"rows": 2, "cols": 1}, ("queues", hpmoe.cpu(2), "critical_path")),
    ("summed_over_tokens", SINGLE, {"rows": 1, "cols": 2, "signal": "expert"}, ("queues", SMALL_NPU, "critical_path")),
)


@pytest.mark.parametrize("name, layer, options, schedule", HARD, ids=[f"{h[0]} {h[3][2]}" for h in HARD])
def test_waits_left_out_are_refused_and_queues_judged(name, layer, options, schedule):
    subject = Subject(name, layer, options, "backward", schedule)
    flow, queues = subject.flow, [np.sort(q) for q in subject.flow.queues]
    assert not any(accepted(with_deps(flow, waits=np.delete(flow.deps.waits, i))) for i in range(len(flow.deps.waits)))
    for q, queue in enumerate(queues):
        other = flow.replace(queues=(*flow.queues[:q], queue, *flow.queues[q + 1:]))
        assert fault_of_verifier(subject.judge, flow, other, subject.may_hang) is None


def test_a_cycle_of_too_many_cases_is_refused(monkeypatch):
    flow = lowered(*HARD[0][:3], "backward", HARD[0][3])
    in_order = np.sort(flow.queues[0]), *flow.queues[1:]
    requeue(flow, in_order)
    monkeypatch.setattr(cycles, "MAX_WORK", 0)
    with pytest.raises(VerifyError, match=r"t\d+ .* can never run: a cycle leads through what it waits for"):
        requeue(flow, in_order)
