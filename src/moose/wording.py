"""Words for numbers, in one place."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and what it counts, such as ``1 episode`` or ``1,000 episodes``.

    Args:
        number: How many.
        noun: What, in the singular; its plural ends with an s more.

    Returns:
        The words.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
