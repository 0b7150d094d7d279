"""Faults planted in the functions that derive tables and prune waits: verify uses these functions, and the oracle finds each
fault without them."""

import contextlib

import pytest
from mutation_subjects import IN_STAGES, SCHEDULES, SUBJECTS, Subject, lowered
from planted_faults import FAULTS, PRUNED, compile_planner, forget, plant

from hpmoe import VerifyError
from hpmoe.planner import planner

TILES, OVERLAP, ON_CPU, ON_NPU = 0, 1, 3, 5  # of SCHEDULES
KEYS = [(*SUBJECTS[i], direction, SCHEDULES[schedule]) for i, direction, schedule in (
    (0, "forward", TILES), (0, "backward", TILES), (0, "forward", OVERLAP), (1, "forward", OVERLAP),
    (2, "forward", OVERLAP), (5, "forward", OVERLAP), (6, "forward", OVERLAP), (10, "forward", TILES),
    (11, "backward", TILES), (17, "forward", TILES), (18, "forward", TILES), (18, "backward", TILES), (19, "forward", TILES),
    (0, "forward", ON_CPU), (0, "backward", ON_NPU), (2, "forward", ON_CPU))]
KEYS += IN_STAGES[:1]


@pytest.fixture(scope="module")
def judges():
    """For each subject a judge of its schedules, which finds nothing wrong with the right one."""
    subjects = [Subject(*key) for key in KEYS]
    assert all(subject.judge.harm(subject.flow) is None for subject in subjects)
    return [subject.judge for subject in subjects]


def is_found(judges):
    """Returns True if the oracle finds a fault in any subject, lowered now; subjects that verify refuses are left out."""
    for key, judge in zip(KEYS, judges, strict=True):
        with contextlib.suppress(VerifyError):
            if judge.harm(lowered(*key)):
                return True
    return False


def test_the_oracle_finds_faults_in_derived_tables(judges):
    missed = []
    for fault in FAULTS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, fault)
            missed += [] if is_found(judges) else [fault.what]
        forget()
    assert not missed and len(FAULTS) >= 40


def test_the_oracle_finds_waits_pruned_by_mistake(judges, monkeypatch, tmp_path):
    choose, missed = compile_planner(PRUNED, tmp_path), []
    monkeypatch.setattr(planner, "FOLDER", tmp_path)
    try:
        for number, fault in enumerate(PRUNED, 1):
            forget()
            planner.load.cache_clear()
            choose(number)
            missed += [] if is_found(judges) else [fault.what]
    finally:
        forget()
        planner.load.cache_clear()
    assert not missed and len(PRUNED) >= 5
