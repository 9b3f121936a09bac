"""The verbs of Python and of the command line: the same names, options, defaults and help."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.main import get_command

import quietformer as qf
from quietformer.cli.main import app
from quietformer.cli.report_files import JsonOutput, PageOutput
from quietformer.config.options.base import Options
from quietformer.config.options.convert import ConvertOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.config.options.quantize import QuantizeOptions
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.options.study import CompareOptions, PaperOptions
from quietformer.config.options.train import TrainOptions
from quietformer.config.recipe import Recipe
from quietformer.config.recipe_files import read_recipe
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import tiny, write_prose

COMMANDS = get_command(app).commands
OUTPUT = {"help"}
"""What a command says about where its report is written; in Python a report has `save` and `to_html`."""


def output_fields(cls: type[Options]) -> set[str]:
    return {*cls.model_fields}.union(*map(output_fields, cls.__subclasses__()))


ONLY_ON_THE_COMMAND_LINE = OUTPUT | output_fields(JsonOutput) | output_fields(PageOutput)


PLANNED = {
    "train": ["plan_training"], "quantize": ["plan_quantization"], "export": ["export_layer_by_layer", "plan_layer_by_layer"],
}  # fmt: skip
"""Verbs whose --plan, or another way to do the work, is a function of its own in Python."""
ROOT = Path(__file__).parent.parent


def comparable(options: dict[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_command_is_a_function_with_the_same_arguments_options_and_defaults(verb):
    keywords, positional = {}, []
    for name in (verb, *PLANNED.get(verb, [])):
        parameters = inspect.signature(getattr(qf, name)).parameters.values()
        keywords |= {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        positional.append([one.name for one in parameters if one.kind is not one.KEYWORD_ONLY])
    options = {
        parameter.name: parameter.default
        for parameter in COMMANDS[verb].params
        if parameter.param_type_name == "option" and parameter.name not in ONLY_ON_THE_COMMAND_LINE
    }
    assert comparable(options) == comparable(keywords)
    arguments = [parameter.name for parameter in COMMANDS[verb].params if parameter.param_type_name == "argument"]
    assert positional == [arguments] * len(positional)


def test_what_only_the_command_line_has_is_no_option_of_a_verb():
    """Otherwise the comparison above would leave it out."""
    verbs = [*COMMANDS, *(name for names in PLANNED.values() for name in names)]
    keywords = {name for verb in verbs for name in inspect.signature(getattr(qf, verb)).parameters}
    assert keywords & ONLY_ON_THE_COMMAND_LINE == set()


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_option_has_a_help_text(verb):
    for parameter in COMMANDS[verb].params:
        assert parameter.help, f"{verb} {parameter.name}"


def test_an_unknown_option_names_the_nearest_one():
    with pytest.raises(qf.QuietformerError, match="did you mean 'sequences'"):
        qf.inspect("minilm", sequnces=3)


def checked(folder: Path, files: dict[str, str]) -> list[str]:
    """What mypy says of these files, as a user runs it."""
    for name, text in files.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *files],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_a_type_checker_sees_options_and_reports(tmp_path):
    """It takes everything the documents show, and refuses the rest."""
    documents = {
        f"{path.stem.lower()}_{place}.py": text
        for path in (ROOT / "README.md", ROOT / "docs" / "api.md")
        for place, text in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    }
    assert len(documents) > 5
    right = (
        "from pathlib import Path\n"
        "import quietformer as qf\n"
        'reveal_type(qf.retrofit("minilm", "out", steps=10).before.real)\n'
        'real = qf.retrofit("minilm", "out").before.real\n'
        "assert real is not None and real.per_channel is not None\n"
        "reveal_type(real.per_channel.cosine)\n"
        'reveal_type(qf.inspect(models=["a", Path("b")], sequences=4).headline.kurtosis)\n'
        'qf.inspect(qf.open_model(Path("a")), texts=Path("a.txt"), images=None)\n'
        'qf.paper(item="table2", ours="a")\n'
        'qf.sweep(file=Path("a.yaml"), out="b")\n'
        'qf.recipes(name="small/opt")\n'
    )
    wrong = [
        'qf.inspect("minilm", sequnces=4)',
        'qf.inspect("minilm", texts=3)',
        'qf.quantize("minilm", keep=[1])',
        'qf.quantize("minilm", per_channel="yes")',
        "qf.train(3)",
        'qf.retrofit(qf.open_model("minilm"), "out")',
        'qf.compare(set=4, variants="a,b")',
        'qf.export("minilm")',
    ]
    bad = "\n".join(["import quietformer as qf", *wrong])
    said = checked(tmp_path, documents | {"right.py": right, "wrong.py": bad})
    revealed = [line.partition("Revealed type is ")[2] for line in said if "Revealed" in line]
    assert len(revealed) == 3, said
    assert revealed[1:] == ['"float | None"', '"float | None"']
    assert "Any" not in revealed[0]
    errors = [line for line in said if " error: " in line]
    assert [line for line in errors if not line.startswith("wrong.py")] == []
    assert [line.split(":")[1] for line in errors] == [str(place) for place in range(2, 2 + len(wrong))], errors
    assert 'did you mean "sequences"' in errors[0]


# ---- what options take
@pytest.mark.parametrize(
    ("options", "field", "given", "kept"),
    [
        (RetrofitOptions, "texts", "a.txt", ("a.txt",)),
        (RetrofitOptions, "texts", Path("a.txt"), ("a.txt",)),
        (RetrofitOptions, "texts", ["embedded", Path("a.txt")], ("embedded", "a.txt")),
        (RetrofitOptions, "eval_texts", "a.txt", (Path("a.txt"),)),
        (RetrofitOptions, "eval_texts", ["a.txt", Path("b.txt")], (Path("a.txt"), Path("b.txt"))),
        (InspectOptions, "texts", "a.txt", Path("a.txt")),
        (QuantizeOptions, "out", "runs/a", Path("runs/a")),
        (QuantizeOptions, "keep", "*.scores", ("*.scores",)),
        (QuantizeOptions, "keep", ["*.scores", "*.ffn_output=16"], ("*.scores", "*.ffn_output=16")),
        (TrainOptions, "set", "a=1", ("a=1",)),
        (TrainOptions, "set", {"a": 1, "b": "x", "c": [None, True], "d": Path("e")},
         ("a=1", "b=x", "c=[null, true]", "d=e")),
        (PaperOptions, "ours", "dir", (Path("dir"),)),
        (CompareOptions, "variants", "a,b", ("a", "b")),
        (CompareOptions, "variants", ["a,b", "c"], ("a", "b", "c")),
    ],
)  # fmt: skip
def test_one_value_or_several_text_or_a_path(options, field, given, kept):
    assert getattr(options(**{field: given}), field) == kept


@pytest.mark.parametrize(
    ("options", "field", "given"),
    [
        (RetrofitOptions, "balance", True),
        (RetrofitOptions, "rotate", 1),
        (RetrofitOptions, "texts", 3),
        (RetrofitOptions, "eval_texts", [None]),
        (InspectOptions, "sequences", True),
        (InspectOptions, "sequences", "3"),
        (InspectOptions, "texts", 3),
        (QuantizeOptions, "per_channel", "yes"),
        (QuantizeOptions, "calibration", 1.0),
        (QuantizeOptions, "keep", {"*.scores": 1}),
        (TrainOptions, "set", {"a": object}),
        (CompareOptions, "variants", 3),
    ],
)
def test_another_type_is_refused_in_one_line(options, field, given):
    with pytest.raises(qf.QuietformerError) as error:
        options(**{field: given})
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(options.title) or "got" in str(error.value)


def test_a_spec_is_a_value_of_a_field_of_the_recipe():
    gate = qf.LinearGate(pi_init=0.4)
    changes = TrainOptions(set={"attention.gate": gate, "attention.normalizer": qf.ClippedSoftmax(alpha=2.0)}).set
    attention = read_recipe("small/opt", changes=changes).attention
    assert attention == qf.AttentionSpec(gate=gate, normalizer=qf.ClippedSoftmax(alpha=2.0))


def test_all_verbs_take_the_same_seeds(tmp_path):
    fields = tiny("causal", write_prose(tmp_path / "text.txt"))
    for take in (
        lambda seed: InspectOptions(seed=seed),
        lambda seed: ConvertOptions(gate="linear", seed=seed),
        lambda seed: RetrofitOptions(seed=seed),
        lambda seed: Recipe(**fields | {"seed": seed}),
    ):
        assert take(2**32 - 1).seed == 2**32 - 1
        for seed in (-1, 2**32, 99999999999999999999, True, 1.0):
            with pytest.raises(qf.QuietformerError, match="seed"):
                take(seed)


# ---- the arguments of verbs
@pytest.fixture
def folder(tmp_path):
    return tiny_pretrained(tmp_path / "model")


@pytest.fixture
def quick(tmp_path):
    return {"texts": str(write_prose(tmp_path / "text.txt")), "sequences": 4, "length": 16, "batch_size": 2}


def opened_bare():
    return torch.nn.Linear(2, 2)


NO_MODEL = [None, 3, [], [None], (name for name in ["a"]), opened_bare()]


@pytest.mark.parametrize("verb", ["inspect", "quantize", "plan_quantization", "export", "convert", "retrofit"])
def test_what_is_no_model_is_refused_in_one_line(verb, tmp_path):
    more = (tmp_path / "out",) if verb in ("export", "convert", "retrofit") else ()
    options = {"gate": "linear"} if verb == "convert" else {}
    for model in NO_MODEL:
        with pytest.raises(qf.QuietformerError, match="model") as error:
            getattr(qf, verb)(model, *more, **options)
        assert "\n" not in str(error.value)


def test_retrofit_of_an_open_model_says_to_save_it(folder, tmp_path):
    with pytest.raises(qf.QuietformerError, match="save an open model"):
        qf.retrofit(qf.open_model(folder), tmp_path / "out")


@pytest.mark.parametrize("verb", ["train", "plan_training", "compare", "sweep", "paper", "recipes"])
def test_what_is_no_name_is_refused_in_one_line(verb):
    for name in (None, 3, ["small/opt"]):
        with pytest.raises(qf.QuietformerError, match="must be text or a path"):
            getattr(qf, verb)(name)


def test_out_that_is_no_path_is_refused(folder):
    with pytest.raises(qf.QuietformerError, match="out must be text or a path, got 3"):
        qf.convert(folder, 3, gate="linear")


def test_a_missing_argument_has_the_name_that_help_shows():
    with pytest.raises(TypeError, match="'models'"):
        qf.inspect()
    with pytest.raises(TypeError, match="'out'"):
        qf.export("minilm")


def test_building_blocks_refuse_what_is_no_model_or_batch(folder):
    model, spec = qf.open_model(folder), qf.QuantSpec()
    for wrong in (
        lambda: qf.apply_attention_("tiny", qf.AttentionSpec()),
        lambda: qf.remove_attention_("tiny"),
        lambda: qf.advance_warmup_(None),
        lambda: list(qf.attention_cores("tiny")),
        lambda: qf.quantize_("tiny", spec, {}),
        lambda: qf.quantize_(model, spec, None),
        lambda: qf.quantize_(model, None, model.dummy_inputs),
        lambda: qf.calibrate_("tiny", []),
        lambda: qf.calibrate_(model, None),
        lambda: qf.dequantize_("tiny"),
        lambda: qf.balance_(model, None),
        lambda: qf.balance_(model, [None]),
        lambda: qf.balance_(model, model.dummy_inputs),
        lambda: qf.balance_("tiny", []),
        lambda: qf.rotate_(model, None),
        lambda: qf.rotate_("tiny", model.dummy_inputs),
        lambda: qf.inspect_model("tiny", []),
        lambda: qf.inspect_model(model, None),
        lambda: qf.export_onnx(model, "out", None),
        lambda: qf.export_onnx("tiny", "out", []),
        lambda: qf.save("tiny", "out"),
        lambda: qf.open_model(None),
    ):
        with pytest.raises(qf.QuietformerError) as error:
            wrong()
        assert "\n" not in str(error.value)


# ---- the command of a report
def test_the_command_of_a_report_makes_it_again(run, tmp_path, folder, quick):
    """Its options are read back from the command line."""
    named = qf.inspect(models=folder, interventions=False, **quick)
    for report in (
        named,
        qf.plan_training("small/opt", devices=2, measure=False, set={"training.steps": 7}),
        qf.recipes("small/opt", variant="gated"),
        qf.paper(item="table2"),
        qf.variants(),
        qf.studies(),
    ):
        words = shlex.split(report.command)
        assert words[0] == "quietformer", report.kind
        where = ["--page", tmp_path / "page.html"] if report.kind == "inspect" else []
        code, _, error = run(*words[1:], "--json", tmp_path / "again.json", *where)
        assert code == 0, error
        again = type(report).read(tmp_path / "again.json")
        assert again == type(report).from_fields(report.model_dump(mode="json"))


def test_a_model_that_was_open_has_no_command(folder, quick, tmp_path):
    """It may have been changed in memory, so the name it was opened by would make another report."""
    model = qf.open_model(folder)
    assert qf.inspect(model, interventions=False, **quick).command == ""
    assert qf.inspect([folder, model], interventions=False, **quick).command == ""
    assert qf.quantize(model, seeds=1, calibration=1, **quick).command == ""
    model.config.name_or_path = ""
    assert qf.convert(model=model, out=tmp_path / "nameless", gate="linear").command == ""


def test_convert_makes_the_folders_above_as_quantize_does(folder, quick, tmp_path):
    report = qf.convert(folder, out=tmp_path / "a" / "b", gate="linear")
    assert type(qf.load(report.out)) is type(qf.open_model(folder))
    qf.quantize(folder, out=str(tmp_path / "c" / "d"), seeds=1, calibration=1, **quick)
    assert (tmp_path / "c" / "d" / "config.json").is_file()
    for verb in (
        lambda out: qf.convert(folder, out, gate="linear"),
        lambda out: qf.export(folder, out),
        lambda out: qf.quantize(folder, out=out),
    ):
        with pytest.raises(qf.QuietformerError, match=r"text\.txt is a file, so"):
            verb(tmp_path / "text.txt" / "x")
