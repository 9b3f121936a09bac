"""Where the runs of a study are carried out: here one after another, in processes of this machine, or on a Ray cluster.

Whichever it is, a run is a folder, has the same number of threads and gives the same figures; one that fails says why and
the others go on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quietformer.config.recipe import Recipe
from quietformer.config.study import Measures, Trial
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import write_json
from quietformer.training.interrupt import StoppedError
from quietformer.workflows.trial import TRIAL, Tell, finished_trial, run_trial, trial_key

RUNS, FAILED, ELSEWHERE, LOGS, TASKS, MARK = "runs", "failed", "elsewhere", "logs", ".tasks", ".study"
"""In the folder of a study: its runs; why some failed; figures of those whose folder is on another machine; what processes
said, and what they were to do; and what tells the folder from another of the same name."""

POLL = 0.5

STOPPED = 130

CONNECTED_WITHIN = 10.0

NODE_DEATHS = 3
"""How often a run is begun again because the node or the process it was in is gone."""

Done = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """A trial of the study in `out` and how it is run, as something that can be sent to another process."""

    trial: Trial
    measures: Measures
    out: Path
    threads: int
    mark: str = ""

    @property
    def folder(self) -> Path:
        return self.out / RUNS / self.trial.name

    @property
    def key(self) -> dict[str, Any]:
        return trial_key(self.trial, self.measures)

    def file(self, where: str, ending: str = "json") -> Path:
        return self.out / where / f"{self.trial.name}.{ending}"

    def known(self) -> dict[str, Any] | None:
        """The figures, if it is finished, here or elsewhere."""
        here = finished_trial(self.folder / TRIAL, self.key)
        return here if here is not None else finished_trial(self.file(ELSEWHERE), self.key)

    def failed(self) -> dict[str, Any] | None:
        return finished_trial(self.file(FAILED), self.key)

    def to_dict(self) -> dict[str, Any]:
        trial = self.trial
        return {
            "name": trial.name, "at": trial.at, "seed": trial.seed, "recipe": trial.recipe.to_dict(),
            "measures": self.measures.to_dict(), "out": str(self.out.absolute()), "threads": self.threads,
            "mark": self.mark,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, sent: dict[str, Any]) -> Task:
        trial = Trial(sent["name"], sent["at"], sent["seed"], Recipe(**sent["recipe"]))
        return cls(trial, Measures(**sent["measures"]), Path(sent["out"]), sent["threads"], sent["mark"])


def carry_out(task: Task, *, say: Callable[[str], None], tell: Tell) -> dict[str, Any]:
    """The figures, or a mapping with `failed` that says what went wrong; only being asked to stop is passed on."""
    task.file(FAILED).unlink(missing_ok=True)
    try:
        with _threads(task.threads):
            return run_trial(task.trial, task.measures, task.folder, say=say, tell=tell)
    except StoppedError:
        raise
    except Exception as error:
        # Of anybody's mistake: a study of a hundred runs does not end with the tenth.
        kind = "" if isinstance(error, QuietformerError) else f"{type(error).__name__}: "
        return failure(task, kind + in_one_line(error))


def failure(task: Task, why: str) -> dict[str, Any]:
    """Written down as well, so that the same run is not tried again and again."""
    trial = task.trial
    found = {"key": task.key, "name": trial.name, "at": trial.at, "seed": trial.seed, "failed": why}
    with contextlib.suppress(OSError):  # the disk may be what failed
        task.file(FAILED).parent.mkdir(parents=True, exist_ok=True)
        write_json(task.file(FAILED), found)
    return found


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_after_another(tasks: list[Task], done: Done, *, say: Callable[[str], None], tell: Tell) -> None:
    left = len(tasks)

    def stop(*_: object) -> None:
        raise _stopped(left)

    with _on_signals(stop):  # training listens itself, to save first
        for task in tasks:
            say(f"\n{task.trial.name}")
            done(carry_out(task, say=say, tell=tell))
            left -= 1


def _stopped(left: int) -> StoppedError:
    return StoppedError(f"stopped with {left} run{'s' if left > 1 else ''} left; the same command goes on from there")


def in_processes(tasks: list[Task], done: Done, jobs: int, *, say: Callable[[str], None], tell: Tell) -> None:
    """So many processes at a time, one a run: a run that takes its process down takes nothing else with it."""
    say(f"{min(jobs, len(tasks))} at a time; how far each is stands in {tasks[0].file(LOGS).parent}")
    running: set[subprocess.Popen[bytes]] = set()
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        for process in list(running):
            process.send_signal(signal.SIGTERM)

    def run(task: Task) -> dict[str, Any] | None:
        if stopping.is_set():
            return None
        try:
            process = _started(task)
        except (OSError, ValueError) as error:
            return failure(task, f"its process could not be started: {in_one_line(error)}")
        running.add(process)
        if stopping.is_set():  # asked for between the question above and now
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        running.discard(process)
        return None if stopping.is_set() and code else _result(task, code)

    with _on_signals(stop), ThreadPoolExecutor(jobs) as pool:
        waiting: set[Future[dict[str, Any] | None]] = {pool.submit(run, task) for task in tasks}
        results = 0
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                for found in filter(None, (future.result() for future in ended)):
                    results += 1
                    done(found)
                tell(f"{len(running)} running", results, len(tasks))
        except BaseException:
            stop()  # the pool would go through all the others first
            raise
    if results < len(tasks):
        raise _stopped(len(tasks) - results)


def _started(task: Task) -> subprocess.Popen[bytes]:
    for where in (TASKS, LOGS):
        (task.out / where).mkdir(parents=True, exist_ok=True)
    task.file(FAILED).unlink(missing_ok=True)
    write_json(task.file(TASKS), task.to_dict())
    with task.file(LOGS, "txt").open("ab") as log:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "quietformer.study.workers", str(task.file(TASKS)), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": str(task.threads)},
        )  # fmt: skip


def _result(task: Task, code: int) -> dict[str, Any]:
    """What a process has left; figures that were there before it do not count."""
    found = {0: task.known, 1: task.failed}.get(code, lambda: None)()
    if found is not None:
        return found
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    if code == STOPPED:  # not by us: that is not asked here
        how = "was asked to stop by somebody else"
    return failure(task, f"its process {how}; see {task.file(LOGS, 'txt')}")


@contextlib.contextmanager
def _on_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Ctrl-C and a cluster's SIGTERM go to the runs, which save and stop; only the main thread can listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def on_ray(tasks: list[Task], done: Done, ray: Any, *, tell: Tell) -> None:
    """On a Ray cluster: a run that was on a node that is gone is gone on with on another, if it can see the folder."""
    options = {"num_cpus": tasks[0].threads, "max_retries": NODE_DEATHS, "retry_exceptions": [StoppedError]}
    remote = ray.remote(**options)(_on_node)
    pending = {remote.remote(task.to_dict()): task for task in tasks}
    while pending:
        tell("on the cluster", len(tasks) - len(pending), len(tasks))
        (ended, *_), _ = ray.wait(list(pending), num_returns=1)
        task = pending.pop(ended)
        try:
            done(_brought_home(task, ray.get(ended)))
        except ray.exceptions.RayError as error:
            done(failure(task, in_one_line(error)))


@contextlib.contextmanager
def connected(address: str, threads: int) -> Iterator[Any]:
    """Ray, connected to the cluster at this address, which has a node that a run fits on."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise QuietformerError("--ray needs Ray; pip install quietformer[ray]") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere that nobody named
    host, sign, port = address.rpartition("://")[2].rpartition(":")
    try:
        if sign and port.isdigit():  # Ray itself would go on trying for minutes
            socket.create_connection((host, int(port)), timeout=CONNECTED_WITHIN).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise QuietformerError(
            f"no Ray cluster at {address}: {in_one_line(error)}; start one with 'ray start --head', or give 'local'"
        ) from None
    try:
        most = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        if threads > most:  # it would wait for such a node without a word
            raise QuietformerError(f"a run has {threads} threads and the largest node {most:g} processors; set threads")
        yield ray
    finally:
        ray.shutdown()


