"""Names of models and files show as they are in a Markdown card, and mean nothing; read back by a Markdown parser."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

import quietformer as qf
from quietformer.analysis.outliers import TokenNames
from quietformer.analysis.verdict import quoted
from quietformer.rendering.card import card_fragment
from quietformer.rendering.markdown import code, escaped
from quietformer.results.inspect import InspectReport
from tests.tiny_models import build, inputs

NAMES = [
    "plain.txt",
    "a_b*c_d*.txt",
    "<img src=x onerror=alert(1)>",
    "[a link](javascript:alert(1))",
    "![picture](https://example.org/x.png)",
    "https://example.org/x",
    "`code` and ``more``",
    "one | two",
    "&lt;entity&gt;",
    "back\\slash",
    "line\nbreak\r\n\n# heading",
    "```fence",
    "--- rule",
    "`",
]
PARSER = MarkdownIt("gfm-like", {"linkify": False, "html": True})


def _inline(text):
    """The tokens inside the only paragraph."""
    blocks = PARSER.parse(text)
    assert [block.type for block in blocks] == ["paragraph_open", "inline", "paragraph_close"]
    return blocks[1].children


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_text_is_only_text(name):
    tokens = _inline(f"Measured on {escaped(name)}.")
    assert {token.type for token in tokens} <= {"text", "text_special"}
    shown = "".join(token.content for token in tokens)
    assert shown == f"Measured on {name.encode('unicode_escape').decode() if chr(10) in name else name}."


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_code_is_only_code(name):
    tokens = [token for token in _inline(f"Run {code(name)} now") if token.content]
    assert [token.type for token in tokens] == ["text", "code_inline", "text"]
    assert tokens[1].content == (name.encode("unicode_escape").decode() if chr(10) in name else name)


@pytest.fixture(scope="module")
def fields():
    names = TokenNames(lambda token: NAMES[token % len(NAMES)])
    report = qf.inspect_model(build("bert"), [inputs("bert")], names=names, name=NAMES[2])
    return report.model_dump() | {"interventions": [], "growth": []}


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_no_links_images_or_tags_of_a_name(name, fields):
    claims = [f"outliers stand most often at {quoted(name)}"]
    named = {
        "data": fields["data"] | {"source": name},
        "command": f"quietformer inspect {name}",
        "verdict": fields["verdict"] | {"claims": claims},
    }
    blocks = PARSER.parse(card_fragment(InspectReport.from_fields(fields | named)))
    kinds = {token.type for block in blocks for token in (block, *(block.children or ()))}
    assert not {kind for kind in kinds if kind.startswith(("html", "link", "image", "fence", "hr"))}
    assert sum(block.type == "heading_open" for block in blocks) == 1
