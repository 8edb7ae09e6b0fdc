"""Files of the command line are whole or not there."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_autobind.cli import output


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    output.write(out, ["one\n", "zwei ü\n"])
    assert out.read_bytes() == "one\nzwei ü\n".encode()
    assert mode(out) == 0o600
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    out.chmod(0o644)
    output.write(out, ["new"])
    assert out.read_text() == "new"
    assert mode(out) == 0o644


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, out = tmp_path / "link", tmp_path / "out"
    out.write_text("old")
    link.symlink_to(out)
    output.write(link, ["new"])
    assert link.is_symlink()
    assert out.read_text() == "new"


def test_what_fails_in_between_leaves_the_old_one(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "half of it"
        raise RuntimeError("no more")

    out = tmp_path / "out"
    out.write_text("old")
    with pytest.raises(RuntimeError, match="no more"):
        output.write(out, parts())
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        output.write(pipe, ["text"])
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        output.write(tmp_path / "none" / "out", ["text"])
    with pytest.raises(IsADirectoryError):
        output.write(tmp_path, ["text"])
