"""`sweep`: a recipe over a grid of its fields."""

from __future__ import annotations

from pathlib import Path

from quietformer.config.options.study import SweepOptions
from quietformer.config.study import find_study, read_study
from quietformer.progress import SILENT, Progress
from quietformer.results.study import StudyReport
from quietformer.study.run import run_study


def sweep(file: str | Path, options: SweepOptions | None = None, progress: Progress = SILENT) -> StudyReport:
    """Run the study of a YAML file or of a built-in name; interrupted at any moment, it resumes and repeats nothing."""
    return run_study(read_study(find_study(str(file))), options or SweepOptions(), progress, typed=["sweep", str(file)])
