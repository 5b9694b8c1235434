"""Flags of the client: slots, variables of the environment, addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_scheduling.client.cli import main as client_main
from flower_scheduling.client.slots import take_slot
from flower_scheduling.errors import ClientConfigError

SHARE = ["--server", "127.0.0.1:1", "--partition-id", "0", "--num-partitions", "1"]


def test_clients_that_start_alike_get_numbers(tmp_path: Path) -> None:
    first, second = take_slot(tmp_path, 2), take_slot(tmp_path, 2)
    assert (first[0], second[0]) == (0, 1)
    with pytest.raises(ClientConfigError, match="all 2 shares"):
        take_slot(tmp_path, 2)
    first[1].release()
    assert take_slot(tmp_path, 2)[0] == 0


@pytest.mark.parametrize("more", ["", "--name me --num-partitions 2", "--partition-id 1"])
def test_slots_give_name_and_share(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client_main(["--slots", str(tmp_path), *more.split()]) == 2
    assert "needs --num-partitions" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/proc", "/etc/passwd"])
def test_slots_that_cannot_be_written_are_named(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client_main(["--slots", folder, "--num-partitions", "1"]) == 2
    assert "must be a folder that can be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("FLOWER_CLIENT_DISTANCE", " (did you mean FLOWER_CLIENT_DISTANCE_M?)"),
        ("FLOWER_CLIENT_VERSION", ""),
    ],
)
@pytest.mark.parametrize("words", [SHARE, ["health"]])
def test_a_variable_that_is_no_flag_is_refused(
    variable: str,
    hint: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, "1")
    assert client_main(words) == 2
    line = f"error: environment = '{variable}': is set, and no flag of this program{hint}"
    assert capsys.readouterr().err.startswith(line)


@pytest.mark.parametrize("address", ["http://ap:9092", "ap/x:9092", "me@ap:1", "a b:1", "[ap]:1"])
def test_an_address_is_host_and_port(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--insecure", *SHARE[2:]], ["health"]):
        assert client_main(["--server", address, *words]) == 2
        assert "must be HOST:PORT" in capsys.readouterr().err


def test_a_data_folder_that_is_empty_and_cannot_be_written_ends_the_client_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "data"
    place.write_text("a file where the folder should be")
    assert client_main([*SHARE, "--data-dir", str(place)]) == 1
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "error: " in text)
    assert line.startswith(f"error: cannot write data to {place}")


def test_a_data_set_that_is_named_is_loaded_before_the_client_connects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "MNIST").write_text("a file where the folder should be")
    assert client_main([*SHARE, "--data-dir", str(tmp_path), "--dataset", "mnist"]) == 1
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "error: " in text)
    assert line.startswith(f"error: cannot write MNIST to {tmp_path}")
    assert client_main([*SHARE, "--dataset", "mnits"]) == 2
    assert "did you mean mnist?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--node-config", "partition-id=1"], "partition-id is set by --partition-id"),
        (["--node-config", "name='x'"], "name is set by --name"),
        (["--node-config", "name=x"], "must be KEY=VALUE pairs"),
        (["--node-config", "link='fm'"], "link = 'fm': must be rayleigh"),
        (["--node-config", "distance-m=80"], "needs link"),
    ],
)
def test_a_node_config_that_does_not_fit_is_refused(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client_main([*SHARE, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fault in line


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("partition-id='x' num-partitions=2", "partition-id = 'x': must be a whole number"),
        ("partition-id=2 num-partitions=2", "must be below num-partitions = 2"),
        ("partition-id=0", "--partition-id and --num-partitions are missing"),
    ],
)
def test_a_node_config_gives_what_flags_give(
    text: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWER_CLIENT_NODE_CONFIG", text)
    assert client_main([]) == 2
    assert fault in capsys.readouterr().err


def test_a_client_that_begins_anew_keeps_its_number(tmp_path: Path) -> None:
    assert take_slot(tmp_path, 3, first=2)[0] == 2
    number, lock = take_slot(tmp_path, 3, first=9)  # of a run with more of them
    assert number == 0
    lock.release()


def test_a_mistyped_flag_is_answered_with_the_one_most_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert client_main(["--nam", "x"]) == 2
    assert capsys.readouterr().err == "error: No such option '--nam'. (did you mean --name?)\n"
