"""Tile operations, each defined once: what it touches, what its body computes and what it costs."""
