"""A plan in words and tables, for the terminal."""

from __future__ import annotations

from typing import Any


def print_plan(figures: dict[str, Any]) -> None:
    """Print what `plan` found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    model, batch, work = figures["model"], figures["batch"], figures["work"]
    console.print(
        Text(f"\n{figures['name']}", style="bold").append(
            f"  {model['class']}, {count(model['parameters']['total'])} parameters, attention {model['attention']}"
        )
    )
    unit = "images" if work["unit"] == "images" else "sequences"
    tokens = "" if unit == "images" else f", {count(work['units_per_step'])} tokens"
    console.print(
        f"A step: {batch['batch_size']} {unit} ({batch['devices']} device{'s' * (batch['devices'] > 1)} x "
        f"{batch['micro_batch']} at once x {batch['accumulation']} accumulated){tokens}, {flop(work['flops_per_step'])}."
    )
    if work["steps"] is not None:
        console.print(
            f"The run: {work['steps']:,} steps, {count(work['units'])} {work['unit']}, {flop(work['flops'])}."
        )
    for title, parts, shown in (
        ("Parameters", model["parameters"], count),
        ("Memory on a device", figures["memory"], size),
    ):
        table = Table(title=f"\n{title}", title_justify="left")
        table.add_column("part")
        table.add_column("how much", justify="right")
        for name, value in parts.items():
            if name not in ("total", "activations_per_example") and value:
                table.add_row(_label(name), shown(value))
        table.add_section()
        table.add_row("total", shown(parts["total"]), style="bold")
        console.print(table)
    console.print(f"One more in a micro batch adds {size(figures['memory']['activations_per_example'])}.")
    if (time := figures["time"]) is not None:
        threads = f", {time['threads']} thread{'s' * (time['threads'] > 1)}" if "CPU" in time["machine"] else ""
        whole = "" if time["seconds"] is None else f", {duration(time['seconds'])} for the run"
        console.print(
            Text(f"\nTime, an estimate for this machine ({time['machine']}{threads}, {time['precision']}): ").append(
                f"{duration(time['seconds_per_step'])} a step{whole}", style="bold"
            )
        )
        console.print(
            f"From steps of copies with one and two layers at {time['measured_micro_batch']} at once; "
            f"{flop(time['flops_per_second'])} a second."
        )
    for note in figures["notes"]:
        console.print(Text(note, style="dim"))


def count(number: float) -> str:
    """1312612352 -> 1.31B, as the field says it."""
    return _scaled(number, ("", "k", "M", "B", "T"))


def flop(number: float) -> str:
    return f"{_scaled(number, (' ', ' k', ' M', ' G', ' T', ' P', ' E', ' Z'))}FLOP"


def _scaled(number: float, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{units[power]}"


def size(number: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.2f} {name}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """In the unit that reads well: 4200 -> 1.2 hours."""
    for unit, name in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} seconds" if seconds >= 1 else f"{1000 * seconds:.0f} milliseconds"


def _label(name: str) -> str:
    return {
        "added": "added by Quietformer",
        "other": "between blocks and head",
        "optimizer": "optimizer states",
        "gathered block": "a block gathered whole",
    }.get(name, name)
