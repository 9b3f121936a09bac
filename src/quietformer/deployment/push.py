"""Uploading a folder to the hub, when the user says so."""

from __future__ import annotations

import re
from pathlib import Path

from quietformer.errors import QuietformerError, in_one_line


def check_hub_id(option: str, name: str) -> None:
    """Refuse what cannot be the name of a repository of somebody's."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name, re.ASCII) or "--" in name or ".." in name:
        raise QuietformerError(f"{option}: {name!r} is not a hub id; write it like user/model")


def check_repository(repo: str) -> None:
    """Whether something can be pushed there, as far as that can be known before the work."""
    from huggingface_hub import constants, get_token

    check_hub_id("--push", repo)
    if constants.HF_HUB_OFFLINE:
        raise QuietformerError("--push: HF_HUB_OFFLINE is set, so nothing can be pushed; unset it")
    if get_token() is None:
        raise QuietformerError("--push: nobody is logged in to the hub; run `hf auth login`, or set HF_TOKEN")


def push_folder(folder: Path, repo: str, files: list[str], *, private: bool = False) -> str:
    """Make the repository if it is not there, upload these files of the folder and no others, and return its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repo, exist_ok=True, private=private or None)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=files,
            commit_message="INT8 model, exported with Quietformer",
        )
    except Exception as error:  # the hub's and the network's own kinds share no base
        raise QuietformerError(
            f"{folder} is written, but pushing it to {repo} failed: {in_one_line(error, 200)}; try `hf upload {repo} {folder}`"
        ) from error
    return str(done.repo_url)
