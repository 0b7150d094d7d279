"""known: what may be None by its type, and is not where it stands."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value itself, which is not None there for a reason that types cannot say.

    Example:
        >>> import re
        >>> known(re.match("a+", "aab")).group()
        'aa'
    """
    assert value is not None
    return value
