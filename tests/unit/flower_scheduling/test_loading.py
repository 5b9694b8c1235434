"""Apps that the user names are found in the current folder, and errors are one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.loading import load_object


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


@pytest.mark.parametrize("path", ["nothing_here:app", "nothing_here.server_app:app"])
def test_a_module_that_is_not_there_is_looked_for_in_a_folder(path: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_object(path, str, "app")
    text = "ModuleNotFoundError: No module named 'nothing_here'; the current folder is"
    assert str(caught.value) == f"app = '{path}': cannot be imported: {text} {folder}"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("", "no_colon", "must be MODULE:ATTRIBUTE"),
        ("", ":app", "must be MODULE:ATTRIBUTE"),
        ("", "my_module:", "must be MODULE:ATTRIBUTE"),
        ("", "nothing_here:app", "No module named 'nothing_here'"),
        ("", "empty_module:app", "empty_module has no app"),
        ("app = 7", "seven_module:app", "must be a str, not a int"),
        ("def f(:", "bad_module:app", "SyntaxError: invalid syntax (bad_module.py, line 1)"),
        (
            "raise OSError('a\\nb')",
            "raising_module:app",
            "OSError: a b (raising_module.py, line 1)",
        ),
        ("\nimport json\njson.loads('')", "reading_module:app", "(reading_module.py, line 3)"),
        (
            "import os\nos.nothing",
            "lacking_module:app",
            "has no attribute 'nothing' (lacking_module",
        ),
        (
            "import sys\nsys.exit('no GPU')",
            "leaving_module:app",
            "SystemExit: no GPU (leaving_module",
        ),
        (
            "import nothing_there",
            "needy_module:app",
            "No module named 'nothing_there' (needy_module",
        ),
        (
            "from flower_scheduling.strategies import parse_options\nparse_options('x')",
            "scheduling_module:app",
            "(scheduling_module.py, line 2)",
        ),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    folder: Path, text: str, path: str, message: str
) -> None:
    module = path.partition(":")[0]
    if module and module != "nothing_here":
        (folder / f"{module}.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_object(path, str, "app")
    assert caught.value.key == "app"
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["client", "server", "strategies", "simulation"])
def test_module_in_the_current_folder_comes_before_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("app = 'mine'\n")
    code = (
        "import sys; sys.path = [p for p in sys.path if p]; "  # as of an installed command
        "from flower_scheduling.loading import load_object; "
        f"import flower_scheduling.client, flower_scheduling.server; "
        f"print(load_object('{name}:app', str, 'app'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "mine\n"
