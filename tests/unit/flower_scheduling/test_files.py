"""Files are there as a whole, old or new, with the permissions that were asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from flower_scheduling import files
from flower_scheduling.files import write_whole


@pytest.mark.parametrize("durable", [True, False])
def test_content_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, durable: bool) -> None:
    file = tmp_path / "file"
    (tmp_path / ".file.tmp").write_bytes(b"of a process that was killed")
    for data in (b"old", "neu: \N{LATIN SMALL LETTER U WITH DIAERESIS}"):
        write_whole(file, data, durable=durable)
        assert file.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert list(tmp_path.iterdir()) == [file]


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    (tmp_path / ".key.tmp").touch(mode=0o666)
    write_whole(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_content(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old")

    def full(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(type(error)) as caught:
        write_whole(file, b"new")
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (28, str(file))
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_a_reader_has_open_is_replaced_when_windows_lets_go_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, refused = os.replace, [PermissionError(13, "in use")] * 3

    def refuse_thrice(source: Path, target: Path) -> None:
        if refused:
            raise refused.pop()
        replace(source, target)

    monkeypatch.setattr(files, "_IS_WINDOWS", True)
    monkeypatch.setattr(os, "replace", refuse_thrice)
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    refused += [PermissionError(13, "in use")] * 9
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "file", "newer")
    assert (tmp_path / "file").read_text() == "new"
