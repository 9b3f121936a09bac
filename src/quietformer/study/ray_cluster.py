"""Runs of a study on a Ray cluster, whose nodes may or may not see the study's folder."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError, in_one_line
from quietformer.progress import SILENT, Progress
from quietformer.results.trial import TrialReport
from quietformer.study.workers import ELSEWHERE, FAILED, MARK, Done, Task, carry_out, failure
from quietformer.training.interrupt import StoppedError

CONNECTED_WITHIN = 10.0
"""Seconds to wait for a cluster."""

NODE_DEATHS = 3
"""How often a run is started again because the node or the process it was in is gone."""


def on_ray(tasks: list[Task], done: Done, ray: Any, progress: Progress = SILENT) -> None:
    """On a Ray cluster: a run whose node is gone is resumed on another node, if that can see the folder."""
    options = {"num_cpus": tasks[0].threads, "max_retries": NODE_DEATHS, "retry_exceptions": [StoppedError]}
    remote = ray.remote(**options)(_on_node)
    pending = {remote.remote(task.to_json()): task for task in tasks}
    while pending:
        progress.step("on the cluster", len(tasks) - len(pending), len(tasks))
        (ended, *_), _ = ray.wait(list(pending), num_returns=1)
        task = pending.pop(ended)
        try:
            done(_brought_home(task, TrialReport.model_validate_json(ray.get(ended))))
        except ray.exceptions.RayError as error:
            done(failure(task, in_one_line(error)))


@contextlib.contextmanager
def connected(address: str, threads: int) -> Iterator[Any]:
    """Ray, connected to a cluster that has a node large enough for a run."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise QuietformerError("--ray needs Ray; pip install quietformer[ray]") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    host, sign, port = address.rpartition("://")[2].rpartition(":")
    try:
        if sign and port.isdigit():  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=CONNECTED_WITHIN).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise QuietformerError(
            f"no Ray cluster at {address}: {in_one_line(error)}; start one with 'ray start --head', or give 'local'"
        ) from None
    try:
        most = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        if threads > most:  # Ray would wait for such a node silently
            raise QuietformerError(f"a run has {threads} threads and the largest node {most:g} processors; set threads")
        yield ray
    finally:
        ray.shutdown()


def _on_node(sent: str) -> str:
    """In the study's own folder if this node can see it, otherwise in a folder on the node; JSON in and out."""
    task = Task.from_json(sent)
    try:
        shared = (task.out / MARK).read_text(encoding="utf-8") == task.mark
    except OSError:
        shared = False
    if not shared:
        task = replace(task, out=Path(tempfile.gettempdir()) / f"quietformer-{task.mark}")
    report = carry_out(task)
    if not shared:
        report = report.model_copy(update={"elsewhere": f"{platform.node()}:{task.folder}"})
    return report.to_json()


def _brought_home(task: Task, report: TrialReport) -> TrialReport:
    """The report of a run whose folder is elsewhere is saved here; its model stays where it was trained."""
    if report.elsewhere is not None:
        where = task.file(ELSEWHERE if report.failed is None else FAILED)
        where.parent.mkdir(parents=True, exist_ok=True)
        report.save(where)
    return report
