"""Files to train on that are no rows of text are refused by their names, before they end the process or the run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quietformer.config.recipe import Source
from quietformer.data import text_sources
from quietformer.data.text_sources import read_rows
from quietformer.errors import QuietformerError

DEEP = {
    "lists": "[" * 5000,
    "objects": '{"text": ' * 5000,
    "spaced": '{ "text" : [ ' * 2000,
    "later": '{"text": "a"}\n' * 9 + "[" * 5000,
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("piece", [2**24, 3000])
def test_json_that_would_end_the_process_is_refused(tmp_path, monkeypatch, name, piece):
    monkeypatch.setattr(text_sources, "PIECE", piece)
    (tmp_path / "deep.jsonl").write_text(DEEP[name])
    with pytest.raises(QuietformerError, match=r"deep\.jsonl is nested too deeply"):
        read_rows(Source(path=str(tmp_path / "deep.jsonl")), {"text": "text"})


def test_json_of_ordinary_depth_is_read(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a [[[[ b", "more": [[[1]]]}\n' * 3)
    assert read_rows(Source(path=str(tmp_path / "rows.jsonl")), {"text": "text"})["text"] == ["a [[[[ b"] * 3


def test_text_that_is_not_utf8_is_told_by_its_file(tmp_path):
    path = tmp_path / "table.parquet"
    _, offsets, content = pa.array([b"good", b"\xa0bad"], pa.binary()).buffers()
    pq.write_table(pa.table({"text": pa.StringArray.from_buffers(2, offsets, content)}), path)
    with pytest.raises(QuietformerError, match=r"table\.parquet cannot be read: .*UTF8"):
        read_rows(Source(path=str(path)), {"text": "text"})
