"""Files to train on that hold no text are refused by their names, before they end the run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quietformer.config.recipe import Source
from quietformer.data.text_sources import read_rows
from quietformer.errors import QuietformerError


@pytest.mark.parametrize("text", ["null", '{"text": "a"}\n null \n{"text": "b"}\n'])
def test_a_row_that_is_null_is_refused_and_does_not_end_the_process(tmp_path, text):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(QuietformerError, match=r"rows\.jsonl: line \d is null and no row"):
        read_rows(Source(path=str(tmp_path / "rows.jsonl")), {"text": "text"})


def test_text_that_is_not_utf8_is_told_by_its_file(tmp_path):
    path = tmp_path / "table.parquet"
    _, offsets, content = pa.array([b"good", b"\xa0bad"], pa.binary()).buffers()
    pq.write_table(pa.table({"text": pa.StringArray.from_buffers(2, offsets, content)}), path)
    with pytest.raises(QuietformerError, match=r"table\.parquet cannot be read: .*UTF8"):
        read_rows(Source(path=str(path)), {"text": "text"})


def test_a_file_of_zeros_has_no_rows(tmp_path):
    (tmp_path / "table.jsonl").write_bytes(bytes(1000))
    with pytest.raises(QuietformerError, match=r"table\.jsonl cannot be read: no row in it is a JSON object"):
        read_rows(Source(path=str(tmp_path / "table.jsonl")), {"text": "text"})
