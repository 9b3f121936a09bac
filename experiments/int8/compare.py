"""Real models in INT8 by every tool: quality, speed and size, in one table.

    python -m experiments.int8.compare FOLDER [--only minilm ...] [--data "minilm=--texts a.txt --eval-texts b.txt"] [--keep]
                                       [--add]

FOLDER is what `python -m experiments.int8.model_folders` writes; a model that is no folder in it is opened by its name. Each
model is exported twice, by default with all other tools beside it (`export --baselines`) and with every tensor in INT8
(`export --placement paper`). With --add, models that were measured before stay in the kept result. Words after `--` go to every
export, e.g. `-- --threads 1 --sequences 256`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_, made_by
from experiments.speed.turns import machine
from quietformer.results import numbers
from quietformer.results.export import TITLES, ExportReport

RESULT = Path(__file__).with_suffix(".json")

DATA = {
    "minilm": "--sequences 256",
    "gte-small": "--sequences 128",
    "whisper-tiny-en-encoder": "--audio {data}/speech --eval-audio {data}/speech-evaluation",
    "dinov2-small": "--images {data}/photos --eval-images {data}/photos-evaluation",
    "albert-kor": "--texts {data}/korean.txt --eval-texts {data}/korean-evaluation.txt",
    "minilm@w4a8": "--sequences 256",
    "minilm@w8a4": "--sequences 256",
}
"""The models, and the data that each is calibrated and evaluated on; without any, the built-in text. Bits stand behind an @."""

EIGHT_BITS_ONLY = ("NNCF, OpenVINO", "ONNX Runtime ", "torchao dynamic")
"""Tools that have no other bits for weights and activations of products."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folders are")
    parser.add_argument("--only", nargs="+", default=list(DATA), metavar="MODEL", help="these models instead of all")
    parser.add_argument("--data", action="append", default=[], metavar="MODEL=OPTIONS", help="other data for a model")
    keep_option_(parser)
    parser.add_argument("--add", action="store_true", help="keep the result, and in it the models measured before")
    arguments, more = parser.parse_known_args()
    more = [word for word in more if word != "--"]
    data = DATA | dict(given.split("=", 1) for given in arguments.data)
    models = json.loads(RESULT.read_text(encoding="utf-8"))["models"] if arguments.add and RESULT.is_file() else {}
    for name in arguments.only:
        model, _, bits = name.partition("@")
        place = arguments.folder / model
        words = shlex.split(data.get(name, "").format(data=arguments.folder / "data")) + more
        models[name] = measure(place if place.is_dir() else model, [*words, "--bits", bits] if bits else words)
        if bits:
            models[name]["rows"] = [row for row in models[name]["rows"] if not _has_eight_bits(row["name"])]
        models[name]["commit"] = made_by(__file__)["commit"]
        print(table({"models": {name: models[name]}}), flush=True)
        if arguments.keep or arguments.add:  # after each: all of them take half an hour and more
            keep(__file__, {"machine": machine(), "models": {one: models[one] for one in DATA if one in models}})


def measure(model: Path | str, words: list[str]) -> dict[str, Any]:
    """Both exports of a model; one that fails is its error in one line."""
    try:
        ours = exported(model, ["--baselines", *words])
    except RuntimeError as error:
        return {"error": str(error), "rows": []}
    rows = list(tools(ours))
    try:
        rows += every_tensor(exported(model, ["--placement", "paper", *words]))
    except RuntimeError as error:
        rows.append({"name": "Quietformer, every tensor", "error": str(error)})
    made = ours.export
    return {
        "metrics": ours.fp32.names(),
        "data": ours.data.model_dump(mode="json"),
        "threads": made.threads,
        "instruction_set": made.instruction_set,
        "agreement": [one.model_dump(mode="json") for one in made.runtimes],
        "steps": [step.model_dump(mode="json") for step in ours.steps],
        "rows": rows,
    }


def _has_eight_bits(name: str) -> bool:
    return name.startswith(EIGHT_BITS_ONLY) and "-bit weights" not in name


def exported(model: Path | str, words: list[str]) -> ExportReport:
    """In a process of its own, as a user would run it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "quietformer", "export", str(model), f"{folder}/out", "--json", str(report)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
        return ExportReport.read(report)


def tools(report: ExportReport) -> Iterator[dict[str, Any]]:
    """The rows of `--baselines`, speed against fp32 in ONNX Runtime, which is the first of them."""
    base = report.baselines[0].fastest_ms
    for row in report.baselines:
        fields = row.model_dump(mode="json", exclude={"what", "median_ms"})
        yield fields | {"speed": base / row.fastest_ms if base and row.fastest_ms else None}


def every_tensor(report: ExportReport) -> Iterator[dict[str, Any]]:
    """`--placement paper`, against the fp32 that took turns with it on the largest batch."""
    latency = report.export.latency[-1] if report.export.latency else None
    for one in report.export.runtimes:
        run = None if latency is None else latency.run(one.runtime, "int8")
        found = report.real_by_runtime.get(one.runtime)
        yield {
            "name": f"Quietformer, every tensor, {TITLES[one.runtime]}",
            "runtime": f"{TITLES[one.runtime]}, {one.precision}",
            "ours": True,
            "metrics": None if found is None else found.model_dump(mode="json"),
            "bytes": one.bytes,
            "speed": None if run is None or latency is None else latency.speedup(run),
            "error": one.error,
        }


def table(result: dict[str, Any]) -> str:
    """The table of docs/int8.md: at most two metrics of each model."""
    return "\n".join(f"**{name}**{_section(found)}" for name, found in result["models"].items())


SHOWN = (
    "fp32, ONNX Runtime",
    "Quietformer, OpenVINO",
    "Quietformer, ONNX Runtime",
    "NNCF, OpenVINO",
    "ONNX Runtime dynamic, per channel",
    "ONNX Runtime static, products only, per channel",
)


def short(result: dict[str, Any]) -> str:
    """The table of the README: MiniLM by the tools a user would pick, at their best."""
    found = result["models"]["minilm"]
    rows = [row for name in SHOWN for row in found["rows"] if row["name"] == name]
    return f"MiniLM{_section(found | {'rows': rows})}"


def _section(found: dict[str, Any]) -> str:
    if "error" in found:
        return f": {found['error']}\n"
    names = found["metrics"][:2]
    lines: list[list[object]] = [
        ["tool", *(name.replace("_", " ") for name in names), "speed", "MB", "seconds of work"]
    ]
    for row in found["rows"]:
        if "is not installed" in (row.get("error") or ""):
            continue
        if row.get("error"):
            lines.append([row["name"], row["error"].removeprefix(f"{row['name']}: "), *[""] * (len(names) + 2)])
            continue
        speed = numbers.MISSING if row["speed"] is None else f"{numbers.two_places(row['speed'])} ×"
        size = numbers.MISSING if row.get("bytes") is None else numbers.megabytes(row["bytes"])
        metrics = [numbers.metric(row["metrics"][name], name) for name in names]
        lines.append([row["name"], *metrics, speed, size, numbers.one_place(row.get("seconds"))])
    threads = numbers.counted(found["threads"], "thread")
    return f", {threads}, {found['instruction_set']}\n\n{markdown(lines)}"


if __name__ == "__main__":
    main()
