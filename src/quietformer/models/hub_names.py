"""A name that is no folder here may be a hub id: the hub is asked once, where transformers would ask it again and again."""

from __future__ import annotations

import difflib
from pathlib import Path

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from quietformer.errors import QuietformerError

SECONDS = 5.0
"""The hub answers within so long, or it counts as not there."""

CLOSE = 0.75
"""How alike two names are of which one is a slip for the other."""


def check_hub_name(source: str, known: tuple[str, ...] = (), asked: str = "config.json") -> None:
    """Refuse what the hub does not have, and what it cannot be asked now; a name close to a known one is a slip.

    What is in the hub's cache is taken as it is.
    """
    if (slip := _closest(source, known)) is not None:
        raise QuietformerError(f"there is no folder {source!r} here; did you mean {slip!r}?")
    beside = _closest_beside(Path(source))
    otherwise = " or ".join(["a .gguf file", *map(repr, known)]) if known else ""
    remedy = f"did you mean {beside!r}?" if beside else f"give a folder{f', {otherwise}' if otherwise else ''}"
    told = f"there is no folder {source!r} here, and"
    try:
        if isinstance(try_to_load_from_cache(source, asked), str):
            return
        get_hf_file_metadata(hf_hub_url(source, asked), timeout=SECONDS)
    except (EntryNotFoundError, GatedRepoError):  # it is there; what it lacks or asks for is told by who reads it
        return
    except HFValidationError:
        raise QuietformerError(f"{told} the hub has no such names; {remedy}") from None
    except RepositoryNotFoundError:
        raise QuietformerError(
            f"{told} the hub has no model of that name (a private one needs `hf auth login`); {remedy}"
        ) from None
    except OfflineModeIsEnabled:
        raise QuietformerError(
            f"{told} the hub is not asked while HF_HUB_OFFLINE is set, nor is it in the cache; {remedy}"
        ) from None
    except Exception:  # refused, unreachable, too slow: errors of the network share no base
        raise QuietformerError(f"{told} the hub ({constants.ENDPOINT}) cannot be reached; {remedy}") from None


def _closest(name: str, choices: tuple[str, ...]) -> str | None:
    """The one among the choices that a name is a slip for, whatever its capitals."""
    found = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=CLOSE)
    return found[0] if found else None


def _closest_beside(place: Path) -> str | None:
    """The model folder whose name is closest, where the folder would be."""
    try:
        there = tuple(one.name for one in place.parent.iterdir() if (one / "config.json").is_file())
    except OSError:
        return None
    by_lower = {name.lower(): name for name in there}
    closest = _closest(place.name, tuple(by_lower))
    return None if closest is None else str(place.with_name(by_lower[closest]))
