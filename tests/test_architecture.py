"""The shape of the project: imports point one way, files and functions stay small, the public names are all there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import quietformer as qf
from tests.package_graph import DRAWING, ROOT, SOURCE, drawing, edges, package_of, reachable
from tests.signatures import called_elsewhere, functions, is_untyped, untyped_aliases

BASE = {"errors", "files"}
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "progress": set(),
    "_autoload": set(),
    "config": BASE,
    "results": BASE | {"config"},
    "rendering": BASE | {"config", "results"},
    "attention": {"errors", "config"},
    "architectures": {"errors", "config", "attention"},
    "transforms": {"errors", "config", "attention", "architectures"},
    "quant": {"errors", "progress", "config", "results", "attention", "architectures"},
    "models": BASE | {"config", "attention", "architectures", "transforms", "quant"},
    "data": BASE | {"config", "results", "architectures", "models"},
    "analysis": {
        "errors", "progress", "config", "results", "attention", "architectures", "transforms", "quant", "models", "data",
    },
    "training": BASE | {
        "progress", "config", "results", "attention", "architectures", "transforms", "quant", "models", "data",
        "analysis",
    },
    "deployment": BASE | {
        "progress", "config", "results", "attention", "architectures", "transforms", "quant", "models", "data", "analysis",
    },
    "workflows": BASE | {
        "progress", "config", "results", "rendering", "attention", "architectures", "transforms", "quant", "models", "data",
        "analysis", "training", "deployment",
    },
    "study": BASE | {"progress", "config", "results", "rendering", "training", "workflows"},
    "api": {"errors", "progress", "config", "workflows", "study"},
    "cli": BASE | {"progress", "config", "results", "rendering", "training", "workflows", "study"},
    "__init__": {"_autoload"},
    "__main__": {"cli"},
}  # fmt: skip
"""Every package and what it may import, lazily or not."""
HOMES = {"quietformer.attention.normalizers", "quietformer.attention.gates", "quietformer.quant.estimators",
         "quietformer.deployment.targets",
         "quietformer.quant.placements", "quietformer.training.regularizers"}  # fmt: skip
"""Where registries look for the classes they name, by name and on first use (docs/adr/0012)."""
BY_NAME = {
    ("results", "rendering"): "a report has `to_html`, and pages are drawn from reports",
    ("_autoload", "models"): "transformers is hooked when it is imported, and not before",
}
"""Other packages that are named in a string and imported on first use, and why (docs/adr/0012)."""
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 400, 60, 6
DICTATED = {f"config/recorded_changes.py:RecordedChanges.{name}" for name in ("from_dict", "to_dict", "to_diff_dict")}
"""Methods whose signature transformers dictates; it calls them, our packages do not."""


def test_every_package_edge_is_allowed_and_every_allowed_edge_is_used():
    assert edges() == {(here, there) for here, found in ALLOWED.items() for there in found}


def test_there_is_no_package_cycle():
    found = edges()
    assert [package for package in ALLOWED if package in reachable(package, found)] == []


def test_registries_are_the_only_way_up():
    calls = [node for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func).partition("[")[0] == "Registry"]
    assert {ast.literal_eval(word.value) for call in made for word in call.keywords} == HOMES


def test_modules_named_in_strings_are_registries_homes_or_listed_here():
    named = {
        (package_of(path), node.value)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value)
    }
    named = {(here, name) for here, name in named if name not in HOMES}
    elsewhere = {(here, name) for here, name in named if name.split(".")[1] not in ALLOWED[here] | {here}}
    assert {(here, name.split(".")[1]) for here, name in elsewhere} == BY_NAME.keys()


def test_modules_are_imported_by_name_only_where_it_is_known_what_they_are():
    """Elsewhere than in these files a name might be put together so that the test above does not see it."""
    found = {path.relative_to(SOURCE).as_posix() for path in FILES if "import_module" in path.read_text()}
    assert found == {
        "__init__.py", "_autoload.py", "attention/adapters/__init__.py", "attention/adapters/class_swap.py",
        "config/registry.py", "models/load_folder.py", "results/base.py", "study/ray_cluster.py",
    }  # fmt: skip


def is_module(text: str) -> bool:
    """Whether a string is the name of a module or a package of ours."""
    if not re.fullmatch(r"quietformer(\.\w+)+", text):
        return False
    place = SOURCE.joinpath(*text.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_drawing_in_the_documents_is_that_of_the_imports():
    assert drawing() in DRAWING.read_text(), "run `make graph`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def test_functions_stay_small():
    assert [function.name for function in functions() if function.lines > LONGEST_FUNCTION] == []
    assert [function.name for function in functions() if len(function.parameters) > MOST_PARAMETERS] == []


def test_no_untyped_dictionary_crosses_a_package_border():
    aliases = untyped_aliases()
    found = [
        function.name
        for function in called_elsewhere()
        if any(is_untyped(annotation, aliases) for annotation in function.annotations)
    ]
    assert sorted(set(found) - DICTATED) == []


def test_an_untyped_dictionary_is_seen_under_any_name():
    assert is_untyped("list[dict[str, Any]]", set())
    assert is_untyped("Sequence[Row] | None", {"Row"})
    assert not is_untyped("Sequence[Rows]", {"Row"})


def formats_a_number(tree: ast.AST) -> bool:
    """Whether it rounds a number or groups its digits: `{x:.2f}`, `{n:,}`, `"{:.1%}".format`."""
    nodes = list(ast.walk(tree))
    specs = [
        ast.unparse(node.format_spec) for node in nodes if isinstance(node, ast.FormattedValue) and node.format_spec
    ]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(re.search(r"[.,%]|[efg]['\"]$", spec) for spec in specs) or any(
        re.search(r"\{\w*:[^{}]*(\.\d+[efg%]|,|%)\}|%\.\d+[efg]", text) for text in texts
    )


def test_numbers_are_formatted_in_one_place():
    """A value of a spec that a user wrote (`alpha=0.5`) is repeated as it is; what was measured goes through `numbers`."""
    packages = {"results", "rendering", "analysis", "training", "deployment", "workflows", "study", "cli"}
    written = {"deployment/baselines.py", "study/ray_cluster.py", "study/paper_items.py"}
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if package_of(path) in packages and formats_a_number(ast.parse(path.read_text()))
    }
    assert found - written == {"results/numbers.py"}


@pytest.mark.parametrize(
    "line", ['f"{x:.2f}"', 'f"{n:,}"', 'f"{x:.{places}%}"', '"{:.1%}".format(x)', '"%.3f" % x', 'f"{x:g}"']
)
def test_a_formatted_number_is_seen(line):
    assert formats_a_number(ast.parse(line))
    assert not formats_a_number(ast.parse('f"{x}, {name:>10}, {n!r:<4}"'))


def test_the_public_names_are_all_there():
    for name in qf.__all__:
        assert getattr(qf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = qf.nope


def test_no_public_name_is_also_a_package():
    """Importing `quietformer.train` would put the package in place of a function `train`."""
    assert not {path.parent.name for path in SOURCE.glob("*/__init__.py")} & {*qf.__all__}


def test_type_checkers_see_every_public_name(tmp_path):
    lines = [f"reveal_type(qf.{name})" for name in qf.__all__]
    (tmp_path / "user.py").write_text("\n".join(["import quietformer as qf", *lines]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(qf.__all__), done.stdout
    assert not [line for line in revealed if '"Any"' in line]
    assert " error: " not in done.stdout


def test_the_command_line_starts_without_torch():
    code = "import sys, quietformer.cli.main; sys.exit(any(n in sys.modules for n in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tests_mirror_the_source_folder_by_folder():
    def folders(root):
        return {path.parent.relative_to(root).as_posix() for path in root.rglob("*.py")}

    assert folders(SOURCE) <= folders(ROOT / "tests")
