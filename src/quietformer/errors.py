"""The errors a user can cause; each message is one line that names the thing and the remedy."""

from __future__ import annotations

import inspect
import warnings


class QuietformerError(ValueError):
    """Something the user can put right; the command line prints it as one line and exits with 2."""


class SpecError(QuietformerError):
    """A description (normalizer, gate, file section) that makes no sense as written."""


class UnsupportedModelError(QuietformerError):
    """A model whose attention cannot be replaced without changing what it computes."""


class CheckpointError(QuietformerError):
    """A folder that is damaged, foreign or newer than this version."""


class QualityError(QuietformerError):
    """Real INT8 is worse than asked for, and nothing was written; `report` says what was reached and what was tried."""

    def __init__(self, message: str, report: object) -> None:
        super().__init__(message)
        self.report = report


class QuietformerWarning(UserWarning):
    """Something a user should know though it is no error; the command line prints it as one line."""


def warn(text: str) -> None:
    """A warning at the user's own line, however deep in the library it arises."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "quietformer":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, QuietformerWarning, stacklevel=level)


def in_one_line(error: BaseException, limit: int = 300) -> str:
    """What an error of somebody else's says, fit for one line of ours; its kind where it says nothing."""
    if isinstance(error, KeyError):  # says no more than the key
        return f"unknown or missing name {' '.join(str(error).split())[:limit]}"
    return " ".join(str(error).split())[:limit] or type(error).__name__


def root_of(error: BaseException) -> BaseException:
    """The first thing that went wrong, which libraries wrap several times over."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
