"""The errors a user can cause; each message is one line that names the thing and the remedy."""


class QuietformerError(ValueError):
    """Something the user can put right; the command line prints it as one line and exits with 2."""


class SpecError(QuietformerError):
    """A description (normalizer, gate, file section) that makes no sense as written."""


class UnsupportedModelError(QuietformerError):
    """A model whose attention cannot be replaced without changing what it computes."""


class CheckpointError(QuietformerError):
    """A folder that is damaged, foreign or newer than this version."""
