"""What test_first_cause.py starts as three ranks: one ends, one comes after the others have gone; each says what it hears.

Arguments: the rank that ends, and the one that comes late.
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
