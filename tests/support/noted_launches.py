"""Launches of virtual ranks, noted, so that ranks which are processes or threads can do them again."""

import contextlib

import numpy as np

from hpmoe.routing.routing import make_routing
from hpmoe.runtime.targets import Executable


@contextlib.contextmanager
def noted_launches():
    """Kernels, and what virtual ranks launch them with inside: inputs, lengths and outputs."""
    launches, run = [], Executable.run

    def noting(self, inputs, num_tokens=None, **options):
        outputs = run(self, inputs, num_tokens, **options)
        launches.append((self, [[np.copy(a) for a in mine] for mine in inputs], num_tokens,
                         [[np.copy(a) for a in mine] for mine in outputs]))
        return outputs

    Executable.run = noting
    try:
        yield launches
    finally:
        Executable.run = run


def counts_of(executable, inputs, lengths=None):
    """Returns, for each route by ids, the counts that all ranks exchange before a launch."""
    flow, counts = executable.flow, []
    for plan in flow.routes:
        if plan.kind.is_of_tokens:
            continue
        ids = [np.reshape(mine[flow.inputs.index(plan.ids)], (-1, plan.top_k)) for mine in inputs]
        counts.append(make_routing(plan.kind, ids, lengths).counts)
    return counts
