"""Only regular files are opened; anything else gives a one-line error, without waiting and without reading it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from nest_ssl.apps.datatools.audio_folder import Table
from nest_ssl.apps.datatools.check import check_manifests
from nest_ssl.apps.datatools.check_lines import Rules
from nest_ssl.apps.datatools.stats import describe
from nest_ssl.apps.datatools.tar_audio import pack
from nest_ssl.apps.features.encoder import Layers
from nest_ssl.data.tarred.members import check_shard
from nest_ssl.errors import NestError
from nest_ssl.regular_file import check_regular, is_windows_device, open_regular, why_not_regular


def _reason(path: Path | str) -> str | None:
    """Return the reason of the refusal, which must be the same for both functions."""
    try:
        with open_regular(path):
            said = None
    except OSError as error:
        said = error.strerror
    assert why_not_regular(path) == said
    return said


def test_a_file_is_opened_also_through_a_link(tmp_path: Path) -> None:
    file = tmp_path / "语音 1.json"
    file.write_bytes(b"content\r\n")
    with open_regular(file) as opened:
        assert opened.read() == b"content\r\n"
    assert check_regular(str(file)).st_size == 9
    assert why_not_regular(file) is None


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_are_followed_and_a_dangling_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("gone")
    (tmp_path / "link to a folder").symlink_to(".")
    assert _reason(tmp_path / "link") is None
    assert _reason(tmp_path / "dangling") == "no such file (a link to 'gone', where there is none)"
    assert _reason(tmp_path / "link to a folder") == "is a folder"


def test_a_missing_file_and_a_folder_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert _reason(tmp_path) == "is a folder"
    assert _reason(tmp_path / "gone") == "no such file"
    assert _reason(tmp_path / "file" / "below a file") == "no such file"
    assert _reason("") == "no such file"
    assert _reason(f"{tmp_path}/a\0b") == "is not a path: it holds a NUL character"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    assert _reason(pipe) == "is not a regular file (a named pipe)"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_that_takes_the_place_of_a_file_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    monkeypatch.setattr("nest_ssl.regular_file.check_regular", lambda path: None)  # as if it were called too early
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="named pipe"):
        open_regular(pipe)
    assert os.open(os.devnull, os.O_RDONLY) == descriptor  # it was closed: its number is free again
    os.close(descriptor)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices as files here")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_refused(device: str) -> None:
    assert _reason(device) == "is not a regular file (a device)"


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no sockets as files here")
def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths of sockets must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert _reason("s") == "is not a regular file (a socket)"


@pytest.mark.parametrize(
    "name",
    ["NUL", "con", "CON.wav", r"C:\data\com1.json", "data/lpt9 .txt", "aux:", r"\\.\pipe\x", "//./COM10", "nul.tar.gz"],
)
def test_the_names_of_windows_devices_are_known(name: str) -> None:
    assert is_windows_device(name)


@pytest.mark.parametrize(
    "name", ["null.wav", "console", "com", "com10.wav", "a/con/b.wav", r"\\?\C:\x.wav", "xcon.nul"]
)
def test_other_names_are_no_windows_devices(name: str) -> None:
    assert not is_windows_device(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_no_input_of_the_data_tools_waits_for_a_named_pipe(tmp_path: Path) -> None:
    pipe, audio = tmp_path / "pipe.wav", str(tmp_path / "pipe.wav")
    os.mkfifo(pipe)
    manifest = tmp_path / "m.json"
    manifest.write_text(json.dumps({"audio_filepath": audio, "duration": 1.0}), encoding="utf-8")
    (problem,) = check_manifests([str(manifest)], Rules()).examples["unreadable"]
    assert problem.message.startswith(f"{audio}: is not a regular file (a named pipe)")
    for refused in (
        lambda: check_manifests([audio], Rules()),
        lambda: describe([audio], "manifest"),
        lambda: check_shard(audio, "key"),
        lambda: pack(audio, 0.0, None),
        lambda: Layers.mix(audio, last=2),
        lambda: Table(pipe),
    ):
        with pytest.raises(NestError, match=r"pipe\.wav"):
            refused()
