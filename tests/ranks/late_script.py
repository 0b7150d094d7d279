"""Script for test_first_cause.py: one rank exits, one calls world() after the others have gone; each prints its error.

Arguments: the rank that exits with status 3, and the rank that calls world() a second late.
"""

import os
import sys
import time

from whole_lines import say

import hpmoe

rank, ends, late = int(os.environ["RANK"]), *map(int, sys.argv[1:])
if rank == ends:
    sys.exit(3)
if rank == late:
    time.sleep(1)
try:
    hpmoe.world(timeout=20)
except hpmoe.LaunchError as error:
    say(f"rank {rank} told {error} {error.status['rank']}")
    raise
