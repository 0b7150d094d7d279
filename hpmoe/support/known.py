"""known: what may be None by its type, and is not where it stands."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value itself, which is not None there for a reason that types cannot say; TypeError where it is all the same.

    Example:
        >>> import re
        >>> known(re.match("a+", "aab")).group()
        'aa'
    """
    if value is None:  # as of a taskflow whose parts do not fit together, which verify refuses
        raise TypeError("it is None")
    return value
