"""Where a command writes its report, besides the terminal. In Python a report's `save` and `to_html` do this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from quietformer.config.options.base import Flag, Options
from quietformer.errors import QuietformerError
from quietformer.files import check_place
from quietformer.results.base import Report


class JsonOutput(Options):
    """A command that only prints, unless it is asked for JSON."""

    json_path: Annotated[Path | None, Flag("PATH", "--json")] = Field(
        default=None, description="Also write the report as JSON."
    )

    def check(self) -> None:
        """Whether the files can be written, asked before the work."""
        check_place(self.json_path)

    def write(self, report: Report) -> None:
        if self.json_path is not None:
            report.save(self.json_path)


class PageOutput(Options):
    """A command that leaves a page, and the report as JSON beside it."""

    page: Annotated[Path, Flag("PATH")] = Field(description="The page to write, JSON beside it.")
    json_path: Annotated[Path | None, Flag("PATH", "--json")] = Field(
        default=None, description="Write the report as JSON here instead."
    )

    @property
    def json_place(self) -> Path:
        return self.json_path or self.page.with_suffix(".json")

    def places(self) -> list[Path]:
        return [self.page, self.json_place]

    def check(self) -> None:
        """Whether the files can be written, asked before the work."""
        if self.page.suffix.lower() not in (".html", ".htm"):
            raise QuietformerError(f"--page takes a name ending in .html, got {self.page}")
        for place in self.places():
            check_place(place)
        if len({place.absolute() for place in self.places()}) < len(self.places()):
            raise QuietformerError("--page, --json and --card name the same file; each needs its own")

    def write(self, report: Report) -> None:
        report.save(self.json_place)
        report.to_html(self.page)
        print(f"\npage {self.page}, report {self.json_place}")
