"""transformers without its progress bars and reports."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import huggingface_hub
import transformers
from tqdm import tqdm


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
        with _no_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Readers of GGUF and of compressed-tensors do not ask whether bars are wanted."""
    bar: Any = tqdm
    begin = bar.__init__
    bar.__init__ = functools.partialmethod(begin, disable=True)
    try:
        yield
    finally:
        bar.__init__ = begin
