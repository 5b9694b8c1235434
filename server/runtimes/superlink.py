"""Flower's SuperLink: every Flower command line that we use is in this module.

Flower's flags moved between minor versions; what is here holds for flwr 1.39 to 1.42.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import tomli_w

from flower_scheduling._flwr import GRPC_FLEET
from flower_scheduling.client.wire.addresses import join_host_port, parse_address
from flower_scheduling.client.wire.credentials import (
    host_names,
    load_certificate,
    server_credentials,
)
from flower_scheduling.errors import ConfigError, SuperLinkError

from ..transport.sockets import unavailable
from .processes import MARK, end_group, end_marked, find_program, start_program

_CONNECTION: Final = "here"  # our SuperLink in the configuration of Flower's command line
_SERVER_APP: Final = "flwr-serverapp"  # program in which the executor runs a ServerApp
_HEALTHY_S: Final = 90.0
_PROBE_S: Final = 0.2
_COMMAND_S: Final = 120.0
_STOP_S: Final = 20.0
_KILL_S: Final = 8.0

Values = Mapping[str, int | float | bool | str]


class SuperLink:
    """A SuperLink that lives as long as a ``with`` block.

    Parameters
    ----------
    folder : Path
        Folder to create, for the database, the log and Flower's own files.
    address : str
        Where SuperNodes connect, HOST:PORT; port 0: any. Commands connect there too, and with
        flwr 1.39 to a port of this machine alone.
    tls : Path, optional
        Folder of ``ca.pem``, ``server.pem`` and ``server.key``; none: no encryption.
    options : sequence of str
        Further options of ``flower-superlink``; by default nothing is installed at run time.

    Raises
    ------
    ConfigError, ClientConfigError
        If the address cannot be had, or a certificate is missing or does not fit.
    SuperLinkError
        If Flower is not installed.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        tls: Path | None = None,
        options: Sequence[str] = ("--disable-runtime-dependency-installation",),
    ) -> None:
        if os.name == "nt":
            raise ConfigError("runtime", "superlink", "is for Linux and macOS: use stream")
        self._host, port = parse_address("address", address, any_port=True)
        self._port = _free_port(address, self._host, port)
        self._local = _local_host(self._host)
        self._http_host, self._http_port = self._host, self._port
        if GRPC_FLEET:
            self._http_host = self._local
            self._http_port = _free_port(address, self._local, 0)
        self._tls = tls.resolve() if tls else None
        if self._tls is not None:
            server_credentials(self._tls)  # explains what is missing or does not match
            _require_host(self._tls, self._local)
        self._folder = folder.resolve()
        self._options = options
        self._superlink, self._flwr = find_program("flower-superlink"), find_program("flwr")
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where SuperNodes on this machine connect, HOST:PORT."""
        return join_host_port(self._local, self._port)

    @property
    def _http_address(self) -> str:
        """Where Flower's commands on this machine connect, HOST:PORT."""
        return join_host_port(self._local, self._http_port)

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

    def submit(self, app: Path, run_config: Values, options: Sequence[str] = ()) -> int:
        """Submit a Flower app; return the number of its run.

        Parameters
        ----------
        app : Path
            Folder with a ``pyproject.toml`` that has ``[tool.flwr.app]``.
        run_config : mapping
            Overrides; every key must be in the app's own configuration.
        options : sequence of str
            Further options of ``flwr run``.

        Raises
        ------
        SuperLinkError
            If Flower refuses it.
        """
        overrides = self._folder / "run-config.toml"
        overrides.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
        chosen = ["--run-config", str(overrides)] if run_config else []
        answer = self._ask("run", str(app), _CONNECTION, *chosen, *options)
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
            process = start_program(command, self._environment(), subprocess.PIPE)
            assert process.stdout is not None
            with process.stdout as lines:
                try:
                    for line in lines:
                        on_line(line.decode(errors="replace").rstrip("\r\n"))
                finally:
                    process.kill()
                    process.wait()
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
        end_marked(self._mark, signal.SIGTERM, _KILL_S, program=_SERVER_APP)
        end_group(process, _STOP_S)
        # The executor and a ServerApp notice by themselves that their parent is gone; else they
        # are ended.
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            end_marked(self._mark, signum, _KILL_S)

    def supernode_hint(self) -> str:
        """Return the command that starts a SuperNode, as people type it."""
        everywhere = self._host != self._local
        command = supernode_command(
            join_host_port(socket.gethostname(), self._port) if everywhere else self.address,
            node_config={},
            root_certificates=Path("ca.pem") if self._tls else None,
        )
        command[0], command[-1] = Path(command[0]).name, "'partition-id=I num-partitions=OF'"
        return " ".join(command)

    def _start(self) -> None:
        certificates, connection = ["--insecure"], {"address": self._http_address, "insecure": True}
        if self._tls is not None:
            ca = str(self._tls / "ca.pem")
            certificates = ["--ssl-ca-certfile", ca]
            certificates += ["--ssl-certfile", str(self._tls / "server.pem")]
            certificates += ["--ssl-keyfile", str(self._tls / "server.key")]
            connection = {"address": self._http_address, "root-certificates": ca}
        home = self._folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": _CONNECTION, _CONNECTION: connection}}),
            encoding="utf-8",
        )
        command = [self._superlink, "--host", self._http_host, "--port", str(self._http_port)]
        if GRPC_FLEET:
            command += ["--fleet-api-address", join_host_port(self._host, self._port)]
        command += [*certificates, "--database", str(self._folder / "state.db")]
        command += ["--isolation", "subprocess", *self._options]
        with self.log_file.open("wb") as log:
            self._process = start_program(command, self._environment(), log)

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
        environment[MARK] = self._mark
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
                    if client.get(f"{scheme}://{self._http_address}/health").is_success:
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
            # Flower's other output comes before the error.
            lines = str(answer.get("error-message", "")).strip().splitlines() or ["no answer"]
            raise SuperLinkError(f"flwr {arguments[0]} failed: {lines[-1].strip()}")
        return answer


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
        program = find_program("flower-supernode")
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


def _free_port(address: str, host: str, port: int) -> int:
    """Return the port if it can be had; for port 0 one that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise unavailable("address", address, error) from None
        return int(probe.getsockname()[1])


def _local_host(host: str) -> str:
    """Return where a server that listens on ``host`` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _require_host(tls: Path, host: str) -> None:
    """Refuse a certificate under whose names Flower's own programs do not find the SuperLink."""
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))  # spelled as in host_names
    if host not in host_names(load_certificate(tls / "server.pem")):
        raise ConfigError(
            "tls",
            str(tls),
            f"must be a server certificate that names {host} (flower-certs --host {host})",
        )
