"""The report of `paper`: its tables and figures, the commands that make them, its results, and ours apart from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.config.spec_base import nearest
from quietformer.errors import SpecError
from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.study_table import StudyRow, study_table
from quietformer.results.tables import Table
from quietformer.results.trial import Values

NOT_RUN, NOTHING = "not run here", "nothing to run"
HOW = (
    "DIR is a folder of your own. The paper measures on all of its validation data; compare and sweep take a part of it "
    "unless --sequences, or measures.sequences in the file, asks for more."
)


class PaperColumn(Record):
    key: str
    title: str


class PaperRow(Record):
    """A row of the paper's, as the data file has it, and the runs that make it."""

    row: Values
    made_by: list[str]

    def cell(self, key: str) -> str:
        return numbers.quoted(self.row[key])


class PaperTable(Record):
    """A table of the paper's, or one part of it."""

    name: str
    columns: list[PaperColumn]
    rows: list[PaperRow]

    @property
    def is_made_by_one(self) -> bool:
        """Whether each row is made by one run, which is then shown beside it."""
        return all(len(row.made_by) == 1 for row in self.rows)

    @property
    def is_finding(self) -> bool:
        return any(column.key == "finding" for column in self.columns)

    def table(self) -> Table:
        alone = self.is_made_by_one
        titles = ["source", *(column.title for column in self.columns), *(["made by"] if alone else [])]
        rows = [
            ["paper", *(row.cell(column.key) for column in self.columns), *(row.made_by if alone else [])]
            for row in self.rows
        ]
        return Table(f"The paper: {self.name}" if self.name else "The paper", titles, rows, _left(rows))


class RecipeRuns(Record):
    """A recipe, and which of its variants."""

    recipe: str
    variants: list[str]

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.recipe, ", ".join(self.variants))))


class Document(Record):
    """Where our results are, if they are no study."""

    place: str
    holds: str


class StudySize(Record):
    """How large the runs of a study were; lists where they differ, empty where the report does not say."""

    parameters: list[int]
    steps: list[int]
    length: list[int]
    seeds: int
    minutes: float | None = Field(default=None, description="minutes of training per run")

    def in_words(self) -> str:
        """`0.50M parameters, 2,000 steps, length 64, 2 seeds, 3.1 min a run`."""

        def span(values: list[str]) -> str:
            return " to ".join(dict.fromkeys((values[0], values[-1])))

        parts = []
        if self.parameters:
            parts.append(f"{span([numbers.millions(count, 2) for count in self.parameters])} parameters")
        if self.steps:
            parts.append(f"{span([numbers.whole(count) for count in self.steps])} steps")
        if self.length:
            parts.append(f"length {span([numbers.whole(count) for count in self.length])}")
        parts.append(numbers.counted(self.seeds, "seed"))
        if self.minutes is not None:
            parts.append(f"{numbers.one_place(self.minutes)} min a run")
        return ", ".join(parts)


class OurStudy(Record):
    """A study of ours beside an item; what it quotes of the paper is left out, since the data file alone speaks for it."""

    name: str
    recipe: str
    primary: str
    sentence: str
    size: StudySize
    rows: list[StudyRow]
    command: str
    versions: dict[str, str]

    @property
    def title(self) -> str:
        return f"Ours: {self.name}, {self.recipe}: {self.size.in_words()}"

    def table(self) -> Table:
        found = study_table(self.title, self.rows, self.primary)
        first, *others = found.columns
        rows = [["ours", *row] for row in found.rows]
        return Table(self.title, ["source", first or "setting", *others], rows, _left(rows))


