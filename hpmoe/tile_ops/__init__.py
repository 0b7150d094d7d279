"""Tile operations, each defined once: what it touches, what its body computes, what it costs, and which targets have it."""
