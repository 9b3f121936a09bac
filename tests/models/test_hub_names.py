"""Names that are no folder here: a slip is told at once, and the hub is asked one time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from quietformer.data.tokenizers import tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.models.open_any import BUILT_IN
from tests.commands import fails
from tests.tiny_models import build


@pytest.fixture
def hub():
    """A server in the place of the hub, which counts what it is asked; its answer can be chosen."""

    class Answer(BaseHTTPRequestHandler):
        status, asked = HTTPStatus.SERVICE_UNAVAILABLE, []

        def do_HEAD(self):
            self.asked.append(self.path)
            self.send_response(self.status)
            for name, value in self.headers_of(self.status).items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_HEAD

        @staticmethod
        def headers_of(status):
            return {"X-Error-Code": "RepoNotFound"} if status == HTTPStatus.NOT_FOUND else {}

        def log_message(self, *_): ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, Answer
    server.shutdown()
    server.server_close()


def _asked(server, tmp_path, *words):
    """A command in a process of its own, for which the server is the hub: its last line."""
    place = f"http://127.0.0.1:{server.server_port}"
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": place, "HF_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "quietformer", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def _about(name, answer):
    """How often the hub was asked for a file of this repository; huggingface_hub may ask it for other things."""
    return sum(path.startswith(f"/{name}/resolve/") for path in answer.asked)


@pytest.mark.parametrize("name", ["someone/model", "model"])
def test_a_hub_that_does_not_answer_is_asked_once(hub, tmp_path, name):
    server, answer = hub
    line = _asked(server, tmp_path, "inspect", name)
    assert f"there is no folder {name!r} here, and the hub (http://127.0.0.1:" in line
    assert "cannot be reached" in line
    assert _about(name, answer) == 1


def test_a_name_that_the_hub_does_not_know(hub, tmp_path):
    server, answer = hub
    answer.status = HTTPStatus.NOT_FOUND
    assert "the hub has no model of that name" in _asked(server, tmp_path, "inspect", "someone/model")
    assert _about("someone/model", answer) == 1


@pytest.mark.parametrize("known", BUILT_IN)
def test_a_slip_in_a_known_name_is_told_without_the_hub(run, known):
    for slip in (known[:1] + known[2:], known.upper(), f"{known}s"):
        line = fails(run, "inspect", slip)
        assert f"there is no folder {slip!r} here; did you mean {known!r}?" in line


def test_a_slip_in_the_name_of_a_folder_is_told(tmp_path, monkeypatch, run):
    build("bert").save_pretrained(tmp_path / "checkpoints" / "finished")
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'checkpoints/finished'?" in fails(run, "inspect", "checkpoints/finnished")


def test_a_tokenizer_is_looked_for_in_the_same_way(hub, tmp_path):
    server, answer = hub
    build("bert").save_pretrained(tmp_path / "model")
    line = _asked(server, tmp_path, "inspect", "model", "--tokenizer", "someone/words")
    assert "there is no folder 'someone/words' here" in line
    assert _about("someone/words", answer) == 1
    with pytest.raises(QuietformerError, match="no such names"):
        tokenizer_of("some one/words")
