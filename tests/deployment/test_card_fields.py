"""What a card takes over from the card of the source folder."""

from __future__ import annotations

import pytest

from quietformer.deployment.card_fields import card_fields
from quietformer.deployment.shipment import model_to_ship
from tests.tiny_models import build


@pytest.mark.parametrize(
    ("head", "license", "language"),
    [
        ("license: mit\nlanguage: en", "mit", ["en"]),
        ("license: [mit, apache-2.0]\nlanguage: [en, no]", ["mit", "apache-2.0"], ["en", "no"]),
        ("license:\n- mit\nlanguage: no", "mit", ["no"]),
        ("license: null\nlanguage: ~", None, []),
        ("license: {a: b}\nlanguage: [[en]]", None, []),
        ("license: [", None, []),
    ],
)
def test_license_and_language_are_text_or_lists_of_text(tmp_path, head, license, language):
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n# Title\n")
    found = card_fields(model_to_ship(build("bert"), tmp_path), "")
    assert (found.license, found.language) == (license, language)
