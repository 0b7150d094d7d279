"""What hpmoe raises, and the one way an argument error is worded."""


class ArgumentError(ValueError):
    """An argument is not what a public function needs; the text names it, what it was and what it must be."""


class TraceError(TypeError):
    """A function does something a `Program` cannot record; the text names the call, the user's line and a spelling."""


class ProgramError(ValueError):
    """A `Program` breaks a rule of its level, or a primitive has no answer to the question asked of it."""


class TransformError(ValueError):
    """A transform does not apply to what it was given."""


class VerifyError(ValueError):
    """A `Taskflow` is not a correct schedule; the text shows the IR around the fault."""


class LaunchError(RuntimeError):
    """A launch of a persistent kernel did not finish; the text names the task, the event and who should have signalled."""


def check_argument(condition: bool, who: str, argument: str, got: object, expected: str, hint: str = "") -> None:
    """Raises ArgumentError unless `condition` holds.

    Example:
        >>> check_argument(False, "hpmoe.Mesh", "ep_size", 0, "a positive int")
        Traceback (most recent call last):
        ...
        hpmoe.errors.ArgumentError: hpmoe.Mesh: ep_size is 0; it must be a positive int.
    """
    if not condition:
        are, they = ("are", "they") if " and " in argument else ("is", "it")
        raise ArgumentError(f"{who}: {argument} {are} {got}; {they} must be {expected}.{' ' + hint if hint else ''}")
