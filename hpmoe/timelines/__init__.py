"""Timelines: what each worker did and when, measured or simulated, and the ways to look at them."""
