"""Flags of server and client: from the environment too, and what containers need of them."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import click
import pytest
from full_disk import leave_no_room

from flower_scheduling.client.cli import cli as client_cli
from flower_scheduling.client.cli import main as client_main
from flower_scheduling.environment import is_link_variable
from flower_scheduling.server.cli.main import cli as server_cli
from flower_scheduling.server.cli.main import main as server_main


def link_variables(name: str) -> dict[str, str]:
    """Return what Kubernetes sets for a service, and Docker for a link, of this name."""
    return {
        f"{name}_SERVICE_HOST": "10.96.7.2",
        f"{name}_SERVICE_PORT": "9092",
        f"{name}_SERVICE_PORT_GRPC": "9092",
        f"{name}_PORT": "tcp://10.96.7.2:9092",
        f"{name}_PORT_9092_TCP": "tcp://10.96.7.2:9092",
        f"{name}_PORT_9092_TCP_PROTO": "tcp",
        f"{name}_PORT_9092_TCP_PORT": "9092",
        f"{name}_PORT_9092_TCP_ADDR": "10.96.7.2",
        f"{name}_NAME": "/web/flower-server",
        f"{name}_ENV_PATH": "/usr/bin:/bin",
        f"{name}_ENV_MOTTO": "two\nlines",
    }


SHARE = ["--server", "127.0.0.1:1", "--partition-id", "0", "--num-partitions", "1"]


@pytest.mark.parametrize(
    ("prefix", "group"), [("FLOWER_CLIENT", client_cli), ("FLOWER_SERVER", server_cli)]
)
def test_every_flag_can_come_from_the_environment(
    prefix: str, group: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = click.Context(group, **group.context_settings)
    shared = {option.opts[0] for option in group.params}
    for command in (group, *group.commands.values()):
        context = click.Context(command, parent) if command is not group else parent
        for option in command.params:
            if option.name == "version":  # an action: it would replace the program
                continue
            if command is group or option.opts[0] in shared:
                variable = f"{prefix}_{option.opts[0].strip('-').replace('-', '_').upper()}"
                monkeypatch.setenv(variable, "here")
                found = option.value_from_envvar(context)
                assert found == (["here"] if option.multiple else "here"), variable  # type: ignore[attr-defined]


def test_a_status_that_nothing_answers_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["status", "--address", "127.0.0.1:1", "--timeout-s", "0.2"]) == 1
    assert "--address names another one" in capsys.readouterr().err


def test_a_subcommand_takes_the_address_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWER_CLIENT_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("FLOWER_SERVER_ADDRESS", "127.0.0.1:1")
    for main in (client_main, server_main):
        assert main(["health", "--timeout-s", "0.2"]) == 1
        assert "no flower-server answers at 127.0.0.1:1" in capsys.readouterr().err


def test_a_subcommand_takes_what_the_program_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWER_CLIENT_SERVER", "127.0.0.1:1")
    for words, asked in (
        ("--server 127.0.0.1:2 health", "127.0.0.1:2"),
        ("--server 127.0.0.1:2 health --server 127.0.0.1:3", "127.0.0.1:3"),
    ):
        assert client_main([*words.split(), "--timeout-s", "0.2"]) == 1
        assert f"no flower-server answers at {asked}" in capsys.readouterr().err
    assert client_main(["--tls", "/nowhere", "--name", "dev-9", "health"]) == 2
    assert "certificate /nowhere/dev-9.pem: No such file" in capsys.readouterr().err


def test_continue_resumes_what_is_there_and_begins_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(["--continue"]) == 2
    assert "needs --run-dir" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("somebody else's")
    arguments = ["--continue", "--run-dir", str(tmp_path / "run")]
    assert server_main(arguments) == 2
    assert "must be a folder that does not exist yet" in capsys.readouterr().err
    (tmp_path / "run" / "config.toml").write_text("rounds = 5\nbeta = 0.25\n")
    assert server_main([*arguments, "--beta", "0.5"]) == 2
    assert "the run has other settings: beta = 0.25, not 0.5" in capsys.readouterr().err
    (tmp_path / "run" / "config.toml").write_text('insecure = true\nmetrics = "127.0.0.1:1"\n')
    assert server_main([*arguments, "--address", "192.0.2.1:9092"]) == 2
    assert "or with --insecure" in capsys.readouterr().err, "what was taken back is taken back"
    (tmp_path / "run" / "config.toml").write_text("beta = 0.25\n")
    assert server_main(arguments) == 2
    assert "beta = 0.25, not 0.001" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()  # as a run that was killed before it noted its settings
    (tmp_path / "run" / ".lock").touch()
    taken = ["--address", "192.0.2.1:9092", "--insecure"]  # an address that is nobody's
    assert server_main([*arguments, *taken, "--beta", "0.5"]) == 2
    assert "address" in capsys.readouterr().err


def test_variables_that_nothing_is_meant_by_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWER_SERVER_RONDS", "5")
    assert server_main([]) == 2
    assert capsys.readouterr().err == (
        "error: environment = 'FLOWER_SERVER_RONDS': is set, and no flag of this program "
        "(did you mean FLOWER_SERVER_ROUNDS?)\n"
    )
    monkeypatch.delenv("FLOWER_SERVER_RONDS")
    monkeypatch.setenv("FLOWER_SERVER_VERSION", "1")
    assert server_main(["health", "--address", "127.0.0.1:1", "--timeout-s", "2"]) == 1, "no health"


@pytest.mark.parametrize("service", ["", "-metrics", "-page", "-address"])
def test_variables_of_kubernetes_and_docker_are_no_flags(
    service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for prefix, main, address in (
        ("FLOWER_SERVER", server_main, "--address"),
        ("FLOWER_CLIENT", client_main, "--server"),
    ):
        for name, value in link_variables(f"{prefix}{service}".upper().replace("-", "_")).items():
            monkeypatch.setenv(name, value)
        assert main(["health", address, "127.0.0.1:1", "--timeout-s", "0.2"]) == 1
        assert "no flower-server answers at 127.0.0.1:1" in capsys.readouterr().err


def test_the_name_of_a_link_is_no_clients_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "device")
    for given, name in (("/web/flower-client", "device"), ("dev-1", "dev-1")):
        monkeypatch.setenv("FLOWER_CLIENT_NAME", given)
        assert client_main(["--tls", str(tmp_path), *SHARE]) == 2
        assert f"certificate {tmp_path}/{name}.pem" in capsys.readouterr().err


def test_no_other_flag_can_be_set_by_kubernetes_or_docker() -> None:
    links = {"tcp://10.0.0.1:80", "10.0.0.1", "80", "/web/flower-server"}
    for prefix, group in (("FLOWER_CLIENT", client_cli), ("FLOWER_SERVER", server_cli)):
        names = {f"{prefix}_{(option.name or '').upper()}" for option in group.params}
        taken = {name for name in names for value in links if is_link_variable(prefix, name, value)}
        assert taken <= {"FLOWER_CLIENT_NAME"}


def test_flags_before_a_command_count(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--address", "127.0.0.1:1", "health", "--timeout-s", "2"],
        ["--address", "127.0.0.1:2", "status", "--address", "127.0.0.1:1", "--timeout-s", "2"],
    ):
        assert server_main(arguments) == 1
        assert "127.0.0.1:1:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("server", "--address ::1:9092"),
        ("server", "--metrics ::1:9092"),
        ("server", "--page ::1:9092"),
        ("server", "status --address ::1:9092"),
        ("server", "health --address ::1:9092"),
        ("client", "--server ::1:9092"),
        ("client", "health --server ::1:9092"),
    ],
)
def test_brackets_are_asked_for_at_every_end(
    program: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = {"server": server_main, "client": client_main}[program]
    assert main(words.split()) == 2
    key = "server" if program == "client" else words.split("--")[1].split()[0]
    line = f"error: {key} = '::1:9092': must be HOST:PORT (write [::1]:9092)\n"
    assert capsys.readouterr().err == line


def test_settings_of_an_app_come_from_anywhere_and_need_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "windy.py").write_text(
        "from flwr.serverapp import ServerApp\napp = ServerApp()\n"
        "@app.main()\ndef main(grid, context):\n    raise ValueError(str(context.run_config))\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\nrounds = 3\nplace = ''\n")
    app = ["--app", "windy:app", "--address", "127.0.0.1:0"]
    assert server_main(["--run-config", "rounds=5"]) == 2
    assert "has no effect without --app" in capsys.readouterr().err
    assert server_main([*app, "--run-config", "rounds=5", "--run-config", "place='a  b'"]) == 1
    assert "{'rounds': 5, 'place': 'a  b'}" in capsys.readouterr().err
    monkeypatch.setenv("FLOWER_SERVER_RUN_CONFIG", "round=5 place='a  b'")
    assert server_main(app) == 2
    assert "did you mean rounds?" in capsys.readouterr().err


_LOGGING_APP = """
from logging import INFO, WARNING
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from scripted_grid import ScriptedGrid
from flower_scheduling import ScheduledStrategy

