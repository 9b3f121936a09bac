"""Reports: JSON both ways, versions, schemas, and nothing of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quietformer.config.attention import AttentionSpec
from quietformer.errors import QuietformerError
from quietformer.results.base import Report
from quietformer.results.convert import ConvertReport
from quietformer.results.quality import Metrics, Spread, cost, effect, spreads
from quietformer.results.quantize import QuantizeReport, SimulatedReport
from quietformer.results.tables import Table
from tests.report_schemas import FOLDER, kinds, schemas


def converted(**fields):
    return ConvertReport(
        **{
            "model": "m", "out": "o", "class_name": "Bert", "attention": AttentionSpec(), "patch_norm": False, "seed": 0,
            "layers": 2, "parameters_before": 10, "parameters_added": 1, "bytes": 100,
        }
        | fields
    )  # fmt: skip


def test_a_report_comes_back_from_json_as_it_was(tmp_path):
    report = converted()
    report.save(tmp_path / "r.json")
    assert Report.read(tmp_path / "r.json") == report
    assert ConvertReport.read(tmp_path / "r.json") == report


def test_a_fresh_process_reads_any_kind(tmp_path):
    converted().save(tmp_path / "r.json")
    code = "import sys; from quietformer.results.base import Report; print(Report.read(sys.argv[1]).kind)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.json")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "convert\n", done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "a report is a JSON object"),
        ('{"version": 99}', "this release reads up to 2; pip install -U quietformer"),
        ('{"version": "2"}', "no usable version"),
        ('{"version": 2, "kind": "nothing"}', "no report of kind 'nothing'"),
        ('{"version": 1, "kind": ["x"]}', r"no report of kind \['x'\]"),
        ('{"version": 1, "kind": "retrofit", "rows": [3]}', "damaged report"),
        ('{"version": 1, "kind": "retrofit", "before": {}}', "damaged report"),
        ('{"version": 1, "kind": "retrofit", "before": {"inspect": [1]}}', "damaged report"),
        ('{"version": 1, "kind": "train", "log": [3]}', "damaged report"),
        ('{"version": 2, "kind": "convert"}', "a damaged report of kind 'convert': model: Field required"),
    ],
)
def test_what_is_no_report_is_told_in_one_line(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(QuietformerError, match=message) as caught:
        Report.read(tmp_path / "r.json")
    assert str(tmp_path / "r.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_of_another_kind_is_told_with_both_kinds(tmp_path):
    converted().save(tmp_path / "r.json")
    with pytest.raises(QuietformerError, match="of kind 'convert'; one of kind 'quantize' is needed here"):
        QuantizeReport.read(tmp_path / "r.json")


def test_a_class_that_several_kinds_share_reads_each_of_them(tmp_path):
    converted().save(tmp_path / "r.json")
    with pytest.raises(QuietformerError, match="one of kind 'SimulatedReport' is needed here"):
        SimulatedReport.read(tmp_path / "r.json")
    old = next((Path(__file__).parent / "version_1").glob("quantize*.json"))
    assert SimulatedReport.read(old).kind == "quantize"


def test_an_unknown_field_is_an_error(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(json.loads(converted().to_json()) | {"nonsense": 1}))
    with pytest.raises(QuietformerError, match="nonsense"):
        Report.read(tmp_path / "r.json")


def test_a_report_that_is_not_there_is_named(tmp_path):
    with pytest.raises(QuietformerError, match="does not exist"):
        Report.read(tmp_path / "none.json")


def test_nan_becomes_none_in_json():
    found = Metrics(cosine=float("nan"), neighbour_agreement=0.5)
    assert json.loads(found.model_dump_json()) == {"cosine": None, "neighbour_agreement": 0.5}
    assert found.names() == ["cosine", "neighbour_agreement"]


def test_spreads_are_means_and_sample_deviations():
    found = spreads([Metrics(cosine=0.5), Metrics(cosine=1.0)])
    assert found.cosine == Spread(mean=0.75, std=0.5**0.5 / 2)
    assert spreads([Metrics(cosine=0.5), Metrics(cosine=None)]).cosine == Spread(mean=None, std=None)


@pytest.mark.parametrize(
    ("before", "after", "better", "word"),
    [
        (1.0, 0.999, "higher", "none"),
        (1.0, 0.99, "higher", "little"),
        (1.0, 0.95, "higher", "harm"),
        (1.0, 0.5, "higher", "broken"),
        (10.0, 10.05, "lower", "none"),
        (10.0, None, "lower", "broken"),
        (None, 1.0, "higher", "unknown"),
    ],
)
def test_what_a_loss_is_called(before, after, better, word):
    assert effect(before, after, better) == word
    assert (cost(before, after, better) is None) == (word == "unknown")


def test_a_table_in_markdown_keeps_its_columns():
    table = Table("t", ["a", "b"], [["x|y", "1"]])
    assert table.markdown().splitlines()[-1] == r"| x\|y | 1 |"
    assert str(table).splitlines()[0] == "t"


def test_the_published_schemas_are_those_of_the_reports():
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == schemas(), "run `make schemas`"


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_every_kind_is_versioned_and_describes_itself(kind):
    schema = kinds()[kind].model_json_schema()
    assert {"kind", "version", "command", "versions"} <= schema["properties"].keys()
    assert schema["description"]


def test_a_notebook_gets_a_frame_that_holds_the_page():
    shown = converted(out="<b>x</b>")._repr_html_()
    assert shown.startswith("<iframe ")
    assert "<b>x</b>" not in shown


def test_reports_need_no_torch():
    code = (
        "import sys, tests.report_schemas as s; s.kinds(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
