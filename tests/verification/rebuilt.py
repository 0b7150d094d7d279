"""Finds faults of a taskflow rebuilt from changed operations, in runs of rare routings."""

import itertools

import numpy as np
from expansion import Expansion
from judge import conflicts
from mutation_subjects import every_case, lowered, random_inputs

import hpmoe
from hpmoe.kernels.cpu.target import CPU
from hpmoe.support.errors import ArgumentError, TransformError, VerifyError
from hpmoe.transforms.assign_queues import assign_queues

CLOSE = 1e-4


def judged(subject, make, same):
    """("refused", why), ("benign", None) or ("harmful", what it does wrong) of a mutant."""
    try:
        flow = make()
        hpmoe.verify(flow)
    except (TransformError, VerifyError) as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001, an error that names nothing
        return "harmful", f"{type(error).__name__}: {error}"
    found = harm(subject, flow, same)
    return "harmful" if found else "benign", found


class Rebuilt:
    """A taskflow and some routings that are rare: all to one expert, a rank without tokens, no tokens at all, and others."""

    def __init__(self, name, layer, options, direction, stage):
        self.name = f"{name} {direction} ep={layer.ep} {stage}"
        self.flow = lowered(name, layer, options, direction, (stage, None, None))
        every = every_case(layer, self.flow)
        order = sorted(range(len(every)), key=lambda c: _spread(*every[c]))
        uneven = [c for c in order if len(set(every[c][1])) > 1]
        chosen = dict.fromkeys([order[-1], order[0], *uneven[-1:], order[len(order) // 2]])
        self.cases = []
        for ids, num_tokens, weights in map(every.__getitem__, chosen):
            inputs = random_inputs(Expansion(self.flow, ids, num_tokens, weights), ids, weights, 0)
            self.cases.append((ids, num_tokens, weights, inputs))
        self.results = {}

    def want(self, case):
        if case not in self.results:
            _, num_tokens, _, inputs = self.cases[case]
            self.results[case] = hpmoe.interpret(self.flow, inputs, num_tokens)
        return self.results[case]


def harm(subject, flow, same, timeout=5.0):
    """Returns the fault of an accepted mutant in one of the cases, or None: an error, another result than that of the
    `same` function, or, of another function, one that depends on who runs it, and what is written twice or never."""
    for case, (ids, num_tokens, weights, inputs) in enumerate(subject.cases):
        try:
            want = subject.want(case) if same else hpmoe.interpret(flow, inputs, num_tokens)
            conflicts(Expansion(flow, ids, num_tokens, weights))
            mine = hpmoe.interpret(flow, inputs, num_tokens, seed=case)
            theirs = native_run(flow, inputs, num_tokens, timeout)
        except ArgumentError as error:
            if same:
                return f"case {case}: {error}"
            continue  # a function of other arguments
        except VerifyError:
            continue  # ranks that wait for each other in a way no queue can follow: refused when queues are assigned
        except Exception as error:  # noqa: BLE001, whatever a broken taskflow makes of it
            return f"case {case}: {type(error).__name__}: {str(error)[:200]}"
        if not are_close(theirs, want) or not are_close(mine, want):
            return f"case {case}: another result"
        if any(np.isnan(a.astype(np.float32)).any() for a in itertools.chain(*mine)):
            return f"case {case}: what nobody wrote is in the result"
    return None


def _spread(ids, num_tokens, weights):
    """Sorts cases by their tokens, then those first that choose many experts."""
    return sum(num_tokens), -len(np.unique(np.concatenate(ids[0]))) if ids else 0


def native_run(flow, inputs, num_tokens, timeout):
    """By the kernel, on two workers."""
    queued = assign_queues.rewrite(flow, machine=hpmoe.cpu(2))
    hpmoe.verify(queued)
    return CPU.compile([queued], timeout=timeout).run(inputs, num_tokens)


def are_close(some, others):
    return all(a.shape == b.shape and np.allclose(a.astype(np.float32), b.astype(np.float32), CLOSE, CLOSE, equal_nan=True)
               for mine, theirs in zip(some, others, strict=True) for a, b in zip(mine, theirs, strict=True))
