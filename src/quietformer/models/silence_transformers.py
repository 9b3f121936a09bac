"""transformers without its progress bars and reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import huggingface_hub
import transformers


@contextlib.contextmanager
def silenced_transformers() -> Iterator[None]:
    """Its bars, retries and reports of missing tensors are worth less than the one line we make of them."""
    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_logging: Any = huggingface_hub.logging
    hub_verbosity = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
