"""Run the app on Flower's own runtime: every Flower command line that we use is in this module.

Flower's flags moved between minor versions; what is here was read in flwr 1.42.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import tomli_w
from cryptography import x509

from flower_scheduling.client.wire.credentials import load_certificate, server_credentials
from flower_scheduling.errors import ConfigError, SuperLinkError
from flower_scheduling.strategies.flower import LOGGER

from ..app import prepare_run
from ..page.process import page_process
from ..runs.directory import ensure_empty
from ..settings.fleet import FleetConfig
from ..settings.run import ServerConfig
from ..transport.sockets import FREE_PORT
from .signals import stoppable

__all__ = ["SuperLink", "SuperLinkError", "run_superlink", "supernode_command", "write_app"]

STATE_FOLDER: Final = "superlink"
"""Folder of the run directory with the SuperLink's database, log and the submitted app."""
_PROJECT: Final = "flower-client-scheduling"
_PUBLISHER: Final = "client-scheduling"
_IMPORT_NAME: Final = "flower_scheduling"
_PACKAGES: Final = ("client", "server", "strategies")
_CONNECTION: Final = "here"
"""Name of our SuperLink in the configuration of Flower's command line."""
_MARK: Final = "FLOWER_SCHEDULING_SUPERLINK"
"""Environment variable by which the SuperLink's descendants are known."""
_SERVER_APP: Final = "flwr-serverapp"
"""Program in which the SuperLink's executor runs a ServerApp."""
_PR_SET_PDEATHSIG: Final = 1  # of Linux
_HEALTHY_S: Final = 90.0
_PROBE_S: Final = 0.2
_COMMAND_S: Final = 120.0
_STOP_S: Final = 20.0
_KILL_S: Final = 8.0

_UNSUPPORTED: Final = {
    "app": "use `flwr run` in its folder",
    "metrics": "see its own log",
    "deny-list": "SuperNodes have no names before they are asked",
    "max-clients": "it takes all SuperNodes",
    "max-message-mb": "it has its own limit",
}
"""Settings of our streams, and why they are of no use here."""

Values = Mapping[str, int | float | bool | str]


def run_superlink(
    config: FleetConfig, on_line: Callable[[str], None] | None = None
) -> dict[str, Any] | None:
    """Start a SuperLink, run our app on it once, and stop it all.

    The SuperLink keeps its state in an SQLite file below the run directory and installs nothing.
    Clients are stock SuperNodes; the app's bundle brings them our code.

    Parameters
    ----------
    config : FleetConfig
        Settings. ``address`` is where SuperNodes connect; ``tls`` a folder as ``flower-certs``
        makes it; ``run_dir`` must be given and not exist.
    on_line : callable, optional
        Takes each line of the ServerApp's log; by default they go to standard error.

    Returns
    -------
    dict or None
        The run in numbers, as in ``summary.json``.

    Raises
    ------
    ConfigError, ClientConfigError
        If a setting or a file is wrong, or the address cannot be had; nothing is left behind.
    SuperLinkError
        If Flower's programs are missing, the SuperLink does not start or ends, or the app fails.
    KeyboardInterrupt
        If stopped by SIGINT or SIGTERM, after everything was written and stopped.
    """
    _refuse_unsupported(config)
    prepare_run(config.server_config())
    run_dir = Path(config.run_dir).resolve()
    ensure_empty(run_dir)
    run_config = config.server_config().to_mapping() | {"run-dir": str(run_dir)}
    # The ServerApp creates the run directory; until all has ended, the state lies beside it.
    state = run_dir.with_name(f".{run_dir.name}-{STATE_FOLDER}")
    ensure_empty(state)
    superlink = SuperLink(state, config.address, Path(config.tls) if config.tls else None)
    with stoppable():
        try:
            with superlink, page_process(run_dir, config.page):
                LOGGER.info("on each device: %s", superlink.supernode_hint())
                run_id = superlink.submit(write_app(state / "app"), run_config)
                superlink.follow(run_id, on_line or _to_stderr)
        except SuperLinkError as error:
            raise SuperLinkError(f"{error}; see {run_dir / STATE_FOLDER}") from None
        finally:
            _keep(state, run_dir)
    summary = run_dir / "summary.json"
    numbers: dict[str, Any] | None = None
    if summary.exists():
        numbers = json.loads(summary.read_text(encoding="utf-8"))
    return numbers


