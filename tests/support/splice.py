"""Faults that are compiled together, of which a run chooses one by number."""


def splice(source, edits):
    """Source with every edit in it, chosen at run time: edits are (number of the mutant, old, new)."""
    spots = {}
    for number, old, new in edits:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
        spots.setdefault((source.index(old), old), []).append((number, new))
    for (start, old), choices in sorted(spots.items(), reverse=True):
        text = old
        for number, new in choices:
            if old.endswith(";"):
                text = f"if (hpmoe_mutant == {number}) {{ {new or ';'} }} else {{ {text} }}"
            else:
                text = f"(hpmoe_mutant == {number} ? {new} : {text})"
        source = source[:start] + text + source[start + len(old):]
    return source
