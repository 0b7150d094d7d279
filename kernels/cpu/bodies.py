"""The capability table of the CPU, which has a body for every tile operation, every function and every dtype."""

from hpmoe.runtime.bodies import Bodies

BODIES = Bodies()
