"""What a taskflow that was rebuilt from changed operations can do wrong, in runs of routings that are rare."""

import itertools

import numpy as np
from expansion import Expansion
from judge import conflicts

import hpmoe
from hpmoe.errors import ArgumentError, TransformError, VerifyError
from hpmoe.kernels.executable import compile_cpu
from hpmoe.transforms.assign_queues import assign_queues

CLOSE = 1e-4


def refusal(make):
    """(taskflow, None), or (None, why it is refused by name)."""
    try:
        flow = make()
        hpmoe.verify(flow)
    except (TransformError, VerifyError) as error:
        return None, str(error)
    return flow, None


def rare_cases(subject):
    """Routings of a subject: all to one expert, a rank without tokens, no tokens at all, and two others."""
    def key(c):
        ids, tokens, _ = subject.cases[c]
        return sum(tokens), -len(np.unique(np.concatenate([i[:n].ravel() for i, n in zip(ids[0], tokens, strict=True)])))
    if not subject.flow.routes:
        return list(range(len(subject.cases)))
    order = sorted(range(len(subject.cases)), key=key)
    uneven = [c for c in order if len(set(subject.cases[c][1])) > 1]
    return list(dict.fromkeys([order[-1], order[0], *uneven[-1:], len(order) // 2, *uneven[:1]]))


def harm(subject, flow, same, timeout):
    """What a mutant that is accepted does wrong in one of the cases, or None: an error, another result than that of the
    `same` function, or, of another function, one that depends on who runs it, and what is written twice or never."""
    for case in rare_cases(subject):
        inputs, num_tokens = subject.inputs(case)
        try:
            want = hpmoe.interpret(subject.flow if same else flow, inputs, num_tokens)
            conflicts(Expansion(flow, subject.cases[case][0], num_tokens, subject.cases[case][2]))
            mine = hpmoe.interpret(flow, inputs, num_tokens, seed=case)
            theirs = native_run(flow, inputs, num_tokens, timeout)
        except ArgumentError as error:
            if same:
                return f"case {case}: {error}"
            continue  # a function of other arguments
        except Exception as error:  # noqa: BLE001, whatever a broken taskflow makes of it
            return f"case {case}: {type(error).__name__}: {str(error)[:200]}"
        if not are_close(theirs, want) or not are_close(mine, want):
            return f"case {case}: another result"
        if any(np.isnan(a.astype(np.float32)).any() for a in itertools.chain(*mine)):
            return f"case {case}: what nobody wrote is in the result"
    return None


def native_run(flow, inputs, num_tokens, timeout):
    """By the kernel, on two workers."""
    queued = assign_queues.rewrite(flow, machine=hpmoe.cpu(2))
    return compile_cpu(queued, timeout=timeout).run(inputs, num_tokens)


def are_close(some, others):
    return all(a.shape == b.shape and np.allclose(a.astype(np.float32), b.astype(np.float32), CLOSE, CLOSE, equal_nan=True)
               for mine, theirs in zip(some, others, strict=True) for a, b in zip(mine, theirs, strict=True))