class SuperLink:
    """A SuperLink that lives as long as a ``with`` block.

    Parameters
    ----------
    folder : Path
        Folder to create, for the database, the log and Flower's own files.
    address : str
        Where SuperNodes and commands connect, HOST:PORT; port 0: any.
    tls : Path, optional
        Folder of ``ca.pem``, ``server.pem`` and ``server.key``; none: no encryption.

    Raises
    ------
    ConfigError, ClientConfigError
        If the address cannot be had, or a certificate is missing or does not fit.
    SuperLinkError
        If Flower is not installed.
    """

    def __init__(self, folder: Path, address: str, tls: Path | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        self._port = _free_port(address, self._host, int(port))
        self._local = _local_host(self._host)
        self._tls = tls.resolve() if tls else None
        if self._tls is not None:
            server_credentials(self._tls)  # explains what is missing or does not match
            _require_host(self._tls, self._local)
        self._folder = folder.resolve()
        self._superlink, self._flwr = _find("flower-superlink"), _find("flwr")
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where SuperNodes on this machine connect, HOST:PORT."""
        return _join(self._local, self._port)

    @property
    def log_file(self) -> Path:
        """What the SuperLink and the ServerApp print."""
        return self._folder / "superlink.log"

    def __enter__(self) -> Self:
        """Start, and wait until healthy."""
        self._folder.mkdir(parents=True)
        try:
            self._start()
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def submit(self, app: Path, run_config: Values) -> int:
        """Submit a Flower app; return the number of its run.

        Parameters
        ----------
        app : Path
            Folder with a ``pyproject.toml`` that has ``[tool.flwr.app]``.
        run_config : mapping
            Overrides; every key must be in the app's own configuration.

        Raises
        ------
        SuperLinkError
            If Flower refuses it.
        """
        overrides = self._folder / "run-config.toml"
        overrides.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
        options = ["--run-config", str(overrides)] if run_config else []
        answer = self._ask("run", str(app), _CONNECTION, *options)
        return int(answer["run-id"])

    def follow(self, run_id: int, on_line: Callable[[str], None]) -> None:
        """Pass on the log of a run until it ends.

        Raises
        ------
        SuperLinkError
            If the app fails or is stopped, or the SuperLink ends.
        """
        while True:
            command = [self._flwr, "log", str(run_id), _CONNECTION, "--stream"]
            process = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    on_line(line.rstrip("\n"))
            finally:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            status, details = self.status(run_id)
            if status == "finished:completed":
                return
            if status.startswith("finished"):
                raise SuperLinkError(f"the app failed ({status}): {details}")
            time.sleep(_PROBE_S)  # the stream broke, the run goes on

    def status(self, run_id: int) -> tuple[str, str]:
        """Return status and details of a run, e.g. ``finished:completed``.

        Raises
        ------
        SuperLinkError
            If the SuperLink does not answer.
        """
        answer = self._ask("ls", _CONNECTION, "--run-id", str(run_id))
        (run,) = answer["runs"]
        return str(run["status"]), str(run["status-details"])

    def stop(self) -> None:
        """End the SuperLink and everything that it started, and wait for them."""
        process, self._process = self._process, None
        if process is None:
            return
        # The ServerApp first: it writes its summary on the way out, but only once its last words
        # were taken, and Flower ends it after 5 s in any case (flwr 1.42).
        for pid in _marked(self._mark, _SERVER_APP):
            _signal(pid, signal.SIGTERM)
        self._wait_for_descendants(_KILL_S, _SERVER_APP)
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        # Flower gives its executor a session of its own, out of reach of the group; executor and
        # ServerApp notice that their parent is gone, but a ServerApp may take its time.
        for patience_s, signum in ((_KILL_S, signal.SIGTERM), (_KILL_S, signal.SIGKILL)):
            if self._wait_for_descendants(patience_s):
                return
            for pid in _marked(self._mark):
                _signal(pid, signum)
        self._wait_for_descendants(_KILL_S)

    def supernode_hint(self) -> str:
        """Return the command that starts a SuperNode, as people type it."""
        everywhere = self._host != self._local
        command = supernode_command(
            _join(socket.gethostname(), self._port) if everywhere else self.address,
            node_config={},
            root_certificates=Path("ca.pem") if self._tls else None,
        )
        command[0], command[-1] = Path(command[0]).name, "'partition-id=I num-partitions=OF'"
        return " ".join(command)

    def _start(self) -> None:
        command = [self._superlink, "--host", self._host, "--port", str(self._port)]
        if self._tls is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-certfile", str(self._tls / "server.pem")]
            command += ["--ssl-keyfile", str(self._tls / "server.key")]
            command += ["--ssl-ca-certfile", str(self._tls / "ca.pem")]
        command += ["--database", str(self._folder / "state.db")]
        command += ["--isolation", "subprocess", "--disable-runtime-dependency-installation"]
        connection: dict[str, str | bool] = {"address": self.address}
        if self._tls is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(self._tls / "ca.pem")
        home = self._folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": _CONNECTION, _CONNECTION: connection}}),
            encoding="utf-8",
        )
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _environment(self) -> dict[str, str]:
        """Return the environment of Flower's programs."""
        environment = dict(os.environ)
        # Flower starts its other programs by name, also where the environment is not activated.
        folders = [str(Path(self._superlink).parent), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(folders)
        environment["FLWR_HOME"] = str(self._folder / "flower")  # the user's own stays untouched
        environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
        environment.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        environment["PYTHONUNBUFFERED"] = "1"  # log lines when they come, not by the block
        for name in ("NO_PROXY", "no_proxy"):  # a proxy does not know our loopback
            hosts = [environment.get(name, ""), self._local]
            environment[name] = ",".join(filter(None, hosts))
        environment[_MARK] = self._mark
        return environment

    def _wait_until_healthy(self) -> None:
        """Probe until the SuperLink answers, within a bound."""
        assert self._process is not None
        verify: ssl.SSLContext | bool = False
        scheme = "http"
        if self._tls is not None:
            verify = ssl.create_default_context(cafile=str(self._tls / "ca.pem"))
            scheme = "https"
        deadline = time.monotonic() + _HEALTHY_S
        with httpx.Client(verify=verify, trust_env=False, timeout=2.0) as client:
            while True:
                if (code := self._process.poll()) is not None:
                    raise SuperLinkError(
                        f"the SuperLink ended with exit code {code}: {self._last_line()}"
                    )
                try:
                    if client.get(f"{scheme}://{self.address}/health").is_success:
                        return
                except httpx.HTTPError:
                    pass
                if time.monotonic() > deadline:
                    raise SuperLinkError(f"the SuperLink was not healthy after {_HEALTHY_S:.0f} s")
                time.sleep(_PROBE_S)

    def _last_line(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def _ask(self, *arguments: str) -> dict[str, Any]:
        """Run one of Flower's commands that answers in JSON."""
        if self._process is None or self._process.poll() is not None:
            raise SuperLinkError("the SuperLink has ended")
        try:
            done = subprocess.run(
                [self._flwr, *arguments, "--format", "json"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,  # Flower asks questions at a terminal
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMMAND_S,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SuperLinkError(
                f"flwr {arguments[0]} did not end within {_COMMAND_S:.0f} s"
            ) from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"error-message": (done.stderr or done.stdout).strip() or "no answer"}
        if not answer.get("success"):
            # What Flower said on its way comes before the error.
            lines = str(answer.get("error-message", "")).strip().splitlines() or ["no answer"]
            raise SuperLinkError(f"flwr {arguments[0]} failed: {lines[-1].strip()}")
        return answer

    def _wait_for_descendants(self, patience_s: float, program: str = "") -> bool:
        deadline = time.monotonic() + patience_s
        while _marked(self._mark, program):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


def supernode_command(
    superlink: str,
    *,
    node_config: Mapping[str, int | str],
    port: int | None = None,
    root_certificates: Path | None = None,
) -> list[str]:
    """Return the command line of a stock SuperNode.

    Parameters
    ----------
    superlink : str
        Address of the SuperLink, HOST:PORT.
    node_config : mapping
        What the ClientApp finds in ``context.node_config``.
    port : int, optional
        Port of its runtime API; SuperNodes on one host need one each.
    root_certificates : Path, optional
        The authority's certificate; none: no encryption.
    """
    try:
        program = _find("flower-supernode")
    except SuperLinkError:
        program = "flower-supernode"  # it runs elsewhere
    command = [program, "--superlink", superlink]
    if root_certificates is None:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", str(root_certificates)]
    if port is not None:
        command += ["--port", str(port)]
    text = " ".join(
        f"{key}={value}" if isinstance(value, int) else f'{key}="{value}"'
        for key, value in node_config.items()
    )
    return [*command, "--node-config", text]


def write_app(folder: Path) -> Path:
    """Write our packages as a Flower app, wherever they are installed; return its folder.

    A wheel carries neither the project file nor the folder that ``flwr run`` wants. With the code
    in the bundle, SuperNodes run what the server runs, installed there or not.
    """
    folder.mkdir(parents=True)
    ours = folder / _IMPORT_NAME
    ours.mkdir()
    for file in _source(_IMPORT_NAME).glob("*.py"):
        shutil.copyfile(file, ours / file.name)
    for package in _PACKAGES:
        source = _source(f"{_IMPORT_NAME}.{package}")
        for file in sorted(source.rglob("*.py")):
            target = ours / package / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    version, requires = _metadata()
    project = {
        "project": {
            "name": _PROJECT,
            "version": version,
            "description": "Bandit client scheduling for Flower",
            "license": "Apache-2.0",
            "dependencies": requires,
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": _PUBLISHER,
                    "fab-include": [f"/{_IMPORT_NAME}/**/*.py"],
                    "components": {
                        "serverapp": "flower_scheduling.server.app:app",
                        "clientapp": "flower_scheduling.client.app:app",
                    },
                    "config": dict(ServerConfig().to_mapping()),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8")
    return folder


def _source(package: str) -> Path:
    """Return the folder of a package of ours."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _metadata() -> tuple[str, list[str]]:
    """Return our version and requirements; a checkout that is not installed has none."""
    try:
        found = importlib.metadata.metadata(_PROJECT)
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0", [f"flwr=={importlib.metadata.version('flwr')}"]
    requires = importlib.metadata.requires(_PROJECT) or []
    return found["Version"], [text for text in requires if "extra ==" not in text]


def _refuse_unsupported(config: FleetConfig) -> None:
    if not config.run_dir:
        raise ConfigError("run-dir", "", "must be a folder, in which the SuperLink keeps its state")
    for key, instead in _UNSUPPORTED.items():
        field = FleetConfig.settings()[key]
        if (value := getattr(config, field.name)) != field.default:
            raise ConfigError(key, value, f"has no effect on the SuperLink runtime: {instead}")


def _keep(state: Path, run_dir: Path) -> None:
    """Move the state into the run directory; there is none if the app did not come that far."""
    if state.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        state.rename(run_dir / STATE_FOLDER)


def _find(program: str) -> str:
    """Return the path of one of Flower's programs: beside our interpreter, else on the path."""
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    found = shutil.which(program, path=os.pathsep.join(folders))
    if found is None:
        raise SuperLinkError(f"{program} is missing: install flwr, or put it on the PATH")
    return found


def _free_port(address: str, host: str, port: int) -> int:
    """Return the port if it can be had; for port 0 one that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                "address",
                address,
                f"must be host:port of this machine, {FREE_PORT} ({error.strerror})",
            ) from None
        return int(probe.getsockname()[1])


def _local_host(host: str) -> str:
    """Return where a server that listens on ``host`` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _require_host(tls: Path, host: str) -> None:
    """Refuse a certificate under whose names Flower's own programs do not find the SuperLink."""
    certificate = load_certificate(tls / "server.pem")
    names: Sequence[object] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        pass
    else:
        addresses = extension.value.get_values_for_type(x509.IPAddress)
        names = [*extension.value.get_values_for_type(x509.DNSName), *addresses]
    try:
        wanted: object = ipaddress.ip_address(host)
    except ValueError:
        wanted = host
    if wanted not in names:
        raise ConfigError(
            "tls",
            str(tls),
            f"must be a server certificate that names {host} (flower-certs --host {host})",
        )


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent was killed; called in a new child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _marked(mark: str, program: str = "") -> list[int]:
    """Return the processes whose environment carries the mark; none where there is no /proc."""
    needle = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes() and (
                program.encode() in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def _signal(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _signal_group(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signum)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
