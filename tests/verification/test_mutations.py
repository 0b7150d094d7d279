"""The verifier against random mutants of real taskflows: it rejects all that can change a result or hang.

What a mutant can do is decided by judge.py, for every routing of layers small enough to list them all. Queues in another
order are given to requeue, which refuses only those that can hang.
"""

import collections

import numpy as np
import pytest
from helpers import SMALL_NPU
from mutants import MUTATIONS, changes, mutant
from mutation_subjects import CHOICES, IN_STAGES, OTHERS, SCHEDULES, SINGLE, SUBJECTS, Subject, lowered
from schedule_oracle import fault_of

import hpmoe
from hpmoe import VerifyError
from hpmoe.rewriting import rebuild, requeue
from hpmoe.verification import cycles
from hpmoe.verification.verify import verify

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


def in_other_queues(subject, flow):
    """The subject's operations in the queues of a mutant that differs in queues only, with all derived waits; else None."""
    same = ("waits", "signals", "events", "ops", "buffers", "routes", "blocks")
    if not flow.queues or flow.queues is subject.flow.queues or any(
            getattr(flow, name) is not getattr(subject.flow, name) for name in same):
        return None
    return rebuild(flow, flow.ops).replace(queues=flow.queues)


def wrong_about_queues(subject, flow):
    """Whether requeue refuses queues that cannot hang, or takes others."""
    whole = in_other_queues(subject, flow)
    if whole is None:
        return None
    harm = subject.judge.harm(whole)
    try:
        made = requeue(subject.flow, flow.queues)
    except VerifyError as error:
        return None if harm or subject.why_rejected(whole, False) == "other rows" else f"requeue refuses: {error}"
    return f"requeue takes queues that are wrong: {harm}" if harm or subject.judge.harm(made) else None


def test_no_harmful_mutant_is_accepted(subjects, request, capsys):
    """At least 2,000 mutants, or --mutants=N. Counts are printed by kind of mutation."""
    rng = np.random.default_rng(request.config.getoption("--mutants-seed"))
    counts, wrong = collections.Counter(), []
    for subject in subjects:
        assert accepted(subject.flow) and fault_of(subject.judge, subject.flow) is None, subject.name
    number = request.config.getoption("--mutants")
    for i in range(number):
        subject = subjects[i * len(subjects) // number]
        kind, flow = mutant(rng, subject.flow)
        anew = kind in MUTATIONS and MUTATIONS[kind][2]
        verdict = accepted(flow)
        harm = subject.harm(flow, anew, rng, verdict)
        counts[kind, "harmful" if harm else "benign", "accepted" if verdict else "rejected"] += 1
        fault = f"accepted: {harm}" if verdict and harm else wrong_about_queues(subject, flow)
        if fault:
            wrong.append(f"mutant {i} ({kind}) of {subject.name} is {fault}, {changes(subject.flow, flow)}")
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
def test_waits_left_out_are_refused_and_queues_judged(name, layer, options, schedule):
    subject = Subject(name, layer, options, "backward", schedule)
    flow, queues = subject.flow, [np.sort(q) for q in subject.flow.queues]
    assert not any(accepted(flow.replace(waits=np.delete(flow.waits, i))) for i in range(len(flow.waits)))
    for q, queue in enumerate(queues):
        other = flow.replace(queues=(*flow.queues[:q], queue, *flow.queues[q + 1:]))
        assert wrong_about_queues(subject, other) is None


def test_a_cycle_of_too_many_cases_is_refused(monkeypatch):
    flow = lowered(*HARD[0][:3], "backward", HARD[0][3])
    in_order = np.sort(flow.queues[0]), *flow.queues[1:]
    requeue(flow, in_order)
    monkeypatch.setattr(cycles, "MAX_WORK", 0)
    with pytest.raises(VerifyError, match=r"t\d+ .* can never run: a cycle leads through what it waits for"):
        requeue(flow, in_order)


def table(counts):
    columns = [("harmful", "rejected"), ("harmful", "accepted"), ("benign", "accepted"), ("benign", "rejected")]
    lines = [f"\n{'mutation':<30}" + "".join(f"{' '.join(c):>21}" for c in columns)]
    for kind in [*MUTATIONS, "two at once"]:
        lines.append(f"{kind:<30}" + "".join(f"{counts[(kind, *c)]:>21}" for c in columns))
    totals = [sum(n for (_, *rest), n in counts.items() if tuple(rest) == c) for c in columns]
    return "\n".join([*lines, f"{sum(totals):<30}" + "".join(f"{n:>21}" for n in totals)])
