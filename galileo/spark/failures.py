"""What went wrong, out of stack traces of two languages."""

from __future__ import annotations

_CHARACTERS_MAX = 500


def brief(error: Exception) -> str:
    """The error's class and its innermost cause, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("at ", "..."))]
    cause = (telling or lines or [""])[-1].removeprefix(": ")
    return f"{type(error).__name__}: {cause[:_CHARACTERS_MAX]}"
