from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.cli.main import main
from flower_scheduling.server.cli.project.new import create_project

MODULES = ("client_app", "data", "model", "server_app")
OTHERS = {"pyproject.toml", "compose.yaml", "README.md", ".gitignore"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    create_project(tmp_path / "my-fleet")
    return tmp_path / "my-fleet"


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch):
    """Leave no module of the project behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def test_the_command_writes_the_files_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-fleet"]) == 0
    *written, last = capsys.readouterr().out.splitlines()
    names = {path.name for path in (tmp_path / "my-fleet").iterdir()}
    assert names == OTHERS | {f"{name}.py" for name in MODULES}
    assert {line.removeprefix("wrote my-fleet/") for line in written} == names
    assert last == "now: cd my-fleet and read README.md"


def test_each_file_says_what_to_change(project: Path) -> None:
    for path in project.iterdir():
        text = path.read_text()
        assert text.count("To change:") == 1, path.name
        assert text.index("To change:") < 300, path.name
        assert "@" not in text.replace("@app", ""), f"{path.name}: something was not filled in"
    server = (project / "server_app.py").read_text()
    assert server.count("ScheduledStrategy") == 3, "imported, mentioned and used"


@pytest.mark.parametrize(
    "name", ["My-Fleet", "my_fleet", "1fleet", "-fleet", "fleet-", "my fleet", "flotte-à-moi"]
)
def test_a_name_that_is_no_projects_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be such as my-fleet" in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my-fleet"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there and not empty"):
        create_project(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is there and not empty"):
        create_project(tmp_path / "file")
    (folder / "mine.txt").unlink()
    assert create_project(folder), "an empty folder serves"


def test_the_code_is_what_ruff_wants(project: Path) -> None:
    rules = ["--select", "E,F,W,I,B,UP,D1,SIM", "--line-length", "100", "--ignore", "D107"]
    known = ["data", "flower_scheduling", "model"]
    rules += ["--config", f"lint.isort.known-first-party = {known}"]
    for words in (["check", *rules], ["format", "--check", "--line-length", "100"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "--no-cache", str(project)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("forget")
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # flwr 1.42
def test_flower_itself_bundles_and_loads_the_app(project: Path, tmp_path: Path) -> None:
    bundle = build_fab_from_disk(project)
    folder = install_from_fab(bundle, tmp_path / "installed", skip_prompt=True)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    parts = app["components"]
    server = load_app(parts["serverapp"], RuntimeError, folder)
    assert isinstance(server, ServerApp)
    load = get_load_client_app_fn(parts["clientapp"], str(folder), multi_app=False)
    assert isinstance(load("", "", ""), ClientApp)


@pytest.mark.usefixtures("forget")
def test_its_data_are_drawn_by_a_seed_and_differ_from_client_to_client(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    data, model = (importlib.import_module(name) for name in ("data", "model"))
    first, again, other = (data.load_share(number) for number in (0, 0, 1))
    assert (first[0] == again[0]).all()
    assert not (first[0] == other[0]).all()
    assert int(first[1].bincount().argmax()) == 0
    assert int(other[1].bincount().argmax()) == 1
    assert model.evaluate(model.create_model(), *data.load_test())["accuracy"] < 0.6
