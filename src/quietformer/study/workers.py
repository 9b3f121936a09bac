"""Runs of a study on this machine: one after another, or in processes of their own.

A run is a folder, has the same number of threads and gives the same results everywhere; one that fails says why, and the
others continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from quietformer.config.recipe import Recipe
from quietformer.config.study import Measures, Trial
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import clear_no_file, write_text
from quietformer.progress import SILENT, Progress
from quietformer.results.trial import TrialReport
from quietformer.training.interrupt import StoppedError
from quietformer.workflows.trial import TRIAL, TrialOptions, finished_trial, run_trial

RUNS, FAILED, ELSEWHERE, LOGS, TASKS, MARK = "runs", "failed", "elsewhere", "logs", ".tasks", ".study"
"""In the folder of a study: its runs; why some failed; results of runs whose folder is on another machine; logs of
processes, and what they were asked to run; and a mark that tells the folder from another of the same name."""

POLL = 0.5

INTERRUPTED = 130

Done = Callable[[TrialReport], None]


@dataclass(frozen=True)
class Task:
    """A run of the study in `out`, in a form that can be sent to another process."""

    trial: Trial
    measures: Measures
    out: Path
    threads: int
    mark: str = ""

    @property
    def folder(self) -> Path:
        return self.out / RUNS / self.trial.name

    @property
    def options(self) -> TrialOptions:
        return TrialOptions(self.trial, self.measures, self.folder)

    def file(self, where: str, ending: str = "json") -> Path:
        return self.out / where / f"{self.trial.name}.{ending}"

    def known(self) -> TrialReport | None:
        """The report, if the run is finished, here or elsewhere."""
        key = self.options.key
        found = (finished_trial(path, key) for path in (self.folder / TRIAL, self.file(ELSEWHERE)))
        return next((report for report in found if report is not None and report.result is not None), None)

    def failed(self) -> TrialReport | None:
        """The report, if the run has failed."""
        report = finished_trial(self.file(FAILED), self.options.key)
        return report if report is not None and report.failed is not None else None

    def to_json(self) -> str:
        trial = self.trial
        sent = {
            "name": trial.name, "at": trial.at, "seed": trial.seed, "recipe": trial.recipe.to_dict(),
            "measures": self.measures.to_dict(), "out": str(self.out.absolute()), "threads": self.threads,
            "mark": self.mark,
        }  # fmt: skip
        return json.dumps(sent, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Task:
        sent = json.loads(text)
        trial = Trial(sent["name"], sent["at"], sent["seed"], Recipe(**sent["recipe"]))
        return cls(trial, Measures(**sent["measures"]), Path(sent["out"]), sent["threads"], sent["mark"])


class _Printed:
    """The log of a process of its own: lines, no bars."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def step(self, what: str, done: int = 0, total: int = 0) -> None: ...


def carry_out(task: Task, progress: Progress = SILENT) -> TrialReport:
    """The report of the run, which may be that it failed; only an interruption is passed on."""
    task.file(FAILED).unlink(missing_ok=True)
    clear_no_file(task.folder / TRIAL)
    try:
        with _threads(task.threads):
            return run_trial(task.options, progress)
    except StoppedError:
        raise
    except Exception as error:
        # Whatever it is: a study of a hundred runs does not end with the tenth.
        kind = "" if isinstance(error, QuietformerError) else f"{type(error).__name__}: "
        return failure(task, kind + in_one_line(error))


def failure(task: Task, why: str) -> TrialReport:
    """The report of a failed run, saved so that it is not tried again and again."""
    report = TrialReport.made(task.trial, task.measures, failed=why)
    with contextlib.suppress(OSError):  # the disk may be what failed
        task.file(FAILED).parent.mkdir(parents=True, exist_ok=True)
        report.save(task.file(FAILED))
    return report


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_after_another(tasks: list[Task], done: Done, progress: Progress = SILENT) -> None:
    """All runs in this process."""
    left = len(tasks)

    def stop(*_: object) -> None:
        raise _stopped(left)

    with _on_signals(stop):  # training listens itself, to save first
        for task in tasks:
            progress.say(f"\n{task.trial.name}")
            done(carry_out(task, progress))
            left -= 1


def _stopped(left: int) -> StoppedError:
    return StoppedError(
        f"interrupted with {left} run{'s' if left > 1 else ''} left; run the same command again to resume"
    )


def in_processes(tasks: list[Task], done: Done, jobs: int, progress: Progress = SILENT) -> None:
    """Each run in a process of its own, `jobs` at a time: a run that crashes its process harms no other."""
    progress.say(f"{min(jobs, len(tasks))} runs at a time; their logs are in {tasks[0].file(LOGS).parent}")
    running: set[subprocess.Popen[bytes]] = set()
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        for process in list(running):
            process.send_signal(signal.SIGTERM)

    def run(task: Task) -> TrialReport | None:
        if stopping.is_set():
            return None
        try:
            process = _started(task)
        except (OSError, ValueError) as error:
            return failure(task, f"its process could not be started: {in_one_line(error)}")
        running.add(process)
        if stopping.is_set():  # since it was last checked
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        running.discard(process)
        return None if stopping.is_set() and code else _result(task, code)

    with _on_signals(stop), ThreadPoolExecutor(jobs) as pool:
        waiting: set[Future[TrialReport | None]] = {pool.submit(run, task) for task in tasks}
        results = 0
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
                for found in filter(None, (future.result() for future in ended)):
                    results += 1
                    done(found)
                progress.step(f"{len(running)} running", results, len(tasks))
        except BaseException:
            stop()  # the pool would run all the others first
            raise
    if results < len(tasks):
        raise _stopped(len(tasks) - results)


def _started(task: Task) -> subprocess.Popen[bytes]:
    for where in (TASKS, LOGS):
        (task.out / where).mkdir(parents=True, exist_ok=True)
    task.file(FAILED).unlink(missing_ok=True)
    write_text(task.file(TASKS), task.to_json())
    with task.file(LOGS, "txt").open("ab") as log:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "quietformer.study.workers", str(task.file(TASKS)), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": str(task.threads)},
        )  # fmt: skip


def _result(task: Task, code: int) -> TrialReport:
    """The report that a process has left; one from before it started does not count."""
    found = {0: task.known, 1: task.failed}.get(code, lambda: None)()
    if found is not None:
        return found
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    if code == INTERRUPTED:  # not by us, or this would not be called
        how = "was interrupted by somebody else"
    return failure(task, f"its process {how}; see {task.file(LOGS, 'txt')}")


@contextlib.contextmanager
def _on_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Ctrl-C and a cluster's SIGTERM go to the runs, which save and end; only the main thread can listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(parent: int) -> None:
    """End with the process that started this one, however it ended: nobody waits for this run any more."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(INTERRUPTED)


def main() -> None:
    """`python -m quietformer.study.workers TASK PARENT`: one run in a process of its own."""
    path, parent = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    task = Task.from_json(path.read_text(encoding="utf-8"))
    try:
        report = carry_out(task, _Printed())
    except StoppedError as stopped:
        print(stopped, flush=True)
        sys.exit(INTERRUPTED)
    sys.exit(0 if report.failed is None else 1)


if __name__ == "__main__":
    main()
