"""Named: members of a closed family, told apart by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from hpmoe.support.errors import ProgramError

if TYPE_CHECKING:
    from typing_extensions import Self


class Named:
    """A member of the family that its class is, or inherits from, known by its name and its number in a kernel's image.

    It is printed and pickled by its name, so that a copy is the same object.
    """

    members: ClassVar[dict[str, Self]]

    def __init_subclass__(cls) -> None:
        if Named in cls.__bases__:
            cls.members = {}

    def __init__(self, name: str, number: int):
        if name in self.members:
            raise ProgramError(f"{type(self).__name__} {name} is defined twice")
        self.name, self.number = name, number
        self.members[name] = self

    @classmethod
    def named(cls, name: str) -> Self:
        """Returns the member of a name."""
        return cls.members[name]

    def __repr__(self) -> str:
        return self.name

    def __int__(self) -> int:
        return self.number

    def __lt__(self, other: Self) -> bool:
        return self.number < other.number

    def __reduce__(self) -> tuple[Callable[[str], Named], tuple[str]]:
        return type(self).named, (self.name,)
