"""Server and clients of one fleet as real processes, and links between them that can be cut."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from paths import ROOT
from waiting import PATIENCE_S, until

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.server.runs.directory import written_rounds


class Fleet:
    """Processes of one fleet; every one is ended and waited for at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, module: str, arguments: str) -> subprocess.Popen[str]:
        """Start `module`: one of ours, without its first name, or of this folder."""
        if "." in module:
            module = f"flower_scheduling.{module}"
        code = f"import sys; from {module} import main; sys.exit(main())"
        folders = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, folders))
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments.split()],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def server(self, arguments: str) -> int:
        """Start a server; return its port."""
        process = self.start("server", "server.cli.main", f"--address 127.0.0.1:0 {arguments}")
        said = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
        found = until(lambda: said.search(self.log("server")) or self._fail_if_ended(process))
        assert found
        return int(found[1])

    def client(
        self,
        port: int,
        number: int,
        of: int,
        arguments: str = "",
        module: str = "client.cli",
    ) -> None:
        self.start(
            f"dev-{number}",
            module,
            f"--server 127.0.0.1:{port} --name dev-{number} --partition-id {number} "
            f"--num-partitions {of} {arguments}",
        )

    def status(self, port: int) -> dict[str, Any]:
        """Return what the server says of itself."""
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(f"/{wire.SERVICE}/{wire.STATUS}")
            answer: dict[str, Any] = json.loads(ask(b"", timeout=PATIENCE_S, wait_for_ready=True))
        return answer

    def rounds(self) -> list[dict[str, Any]]:
        return written_rounds(self.folder / "run")

    def wait_for_rounds(self, count: int) -> None:
        server = self.processes["server"]
        until(lambda: len(self.rounds()) >= count or self._fail_if_ended(server))

    def _fail_if_ended(self, process: subprocess.Popen[str]) -> None:
        assert process.poll() is None, self.log("server")

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


class Link:
    """A TCP relay whose connections can be cut, frozen, held up or slow."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self.up = True
        self.delay_s = 0.0  # before whatever passes
        self.bytes_a_s = math.inf  # in each direction; what is sent faster waits in buffers
        self._frozen: set[socket.socket] = set()
        self._start(self._accept)

    def cut(self) -> None:
        """Break the connections and let none through until told."""
        self.up = False
        self._break()

    def restore(self, port: int | None = None) -> None:
        """Let connections through again, to a server on this port."""
        self._target = port or self._target
        self.up = True

    def freeze(self) -> None:
        """Let nothing pass through the present connections, and keep them open."""
        self._frozen |= {end for pair in self._pairs for end in pair}

    def close(self) -> None:
        self.up = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()
        for thread in self._threads:
            thread.join()
        for end in {end for pair in self._pairs for end in pair}:
            end.close()

    def _break(self) -> None:
        for end in [end for pair in self._pairs for end in pair]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self.up:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # cut, or no server there at present
                near.close()
                continue
            self._pairs.append((near, far))
            self._start(self._pump, near, far)
            self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536 if math.isinf(self.bytes_a_s) else 4096):
                if source not in self._frozen:
                    if self.delay_s:
                        time.sleep(self.delay_s)
                    sink.sendall(data)
                    time.sleep(len(data) / self.bytes_a_s)
        if source not in self._frozen:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
