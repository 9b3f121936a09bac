"""Uploading to a stand-in for the hub on this machine: what is sent is what is in the folder."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from quietformer.deployment.push import check_hub_id
from quietformer.errors import QuietformerError


class Hub(BaseHTTPRequestHandler):
    """Takes every file inline in the commit."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path == "/api/repos/create":
            answer, code = {"url": f"{self.server.address}/me/model"}, 200
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer, code = (
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]},
                200,
            )
        else:
            entries = [json.loads(line) for line in body.decode().splitlines() if line]
            files = {one["value"]["path"]: one["value"]["content"] for one in entries if one["key"] == "file"}
            self.server.files = {path: base64.b64decode(content) for path, content in files.items()}
            made = {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.server.address}/me/model/commit/0"}
            answer, code = made, self.server.code
        self.reply(answer, code)

    def do_GET(self):
        self.reply({"id": "me/model", "sha": "0" * 40, "siblings": [], "private": False, "tags": []}, 200)

    def reply(self, answer, code):
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address, server.asked, server.files, server.code = f"http://127.0.0.1:{server.server_port}", [], {}, 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


CODE = "push_folder(Path(sys.argv[1]), 'me/model', ['config.json', 'onnx/model_quantized.onnx'])"


def push(folder, hub, home, *, code=CODE, **settings):
    """In a process of its own: the library reads its settings when it is imported."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom quietformer.deployment.push import check_repository, push_folder\n"
        f"try:\n    {code}\nexcept ValueError as error:\n    sys.exit(str(error))\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **settings}
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)], env=environment, capture_output=True, text=True, check=False
    )


def test_what_the_export_wrote_is_uploaded_with_the_users_token_and_nothing_else(hub, tmp_path):
    folder = tmp_path / "int8"
    (folder / "onnx").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "onnx" / "model_quantized.onnx").write_bytes(b"graph")
    (folder / "notes.txt").write_text("private")
    done = push(folder, hub, tmp_path / "home", HF_TOKEN="hf_mine")
    assert done.returncode == 0, done.stderr
    assert hub.files == {"config.json": b"{}", "onnx/model_quantized.onnx": b"graph"}
    assert {token for _, token in hub.asked} == {"Bearer hf_mine"}


def test_a_hub_that_refuses_is_one_line_that_says_the_folder_is_there(hub, tmp_path):
    (tmp_path / "int8").mkdir()
    (tmp_path / "int8" / "config.json").write_text("{}")
    hub.code = 403
    done = push(tmp_path / "int8", hub, tmp_path / "home", HF_TOKEN="hf_mine")
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "int8 is written, but pushing it to me/model failed" in line
    assert "hf upload me/model" in line


def test_without_a_token_and_offline_nothing_is_begun(hub, tmp_path):
    check = "check_repository('me/model')"
    assert "run `hf auth login`" in push(tmp_path, hub, tmp_path / "home", code=check).stderr
    assert "HF_HUB_OFFLINE is set" in push(tmp_path, hub, tmp_path / "home", code=check, HF_HUB_OFFLINE="1").stderr
    assert hub.asked == []


@pytest.mark.parametrize("name", ["model", "a/b/c", "../model", "me/", "me/a--b", "me/mo del", "/me/model"])
def test_what_is_no_hub_id_is_refused(name):
    with pytest.raises(QuietformerError, match="is not a hub id; write it like user/model"):
        check_hub_id("--push", name)