def _on_node(sent: dict[str, Any]) -> dict[str, Any]:
    """In the study's own folder if this node can see it, in a folder of the node's own otherwise."""
    task = Task.from_dict(sent)
    try:
        shared = (task.out / MARK).read_text(encoding="utf-8") == task.mark
    except OSError:
        shared = False
    if not shared:
        task = replace(task, out=Path(tempfile.gettempdir()) / f"quietformer-{task.mark}")
    found = carry_out(task, say=lambda text: None, tell=lambda what, done, total: None)
    return found if shared else found | {"elsewhere": f"{platform.node()}:{task.folder}"}


def _brought_home(task: Task, found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run whose folder is elsewhere are written here; its model stays where it was trained."""
    if "elsewhere" in found:
        where = task.file(FAILED if "failed" in found else ELSEWHERE)
        where.parent.mkdir(parents=True, exist_ok=True)
        write_json(where, found)
    return found


def _follow(parent: int) -> None:
    """End with the process that started this one, however that ended: a run nobody waits for would only be in the way."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(STOPPED)


def main() -> None:
    """`python -m quietformer.study.workers TASK PARENT`: one run in a process of its own."""
    path, parent = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    task = Task.from_dict(json.loads(path.read_text(encoding="utf-8")))
    try:
        found = carry_out(task, say=lambda text: print(text, flush=True), tell=lambda what, done, total: None)
    except StoppedError as stopped:
        print(stopped, flush=True)
        sys.exit(STOPPED)
    sys.exit(1 if "failed" in found else 0)


if __name__ == "__main__":
    main()
