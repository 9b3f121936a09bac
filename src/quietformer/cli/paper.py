"""`quietformer paper`: every table and figure of the paper, what makes it, what the paper found, and what we did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from quietformer.cli.progress import working
from quietformer.files import check_place, write_json


def paper(
    item: str = typer.Argument("", metavar="[ITEM]", help="Show this one in full, e.g. table2 or figure6."),
    html: Path | None = typer.Option(None, "--html", metavar="PATH", help="Also write it as a page."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write it as JSON."),
    ours: list[Path] = typer.Option(
        [], "--ours", metavar="DIR", help="Also show this study of `compare` or `sweep` where it belongs; repeatable."
    ),
) -> None:
    """List the paper's tables and figures, or show one: its figures, ours, and the commands that make it.

    Figures marked paper are the paper's own. Figures marked ours were measured here, at the size that stands with them.
    """
    check_place(html)
    check_place(json_path)
    with working("reading"):
        from quietformer.study.paper import add_tables_, only, overview, paper_figures

        figures = paper_figures(ours)
        figures = only(figures, item) if item else figures
        if item or html or json_path:
            add_tables_(figures)
    write_json(json_path, figures)
    if html is not None:
        from quietformer.report.page import write_page

        write_page(figures, html)
    if item:
        _print_item(figures["items"][0], figures["how"])
    else:
        _print_lines(overview(figures))
        print("\nquietformer paper ITEM shows one in full; --html PATH writes all of them as a page")
    for study in figures["given"]:
        if item and study["items"] and figures["items"][0]["name"] not in study["items"]:
            print(f"\n{study['name']} belongs elsewhere: {', '.join(study['items'])}")
    for name in figures["elsewhere"]:
        print(f"\n{name} belongs to no table or figure of the paper")
    if html is not None:
        print(f"\npage {html}")


def _print_lines(lines: Sequence[Sequence[str]], *, figures: bool = False) -> None:
    """Columns of text, those of figures to the right. As wide as it takes: a figure that is cut is another figure."""
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [figures and place > 1 and any(cell[:1].isdigit() for cell in cells) for place, cells in enumerate(columns)]
    for line in lines:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _print_item(item: dict[str, Any], how: str) -> None:
    """One table or figure: the paper's figures, ours apart from them, and what to type."""
    from quietformer.study.paper import NOT_RUN, NOTHING, quoted, runs_in_words

    print(f"{item['name']}: {item['shows']} (section {item['section']})")
    for table in item["paper"]:
        print(f"\nThe paper: {table['name']}" if table["name"] else "\nThe paper")
        alone = all(len(row["made_by"]) == 1 for row in table["rows"])
        heading = ["source", *(column["title"] for column in table["columns"]), *(["made by"] if alone else [])]
        rows = [
            [row["source"], *(quoted(row["row"][column["key"]]) for column in table["columns"])]
            + (row["made_by"] if alone else [])
            for row in table["rows"]
        ]
        _print_lines([heading, *rows], figures=True)
    if not item["paper"]:
        print("\nThe paper: no figures of it are kept")
    for study in item["ours"]:
        print(f"\nOurs: {study['name']}, {study['recipe']}: {study['size']['words']}")
        rows = [[study["source"], *row] for row in study["table"]["rows"]]
        _print_lines([["source", *study["table"]["columns"]], *rows], figures=True)
        print(f"as it was run: {study['command']}")
    if item["document"]:
        print(f"\nOurs: {item['document']['holds']}, in {item['document']['place']}")
    elif not item["ours"]:
        print(f"\nOurs: {NOT_RUN if item['commands'] else NOTHING}")
    if item["runs"]:
        print(f"\nMade by {runs_in_words(item)}")
    for name, content in item["files"].items():
        print("\n  ".join([f"\n{name}:", *content.splitlines()]))
    if item["commands"]:
        print("\n  ".join(["\nIn full:", *item["commands"]]))
    if item["note"]:
        print(f"\n{item['note']}")
    if any("DIR" in command for command in item["commands"]):
        print(f"\n{how}")
