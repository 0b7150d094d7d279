"""A line to stdout in one piece, also where Python does not buffer: several ranks write to one pipe."""

import sys


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
