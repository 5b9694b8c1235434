"""A fleet's server: the id of its run at both ends, and the settings of another app."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from apps import echo_app
from waiting import PATIENCE_S, until

from flower_scheduling.client.stream import StreamClient
from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runtimes.fleet_server import run_fleet
from flower_scheduling.server.runtimes.other_app import app_config
from flower_scheduling.server.settings.fleet import FleetConfig

PYPROJECT = """
[tool.flwr.app.config]
num-server-rounds = 3
learning-rate = 0.1
[tool.flwr.app.config.model]
name = "small"
"""


@pytest.mark.parametrize("app", ["", "own:app"])
@pytest.mark.parametrize("which", ["below-a-file", "a-file", "full", "read-only", "/proc/run"])
def test_a_run_directory_that_cannot_be_is_refused_before_the_server_listens(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, which: str, app: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from flwr.serverapp import ServerApp\napp = ServerApp()\n")
    (tmp_path / "a-file").write_text("something")
    for name in ("full", "read-only"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "config.toml").write_text("")
    (tmp_path / "read-only").chmod(0o500)
    if which in ("read-only", "/proc/run") and os.geteuid() == 0:  # who may write everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    run_dir = {"below-a-file": "a-file/run", "read-only": "read-only/a/b"}.get(which, which)
    config = FleetConfig(address="127.0.0.1:0", run_dir=run_dir, app=app)
    with pytest.raises(ConfigError, match=r"run-dir = .*: must be a folder that"):
        run_fleet(config)
    assert not [line for line in said if "listening" in line]
    left = {path.name for path in tmp_path.glob("*/*") if path.parent.name != "__pycache__"}
    assert left == {"config.toml"}, "nothing is created to find out"


@pytest.mark.usefixtures("mnist")
def test_a_run_has_an_id_of_its_own_that_it_keeps_when_it_goes_on(
    tmp_path: Path, said: list[str]
) -> None:
    seen: list[set[int]] = []

    def follow() -> None:
        found = until(lambda: re.search(r"listening on (127\.0\.0\.1:\d+)", " ".join(said)))
        app = echo_app(lambda message, context: seen[-1].add(context.run_id))
        StreamClient(found[1], "a", app, stay=False).run()

    def run(name: str, rounds: int, *, resume: bool = False) -> int:
        said.clear()
        seen.append(set())
        client = threading.Thread(target=follow)
        client.start()
        config = FleetConfig(
            address="127.0.0.1:0",
            num_selected=1,
            rounds=rounds,
            run_dir=str(tmp_path / name),
            eval_every=1000,
        )
        run_fleet(config, resume=resume)
        client.join(PATIENCE_S)
        assert not client.is_alive()
        (run_id,) = seen[-1]
        return run_id

    first = run("first", 1)
    assert run("first", 2, resume=True) == first
    assert run("second", 1) != first
    (tmp_path / "first" / "run-id").unlink()  # as a run of an earlier version
    later = run("first", 3, resume=True)
    assert later != first
    assert run("first", 4, resume=True) == later


def test_settings_of_an_app_are_those_of_its_file_and_those_given(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    own = {"num-server-rounds": 3, "learning-rate": 0.1, "model.name": "small"}
    assert app_config(tmp_path) == own
    given = "num-server-rounds=5 model.name='two words'"
    changed = {**own, "num-server-rounds": 5, "model.name": "two words"}
    assert app_config(tmp_path, given) == changed
    (tmp_path / "mine.toml").write_text("num-server-rounds = 5\n[model]\nname = 'two words'\n")
    assert app_config(tmp_path, str(tmp_path / "mine.toml")) == changed
    with pytest.raises(ConfigError, match=r"num-rounds is not in .*mean num-server-rounds\?"):
        app_config(tmp_path, "num-rounds=5")
    code, elsewhere = tmp_path / "my_app" / "server_app.py", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert app_config(elsewhere, code=code) == own, "that of the app's own folder"
    (elsewhere / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert app_config(elsewhere, code=code) == own, "not that of another project"
    (tmp_path / "pyproject.toml").unlink()
    assert app_config(tmp_path) == {}
    with pytest.raises(ConfigError, match="num-server-rounds is not in"):
        app_config(tmp_path, "num-server-rounds=5")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[tool.flwr.app.config\n", r"Expected ']'.*line 1"),
        ("[tool.flwr.app.config]\nlayers = [1, 2]\n", "layers needs to be of type"),
        ("tool = 3\n", "'int' object"),
    ],
)
def test_a_broken_file_of_an_app_is_named_with_its_fault(
    text: str, fault: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=fault) as caught:
        app_config(tmp_path)
    assert str(caught.value).startswith(f"pyproject.toml = '{tmp_path}/pyproject.toml': must be")
