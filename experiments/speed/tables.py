"""The tables of docs/speed.md and docs/train.md, from what `make bench` kept."""

from __future__ import annotations

from typing import Any

from experiments.documents import markdown


def made_on(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "transformers", "onnxruntime", "openvino") if name in machine
    )
    return f"{machine['processor']}, {machine['threads']} of {machine['cores']} threads, {versions}."


def attention(result: dict[str, Any]) -> str:
    parts = [made_on(result)]
    for causal in (False, True):
        found = [entry for entry in result["time"] if entry["causal"] == causal]
        if not found:
            continue
        names = [name for name in found[0]["forward"] if name != "sdpa_ms"]
        rows = []
        for entry in found:
            for what in ("forward", "forward and backward"):
                ratios = [f"{entry[what][name]:.2f}" if name in entry[what] else "-" for name in names]
                rows.append([entry["length"], entry["sequences"], what, f"{entry[what]['sdpa_ms']:.1f}", *ratios])
        title = "Causal" if causal else "No mask"
        parts.append(
            f"**{title}** ({found[0]['heads']} heads):\n\n"
            + markdown([["T", "sequences", "", "SDPA, ms", *names], *rows])
        )
    names = [name for name in result["memory"][0] if name not in ("length", "heads", "causal", "sdpa_mib")]
    rows = [
        [
            entry["length"],
            "yes" if entry["causal"] else "",
            f"{entry['sdpa_mib']:.0f}",
            *(f"{entry[name]:.2f}" for name in names),
        ]
        for entry in result["memory"]
    ]
    parts.append(
        "**Peak memory**, forward and backward, one head:\n\n" + markdown([["T", "causal", "SDPA, MiB", *names], *rows])
    )
    return "\n\n".join(part.rstrip("\n") for part in parts)


def model_steps(result: dict[str, Any]) -> str:
    names = list(result["steps"][0]["ratios"])
    rows = [
        [entry["model"], entry["about"], f"{entry['dropout']:g}", f"{entry['sdpa_seconds']:.2f}",
         *(f"{entry['ratios'][name]:.3f}" for name in names)]
        for entry in result["steps"]
    ]  # fmt: skip
    return made_on(result) + "\n\n" + markdown([["model", "", "dropout", "SDPA, s", *names], *rows])


def runtimes(result: dict[str, Any]) -> str:
    names = list(result["rows"][0]["milliseconds"])
    rows = [
        [f"{entry['sequences']} x {entry['length']}", *(f"{entry['milliseconds'][name]:.1f}" for name in names)]
        for entry in result["rows"]
    ]
    return (
        made_on(result)
        + f" The export took {result['export_seconds']:.0f} s.\n\n"
        + markdown([["texts, ms", *names], *rows])
    )


def startup(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    return markdown([["", "seconds"], *([f"`{name}`", f"{value:.2f}"] for name, value in seconds.items())])


def training_steps(result: dict[str, Any]) -> str:
    return markdown(
        [["throughput", "ratio"], *([name, f"{ratio:.3f}"] for name, ratio in result["throughput"].items())]
    )


def triton(result: dict[str, Any]) -> str:
    rows = []
    for row in result["kernels"]:
        if row["kind"] != "clipped":
            continue
        limit = max(row["least_ms"], key=row["least_ms"].get)
        memory = f"{row['registers']}, {row['shared'] / 1024:.0f} KiB, {row['spilled']} B"
        rows.append([row["gpu"], row["width"], f"`{row['kernel']}`", memory, row["blocks"],
                     f"{row['least_ms'][limit]:.2f}, {limit}"])  # fmt: skip
    titles = ["GPU", "features", "kernel", "registers, shared, spilled", "blocks at once", "least ms, limited by"]
    spills = [row for row in result["kernels"] if row["kind"] != "clipped" and row["spilled"]]
    others = sum(row["kind"] != "clipped" for row in result["kernels"])
    return (
        f"Triton {result['triton']}, bf16, {result['sequences']} sequences of {result['length']} tokens, "
        f"{result['heads']} heads, no mask, clipped softmax.\n\n"
        + markdown([titles, *rows])
        + f"\nOf {others} kernels for the other weights, {len(spills)} spill registers"
        + (f", at most {max(row['spilled'] for row in spills)} bytes.\n" if spills else ".\n")
    )
