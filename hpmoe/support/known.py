"""known: what may be None by its type, and is not where it stands."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Returns a value that is never None here, which types cannot express; raises TypeError if it is None after all.

    Example:
        >>> import re
        >>> known(re.match("a+", "aab")).group()
        'aa'
    """
    if value is None:  # as of a taskflow whose parts do not fit together, which verify refuses
        raise TypeError("it is None")
    return value