class PaperItem(Record):
    """One table or figure of the paper."""

    name: str
    section: str
    shows: str
    key: str | None = Field(description="where the data file has its results")
    unit: str
    paper: list[PaperTable]
    runs: list[RecipeRuns]
    commands: list[str]
    files: dict[str, str] = Field(description="studies for `sweep`, as YAML by the name of their file")
    note: str
    document: Document | None
    ours: list[OurStudy]

    @property
    def status(self) -> str:
        """Where our results are, or why there are none."""
        if self.ours:
            return f"{len(self.ours)} stud{'ies' if len(self.ours) > 1 else 'y'}"
        return self.document.place if self.document else NOT_RUN if self.commands else NOTHING

    @property
    def made_by(self) -> str:
        """`paper/bert-base: vanilla, mlp-4; paper/bert-mnli`."""
        return "; ".join(map(str, self.runs))

    def sentences(self) -> list[str]:
        """What it shows, and where the paper's results and ours are."""
        lines = [f"{self.name}: {self.shows} (section {self.section})"]
        if not self.paper:
            lines.append("The paper: no numbers of it are kept")
        if self.document:
            lines.append(f"Ours: {self.document.holds}, in {self.document.place}")
        elif not self.ours:
            lines.append(f"Ours: {self.status}")
        return lines + ([f"Made by {self.made_by}"] if self.runs else [])

    def footnotes(self) -> list[str]:
        """What to type: the commands of the studies that are shown, then those of the paper's own size and their files."""
        lines = [f"Command of {study.name}: {study.command}" for study in self.ours]
        for name, content in self.files.items():
            lines += [f"{name}:", *(f"  {line}" for line in content.splitlines())]
        if self.commands:
            lines += ["Commands:", *(f"  {command}" for command in self.commands)]
        return lines + ([self.note] if self.note else [])

    def overview(self) -> list[str]:
        """Its line in the list of all items."""
        rows = [row for table in self.paper for row in table.rows]
        told = "finding" if any("finding" in row.row for row in rows) else f"{len(rows)} rows" if rows else "-"
        recipes = ", ".join(run.recipe for run in self.runs) or "-"
        return [self.name, self.section, self.shows, told, self.status, recipes]


class GivenStudy(Record):
    """A study that the user named, and the items it belongs to."""

    place: str
    name: str
    items: list[str]


class PaperReport(Report):
    """The paper's tables and figures, all of them or one."""

    kind: Literal["paper"] = "paper"
    how: str = HOW
    items: list[PaperItem]
    elsewhere: list[str] = Field(description="studies that belong to no item")
    given: list[GivenStudy]

    def only(self, name: str) -> PaperReport:
        """The report of one item."""
        found = [item for item in self.items if item.name == name.lower()]
        if not found:
            raise SpecError(f"the paper has no {name!r}{nearest(name.lower(), [item.name for item in self.items])}")
        return self.model_copy(update={"items": found})

    def overview(self) -> Table:
        """One line an item."""
        titles = ["item", "section", "shows", "the paper's", "ours", "recipe"]
        return Table("", titles, [item.overview() for item in self.items], frozenset(range(len(titles))))

    def sentences(self) -> list[str]:
        """One item in words, and studies that are not shown where the user might look for them."""
        shown = {item.name for item in self.items}
        lines = self.items[0].sentences() if len(self.items) == 1 else []
        lines += [
            f"{study.name} belongs elsewhere: {', '.join(study.items)}"
            for study in self.given
            if study.items and not shown & set(study.items)
        ]
        return lines + [f"{name} belongs to no table or figure of the paper" for name in self.elsewhere]

    def tables(self) -> list[Table]:
        if len(self.items) != 1:
            return [self.overview()]
        (item,) = self.items
        return [*(table.table() for table in item.paper), *(study.table() for study in item.ours)]

    def footnotes(self) -> list[str]:
        if len(self.items) != 1:
            return []
        (item,) = self.items
        return item.footnotes() + ([self.how] if any("DIR" in command for command in item.commands) else [])


def _left(rows: list[list[str]]) -> frozenset[int]:
    """The source, what a row is called, and columns without a number."""
    places = range(len(rows[0])) if rows else ()
    return frozenset(place for place in places if place < 2 or not any(row[place][:1].isdigit() for row in rows))
