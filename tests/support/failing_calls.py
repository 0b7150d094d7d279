"""Calls of three ranks of which one fails, each in turn: the same wherever the ranks are."""

from hpmoe.support.errors import LaunchError

RANKS, STEPS = 3, 6


def failing_calls(link):
    """Returns the outcome of each call on this rank, and of a call of all ranks afterwards."""
    told = []
    for step in range(STEPS):
        try:
            with link.calling("a layer"):
                link.meet("before", b"")
                if step % RANKS == link.rank:
                    raise ValueError(f"no {step}")
                link.meet("after", b"")
        except (ValueError, LaunchError) as error:
            told.append(f"{type(error).__name__} {error}")
    return told, link.meet("last", bytes([link.rank]))


def assert_errors_of_all(found):
    """Checks every rank's outcomes: an error of one rank is raised on all, and the next call starts fresh."""
    assert len(found) == RANKS
    for rank, (told, last) in enumerate(found):
        assert last == [bytes([r]) for r in range(RANKS)] and len(told) == STEPS
        for step, words in enumerate(told):
            of_other = f"LaunchError rank {step % RANKS} failed: a layer: ValueError: no {step}."
            assert words == (f"ValueError no {step}" if step % RANKS == rank else of_other)