app = ServerApp()


def client(message):
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


class Mine(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        log(INFO, "the app configures round %d", server_round)
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid, context):
    log(INFO, "the app begins")
    strategy = ScheduledStrategy(Mine(fraction_evaluate=0), num_selected=2, tau_max_s=5.0)
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    strategy.start(ScriptedGrid([client] * 2), arrays, num_rounds=2)
    FedAvg().configure_train(1, arrays, ConfigRecord(), Nodes())


class Nodes:
    def get_node_ids(self):
        return [1, 2]
"""


def test_lines_that_an_app_logs_are_shown_but_not_flowers_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.py").write_text(_LOGGING_APP)
    flower = logging.getLogger("flwr")
    before = list(flower.handlers)
    words = "--app talks:app --address 127.0.0.1:0 --run-dir run"
    assert server_main(words.split()) == 0
    lines = capsys.readouterr().err
    log = (tmp_path / "run" / "log.txt").read_text()
    assert lines.count("INFO the app begins\n") == 1
    for text in (lines, log):
        assert text.count("INFO the app configures round 2\n") == 1
        assert text.count("INFO [ROUND 2/2]") == 1
    assert "configure_train: Sampled" not in log
    assert lines.count("configure_train: Sampled") == 1, "of what is not scheduled all is kept"
    assert flower.handlers == before


def test_a_full_disk_that_may_be_full_costs_no_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "homeless.py").write_text(_LOGGING_APP)
    leave_no_room(monkeypatch, "model.safetensors", "summary.json")
    words = "--app homeless:app --address 127.0.0.1:0 --run-dir run --no-checkpoint-required"
    assert server_main(words.split()) == 1
    out, err = capsys.readouterr()
    assert out == "run\n"
    assert '"rounds": 2,' in err
    last = err.splitlines()[-1]
    assert last.startswith("error: could not be saved: the summary (")
    assert "the final model (" in last


def test_an_app_without_its_settings_is_told_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.py").write_text(
        "from flwr.serverapp import ServerApp\napp = ServerApp()\n"
        "@app.main()\ndef main(grid, context):\n    context.run_config['num-rounds']\n"
    )
    assert server_main(["--app", "bare:app", "--address", "127.0.0.1:0", "--run-dir", "run"]) == 1
    lines = capsys.readouterr().err
    where = f"no [tool.flwr.app.config] was found in {tmp_path}"
    assert f"INFO {where}: the run configuration is empty\n" in lines
    last = f"bare:app raised KeyError: 'num-rounds' ({where}, so the run configuration is empty)\n"
    assert lines.endswith(f"error: {last}")


def test_a_run_that_goes_on_in_another_folder_is_told_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != ""])
    begun, other = tmp_path / "begun", tmp_path / "other"
    begun.mkdir()
    other.mkdir()
    (begun / "roaming.py").write_text(_LOGGING_APP)
    monkeypatch.chdir(begun)
    run = ["--address", "127.0.0.1:0", "--run-dir", str(tmp_path / "run")]
    assert server_main(["--app", "roaming:app", *run]) == 0
    del sys.modules["roaming"]
    monkeypatch.chdir(other)
    capsys.readouterr()
    assert server_main(["--resume", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert line.endswith(f"the current folder is {other}, the run began in {begun}\n")
    assert "frozen" not in line
    config = tmp_path / "run" / "config.toml"
    noted = f'app-folder = "{begun}"\n'
    text = config.read_text()
    assert noted in text
    config.write_text(text.replace(noted, ""))  # as earlier versions wrote it
    assert server_main(["--resume", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.endswith(f"the current folder is {other}\n")
    monkeypatch.chdir(begun)
    assert server_main(["--resume", str(tmp_path / "run")]) == 0, "with nothing left to do"
