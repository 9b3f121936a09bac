"""The paper item by item: its results are the data file's, its runs exist, and ours is only what was measured."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from experiments.studies.keep import slim
from quietformer.cli.main import app
from quietformer.config.options.study import PaperOptions
from quietformer.config.recipe_files import read_recipe
from quietformer.config.study import read_study
from quietformer.errors import QuietformerError, SpecError
from quietformer.results.numbers import quoted
from quietformer.results.paper import PaperReport
from quietformer.study import paper as module
from quietformer.study.paper import paper
from quietformer.study.paper_items import DOCUMENTS, ITEMS
from tests.study.papers import DATA_FILE, read_cell, rows_of, study, write_study

ROOT = Path(__file__).parents[2]
OLD = Path(__file__).parent / "version_1" / "study.json"


@pytest.fixture
def nothing_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "RESULTS", tmp_path / "no-results")


def with_ours(*folders):
    return paper(options=PaperOptions(ours=folders))


@pytest.fixture
def placed(nothing_measured, tmp_path):
    """The items at which a study is shown."""

    def place(report):
        given = write_study(tmp_path / "study", report)
        return [item.name for item in with_ours(given).items if item.ours]

    return place


def test_every_table_and_figure_of_the_paper_is_there():
    expected = [f"table{number}" for number in range(1, 12)] + [f"figure{number}" for number in range(1, 18)]
    assert [item.name for item in paper().items] == expected


def test_every_key_of_the_data_file_belongs_to_one_item():
    assert sorted(item.key for item in ITEMS if item.key) == sorted(DATA_FILE)


@pytest.mark.parametrize("item", paper().items, ids=lambda item: item.name)
def test_the_papers_results_are_the_data_files(item):
    rows = [row for table in item.paper for row in table.rows]
    assert [row.row for row in rows] == (rows_of(item.key) if item.key else [])
    assert all(row[0] == "paper" for table in item.paper for row in table.table().rows)
    for table in item.paper:
        for row in table.rows:
            assert set(row.row) == {column.key for column in table.columns}
            for known in row.row.values():
                assert read_cell(quoted(known), known) == known


def test_no_result_of_the_papers_is_typed_in():
    for item in ITEMS:
        words = re.sub(r"OPT-1\.3B|\btable \d+|\d-bit", "", f"{item.shows} {item.unit} {item.note}")
        assert not re.search(r"\d\.\d|±", words), item.name


@pytest.mark.parametrize("item", paper().items, ids=lambda item: item.name)
def test_a_row_is_made_by_runs_that_exist_and_that_quote_it(item):
    named = {f"{run.recipe}:{variant}" for run in item.runs for variant in run.variants}
    for run in item.runs:
        assert set(run.variants) <= set(read_recipe(run.recipe).variants)
    for table in item.paper:
        for row in table.rows:
            assert row.made_by
            assert set(row.made_by) <= named
            if item.key not in ("alpha_study", "bias_init_study", "bert_low_bit", "compute_hours_A100"):
                (made,) = row.made_by
                recipe, _, variant = made.partition(":")
                told = read_recipe(recipe, variant=variant).paper
                quotes = [{name: told[name] for name in told if name != "also"}, *told.get("also", [])]
                assert row.row in [
                    {name: quote[name] for name in quote if name not in ("table", "model")} for quote in quotes
                ]


def test_tables_about_several_runs_have_a_run_for_each_of_their_columns():
    items = {item.name: item for item in paper().items}
    for row in items["table10"].paper[0].rows:
        assert len(row.made_by) == 3
    for row, family in zip(items["table11"].paper[0].rows, ("bert", "opt", "vit"), strict=True):
        assert all(made.startswith(f"paper/{family}") for made in row.made_by)
        assert len(row.made_by) == (3 if family == "opt" else 4)  # its MLP gate is no variant, but a command


COMMANDS = sorted({command for item in paper().items for command in item.commands})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_typed(command):
    program, name, *rest = shlex.split(command)
    if program == "python":
        assert name == "-m"
        assert (ROOT / rest[0].replace(".", "/")).with_suffix(".py").is_file()
        return
    assert program == "quietformer"
    found = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = found.make_context(name, list(rest)).params
    if name in ("compare", "train"):
        changes = given["set"] or []
        asked = ",".join(given["variants"]).split(",") if name == "compare" else [given["variant"]]
        for variant in asked:
            read_recipe(given["recipe"], variant=variant, changes=changes)
        assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("item", [item for item in ITEMS if item.files], ids=lambda item: item.name)
def test_a_file_for_sweep_is_a_study_of_the_items_runs(item, tmp_path):
    for name, content in item.files.items():
        assert f"quietformer sweep {name} --out" in " ".join(item.then)
        path = tmp_path / name
        path.write_text(content)
        found = read_study(path)
        assert found.recipe in item.runs
        assert len(found.trials()) == len(found.seeds) * max(1, len(found.grid.get("variant", ()))) * (
            len(found.grid["data.length"])
        )


def test_the_sweep_of_figure_6_is_the_papers_grid(tmp_path):
    (item,) = paper("figure6").items
    (tmp_path / "alpha.yaml").write_text(item.files["alpha.yaml"])
    grid = read_study(tmp_path / "alpha.yaml").grid
    assert grid["data.length"] == DATA_FILE["alpha_study"]["T"]
    assert grid["variant"] == ["vanilla", *(f"alpha-{alpha}" for alpha in DATA_FILE["alpha_study"]["alpha"])]
    assert grid["variant"] == item.runs[0].variants


def test_documents_that_are_named_are_there():
    for place in DOCUMENTS:
        assert (ROOT / place).is_file()


def test_without_results_nothing_is_ours(nothing_measured):
    report = paper()
    assert [item.name for item in report.items if item.ours] == []
    assert report.elsewhere == []


def test_the_results_folder_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    study().save(tmp_path / "opt.json")
    assert [item.name for item in paper().items if item.ours] == ["table2", "table6"]


def test_ours_is_apart_from_the_papers_and_says_its_size(nothing_measured, tmp_path):
    bare = paper()
    report = with_ours(write_study(tmp_path / "study", study()))
    assert [item.paper for item in report.items] == [item.paper for item in bare.items]
    (ours,) = report.only("table2").items[0].ours
    assert ours.rows[0].fp32.mean == 888.5
    assert "5555" not in ours.model_dump_json(), "what a study quotes of the paper is not ours to show"
    assert ours.size.in_words() == "1.23M to 1.25M parameters, 777 steps, length 48, 2 seeds, 2.0 min a run"
    assert ours.table().rows[0][:4] == ["ours", "vanilla", "888.5 ± 0.7", "999.5 ± 0.7"]


def test_a_study_without_its_runs_says_of_its_size_what_it_can(nothing_measured, tmp_path):
    report = with_ours(write_study(tmp_path / "study", study(trials=[], seeds=(0,))))
    (ours,) = report.only("table2").items[0].ours
    assert ours.size.in_words() == "1 seed"


@pytest.mark.parametrize(
    ("recipe", "grid", "bits", "items"),
    [
        ("small/bert", {"variant": ["vanilla", "gated"]}, ["w8a8"], ["table2", "table5"]),
        ("small/vit-digits", {"variant": ["vanilla", "gated"]}, ["w8a8"], ["table2", "table7"]),
        ("small/bert", {"variant": ["vanilla"]}, ["w8a8", "w4a8"], ["table2", "table5", "table10"]),
        (
            "small/bert",
            {"attention.normalizer.gamma": [-0.1], "attention.normalizer.zeta": [1.0]},
            ["w8a8"],
            ["table1"],
        ),
        ("small/vit-digits", {"attention.normalizer.gamma": [-0.1]}, ["w8a8"], ["table8"]),
        ("small/bert", {"attention.normalizer": ["softmax", "clipped_softmax(gamma=-0.1)"]}, ["w8a8"], ["table1"]),
        ("small/bert", {"attention.normalizer.alpha": [1.0], "data.length": [32]}, ["w8a8"], ["figure6"]),
        ("small/bert", {"attention.gate": ["linear(pi_init=0.5)"]}, ["w8a8"], ["figure7"]),
        ("small/bert", {"attention.gate": [{"kind": "linear", "pi_init": 0.5}]}, ["w8a8"], ["figure7"]),
        ("small/bert", {"attention.normalizer.alpha": [1.0], "variant": ["T=32", "T=64"]}, ["w8a8"], ["figure6"]),
        ("small/opt", {"variant": ["vanilla", "gated"], "optimizer.decay_norms": [True]}, ["w8a8"], ["table6"]),
        ("small/opt", {"optimizer.decay_norms": [False, True]}, ["w8a8"], ["table6"]),
        ("small/vit-digits", {"variant": ["vanilla"], "patch_norm": [False, True]}, ["w8a8"], ["table7"]),
        ("small/bert", {"optimizer.decay_norms": [False, True]}, ["w8a8"], []),
        ("small/opt", {"training.steps": [10]}, ["w8a8"], []),
        ("small/opt", {"attention.normalizer.gamma": [-0.1]}, ["w8a8"], []),
        ("/opt/robert/mine.yaml", {"variant": ["vanilla"]}, ["w8a8"], []),
        ("paper/bert-base", {"variant": ["vanilla", "clipped-0-1.003"]}, ["w8a8"], ["table1"]),
        ("paper/bert-base", {"variant": ["vanilla", "mlp-4"]}, ["w8a8"], ["table2", "table5", "table10", "table11"]),
        ("paper/bert-mnli", {"data.length": [128]}, ["w8a8"], []),
        ("paper/opt-350m", {"variant": ["vanilla"]}, ["w8a8"], ["table3"]),
        ("paper/bert-6l", {"variant": ["vanilla", "alpha-2"], "data.length": [32]}, ["w8a8"], ["figure6"]),
    ],
)
def test_a_study_stands_where_it_belongs(placed, recipe, grid, bits, items):
    assert placed(study(recipe, grid, bits=bits)) == items


def test_a_study_that_belongs_nowhere_is_named(nothing_measured, tmp_path):
    given = write_study(tmp_path / "study", study(grid={"training.steps": [10]}))
    assert with_ours(given).elsewhere == ["made-up"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "study"}', '{"kind": "inspect"}'])
def test_a_file_that_is_no_study_is_refused_by_name(content, tmp_path):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(QuietformerError, match=re.escape(str(tmp_path / "study.json"))):
        with_ours(tmp_path)


@pytest.mark.parametrize("damage", [{"study": {}}, {"study": None}, {"rows": [{}]}, {"rows": None}, {"trials": [{}]}])
@pytest.mark.parametrize("version", [1, 2])
def test_a_study_that_is_damaged_is_refused_by_name(damage, version, tmp_path):
    whole = OLD.read_text() if version == 1 else study().to_json()
    (tmp_path / "study.json").write_text(json.dumps(json.loads(whole) | damage))
    with pytest.raises(
        QuietformerError, match=re.escape(f"{tmp_path / 'study.json'}: a damaged report of kind 'study'")
    ):
        with_ours(tmp_path)


def test_a_file_without_end_is_refused_by_name(tmp_path):
    (tmp_path / "study.json").write_text("[" * 200_000)
    with pytest.raises(QuietformerError, match="cannot be read"):
        with_ours(tmp_path)


def test_it_is_known_where_a_study_that_was_given_belongs(tmp_path):
    given = write_study(tmp_path / "study", study())
    assert [one.items for one in with_ours(given).given] == [["table2", "table6"]]
    assert paper().given == []


def test_an_unknown_item_raises_with_the_nearest():
    with pytest.raises(SpecError, match=r"the paper has no 'tabel2'; did you mean 'table2'\?"):
        paper("tabel2")
    assert paper("Table2").items[0].name == "table2"


def test_the_report_is_read_back_as_it_was(tmp_path):
    report = with_ours(write_study(tmp_path / "study", study()))
    report.save(tmp_path / "paper.json")
    assert PaperReport.read(tmp_path / "paper.json") == report
    assert [table.title for table in report.tables()] == [""]
    shown = report.only("table2").tables()
    assert [table.columns[0] for table in shown] == ["source"] * len(shown)


def test_a_study_as_the_documents_keep_it_is_shown_as_the_whole_one(nothing_measured, tmp_path):
    whole = study()
    kept, full = (
        with_ours(write_study(tmp_path / name, report)).only("table2").items[0].ours
        for name, report in (("kept", slim(whole)), ("whole", whole))
    )
    assert kept == full
