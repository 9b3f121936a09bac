"""What is fetched beside a hub model, from a stand-in for the hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]
FILES = {"README.md": "---\nlicense: mit\n---\n", "config.json": "{}"}
SENTENCE_FILES = FILES | {
    "modules.json": json.dumps(MODULES),
    "1_Pooling/config.json": json.dumps({"pooling_mode_cls_token": True}),
    "config_sentence_transformers.json": json.dumps({"prompts": {}}),
}
MAIN = "/me/model/resolve/main/"


class Hub(BaseHTTPRequestHandler):
    """Serves the files of one repository; those in `broken` cannot be had."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        name = self.path.removeprefix(MAIN)
        found = self.server.files.get(name, "").encode()
        code = 403 if name in self.server.broken else 200 if name in self.server.files else 404
        self.send_response(code)
        self.send_header("X-Repo-Commit", "0" * 40)
        if code == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("ETag", f'"{abs(hash(name)):x}"')
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        if body:
            self.wfile.write(found)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.broken = FILES, ()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


SCRIPT = """
import sys
from huggingface_hub import hf_hub_download
from quietformer.models.origin import fetch_sentence_files
hf_hub_download("me/model", "config.json")
for embeds in (False, True):
    try:
        fetch_sentence_files("me/model", embeds=embeds)
    except ValueError as error:
        print(embeds, error)
"""


def fetched(hub, home: Path, **settings: str) -> tuple[set[str], str]:
    """In a process of its own, because the library reads its settings when it is imported: what is cached, what is said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home), **settings}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    snapshot = next(home.glob("hub/models--me--model/snapshots/*"))
    return {
        path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()
    }, done.stdout + done.stderr


def test_the_card_of_a_plain_encoder_is_fetched_and_offline_it_stays_plain(hub, tmp_path):
    assert fetched(hub, tmp_path) == (set(FILES), "")
    assert fetched(hub, tmp_path, HF_HUB_OFFLINE="1") == (set(FILES), "")


def test_a_sentence_encoder_has_all_its_files(hub, tmp_path):
    hub.files = SENTENCE_FILES
    assert fetched(hub, tmp_path) == (set(SENTENCE_FILES), "")


@pytest.mark.parametrize("broken", ["modules.json", "1_Pooling/config.json"])
def test_an_error_of_the_network_is_not_mean_pooling(hub, tmp_path, broken):
    hub.files, hub.broken = SENTENCE_FILES, (broken,)
    said = fetched(hub, tmp_path)[1]
    assert "True me/model: its modules.json says how embeddings are pooled and cannot be fetched" in said
    assert "False me/model" not in said


def test_without_a_card_the_rest_is_fetched(hub, tmp_path):
    hub.files, hub.broken = SENTENCE_FILES, ("README.md",)
    found, said = fetched(hub, tmp_path)
    assert found == set(SENTENCE_FILES) - {"README.md"}
    assert "README.md cannot be fetched, so a card made of it lacks the license" in said
