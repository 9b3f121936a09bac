"""Files that git has changed or left out, in a folder of stand-ins for the real ones."""

from __future__ import annotations

import pytest

from quietformer.deployment.folder_digests import POINTER, check_whole, digests_of
from quietformer.errors import QuietformerError

FILES = (
    "model.onnx",
    "model.onnx.data",
    "openvino/openvino_model.xml",
    "openvino/openvino_model.bin",
    "tokenizer.json",
)


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(f"first line of {name}\nsecond line\n".encode())
    return tmp_path, digests_of(tmp_path)


def check(folder, told, graph):
    check_whole(folder, folder / graph, told, "export again")


@pytest.mark.parametrize(
    ("graph", "name"),
    [("model.onnx", name) for name in (FILES[0], FILES[1], FILES[4])] + [(FILES[2], name) for name in FILES[2:]],
)
def test_a_pointer_is_no_damage(folder, graph, name):
    place, told = folder
    (place / name).write_bytes(POINTER + b".github.com/spec/v1\noid sha256:aa\nsize 3\n")
    with pytest.raises(QuietformerError, match="is a pointer of git LFS") as refused:
        check(place, told, graph)
    assert str(place / name) in str(refused.value)


def test_pointers_to_the_graphs_of_other_runtimes_do_no_harm(folder):
    place, told = folder
    (place / FILES[3]).write_bytes(POINTER)
    check(place, told, "model.onnx")


def test_line_ends_of_windows_are_no_damage_to_text_and_are_to_weights(folder):
    place, told = folder
    for name in FILES[2:4]:
        check(place, told, FILES[2])
        (place / name).write_bytes((place / name).read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(QuietformerError, match=r"openvino_model\.bin is damaged"):
        check(place, told, FILES[2])


def test_another_text_is_damage(folder):
    place, told = folder
    (place / FILES[2]).write_bytes(b"another\r\n")
    with pytest.raises(QuietformerError, match=r"openvino_model\.xml is damaged"):
        check(place, told, FILES[2])
