"""The errors of this package, one tree; each carries the code that a failed job shows.

A caller's mistake is a plain ValueError. Knows nothing about jobs or HTTP statuses.
"""

from typing import ClassVar


class RepriseError(Exception):
    """Root of the tree."""

    code: ClassVar[str] = "internal_error"


class CheckpointError(RepriseError):
    """A model folder lacks a part, or holds one that this code cannot run."""

    code: ClassVar[str] = "checkpoint_error"


class DoesNotFitError(RepriseError):
    """A model with its largest clip takes more memory than its device has."""

    code: ClassVar[str] = "out_of_memory"


class NumericalError(RepriseError):
    """A NaN or an infinity came out where a picture was expected."""

    code: ClassVar[str] = "numerical_error"


class Cancelled(RepriseError):
    """The caller asked to stop; raised between two denoising steps."""

    code: ClassVar[str] = "cancelled"
