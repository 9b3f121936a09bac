"""The card of an exported model: metadata that the hub reads, metrics, and how each client loads it."""

from __future__ import annotations

import html
import re
import shlex

import yaml

from quietformer.results import numbers
from quietformer.results.export import ExportReport, ShippedTarget

SOFTMAX = ("softmax", "softmax()")
"""What reports call attention that is the model's own."""
SIMILARITY = "sentence-similarity"
INSTALL = {"python": "pip install ", "js": "npm install "}
"""How the package of a client is installed, by its language."""
HUB_OPTIONS = ("--push", "--base-model", "--dataset")
"""Options whose value is a hub id, which a path only looks like."""
METRICS = {
    "perplexity": "the perplexity (lower is better)",
    "loss": "the loss (lower is better)",
    "token_agreement": "the share of tokens that it predicts as fp32 does",
    "cosine": "the mean cosine of its output to that of fp32",
    "neighbour_agreement": "the share of inputs whose nearest neighbour is the same as in fp32",
    "ndcg10": "how well the first sentence of a paragraph finds the rest of it",
    "wer": "the word error rate (lower is better)",
    "top1": "the share of inputs whose class is right",
    "agreement": "the share of inputs whose class is the same as in fp32",
}
"""What each metric is, in words."""


def model_card(report: ExportReport) -> str:
    """Markdown with a YAML head; a pure function of the report. Folders of this machine go by their last name."""
    shown = report.model.model_copy(update={"name": _name(report)})
    report = report.model_copy(update={"model": shown})
    made, names = report.export, {target.name for target in report.export.targets}
    title = f"{_plain(_last(report.model.name) or report.model.class_name)} in INT8"
    parts = [f"---\n{_metadata(report, names)}---\n", f"# {title}\n", _what_it_is(report)]
    parts += [
        "## How to load it\n",
        "`FOLDER` is this folder; `hf download REPO --local-dir FOLDER` fetches it from the hub.\n",
    ]
    parts += [_client(target) for target in sorted(made.targets, key=lambda one: one.name != "quietformer")]
    parts += ["## Quality and speed\n", _measured_on(report)]
    parts += [f"{_plain(table.title)}:\n\n{table.markdown()}\n" for table in report.tables()[bool(report.steps) :]]
    if made.processor and made.latency:
        parts.append(f"Measured on {_plain(made.processor)} ({made.instruction_set}).\n")
    parts.append(_how_it_was_made(report))
    return "\n".join(parts)


def _metadata(report: ExportReport, names: set[str]) -> str:
    """What the hub reads of a card."""
    card, runtimes = report.card, [one.runtime for one in report.export.runtimes if one.error is None]
    tags = ["quietformer", "int8", "quantized", *(["onnx"] if "onnxruntime" in runtimes else [])]
    tags += ["openvino"] if "openvino" in runtimes else []
    tags += [
        name for name in ("sentence-transformers", "transformers.js", "text-embeddings-inference") if name in names
    ]
    embeds = card.pipeline_tag == SIMILARITY
    fields = {
        "base_model": card.base_model,
        "base_model_relation": "quantized" if card.base_model else None,
        "language": card.language or None,
        "library_name": "sentence-transformers" if embeds and "sentence-transformers" in names else None,
        "license": card.license,
        "license_link": card.license_link,
        "license_name": card.license_name,
        "pipeline_tag": card.pipeline_tag,
        "tags": tags,
    }
    text: str = yaml.safe_dump({key: value for key, value in fields.items() if value}, allow_unicode=True)
    return text


def _what_it_is(report: ExportReport) -> str:
    made = report.export
    share = numbers.percent(made.bytes.int8 / made.bytes.fp32, 0)
    changed = "" if report.model.attention in SOFTMAX else f" Its attention is `{_line(report.model.attention)}`."
    given = f"The graph gives `{made.output}`."
    if made.pooled:
        also = any(one.runtime == "openvino" and one.error is None for one in made.runtimes)
        given = f"The ONNX graph gives `{made.output}` and `sentence_embedding`"
        given += f", the OpenVINO IR `{made.output}` alone." if also else "."
    return (
        f"`{_line(report.model.name)}` ({made.model}), quantized by Quietformer: "
        f"{report.label}, {made.weights} weights and {made.activations} activations in INT8.{changed} "
        f"{numbers.megabytes(made.bytes.int8)} MB, {share} of fp32. {given}\n"
    )


def _measured_on(report: ExportReport) -> str:
    """The data, and what the columns are."""
    data, names = report.data, [name for name in report.fp32.names() if name in METRICS]
    source = data.evaluation_source or data.source
    what = f"{data.evaluation_sequences} {data.unit or 'sequences'}" if data.evaluation_sequences else "data"
    where = f" of {_plain(_source(source))}" if source else ""
    columns = "; ".join(f"`{name}` is {METRICS[name]}" for name in names)
    return f"Measured on {what}{where}. For the INT8 model, {columns}.\n"


def _client(target: ShippedTarget) -> str:
    fence = "```"
    note = f"\n{target.note}\n" if target.note else ""
    install = f"{INSTALL.get(target.language, '')}{target.install}"
    return f"**{target.name}** (`{install}`)\n\n{fence}{target.language}\n{target.code}\n{fence}\n{note}"


def _how_it_was_made(report: ExportReport) -> str:
    lines = ["## How it was made\n"]
    if report.command:
        lines.append(f"```bash\n{_line(_command(report.command, report.card.base_model))}\n```\n")
    kept = [step for step in report.steps if step.kept and step.name != "start"]
    if kept:
        lines.append("A search without training kept these steps:\n")
        lines += [f"- {_plain(step.name)}: {_plain(step.what)}" for step in kept]
        lines.append("")
    lines += [*(f"- {_plain(sentence.strip())}" for sentence in report.sentences()[2:]), ""]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return "\n".join([*lines, f"Versions: {versions}.\n"])


def _name(report: ExportReport) -> str:
    """The hub id if there is one, or the last name of a folder."""
    return report.card.base_model or _last(report.model.name) or report.model.class_name


def _last(path: str) -> str:
    """`gte-small` for `/models/gte-small`; empty for what has no name, such as `..`."""
    found = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return "" if found in (".", "..", "~") else found


def _source(source: str) -> str:
    """The hub id of a dataset as it is; of a path the last name."""
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) and not re.search(r"\.[A-Za-z]\w{0,5}$", source)
    return source if is_hub_id or ("/" not in source and "\\" not in source) else _last(source) or "a folder"


def _command(command: str, base_model: str | None) -> str:
    """The command with names in the place of paths, which nobody else has."""
    try:
        words = shlex.split(command)
    except ValueError:  # cut short by hand
        return ""
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        known = word == base_model or before in HUB_OPTIONS
        shown.append(word if known else _last(word) or word)
    return shlex.join(shown)


def _line(text: str | None) -> str:
    """Other people's text as code: on one line, and not ending it."""
    return re.sub(r"\s+", " ", text or "").replace("`", "'")


def _plain(text: str) -> str:
    """Other people's text as prose: nothing in it is markup."""
    return re.sub(r"([\\*_\[\]#|])", r"\\\1", html.escape(_line(text), quote=False))
