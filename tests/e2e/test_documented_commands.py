"""The commands of README and tutorial, run as they stand, from the first to the last."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import README, TUTORIAL, Block, blocks, words
from paths import ROOT
from waiting import RUN_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("mnist")]

PROGRAMS = {
    "flower-server": "server.cli.entry:server",
    "flower-client": "client.entry:client",
    "flower-certs": "server.cli.entry:certs",
    "flower-simulation": "simulation.entry:simulation",
}
PROGRAM = """#!{python}
from flower_scheduling.{module} import {function}
if __name__ == "__main__":
    {function}()
"""
STAYS = ("flower-server", "flower-client")
"""Programs that run until somebody stops them, or the run is done."""
ONCE = ("health", "status")
"""Their commands that do not."""


class Reader:
    """Somebody who types the commands of a page into a copy of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.folder / name)
        self.logs = folder / "logs"
        programs = folder / "bin"
        for each in (self.logs, programs):
            each.mkdir()
        for name, place in PROGRAMS.items():
            module, function = place.split(":")
            text = PROGRAM.format(python=sys.executable, module=module, function=function)
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder),
            "COLUMNS": "100",
            # Where the page leaves the address to the programs, another test may be there.
            "FLOWER_SERVER_ADDRESS": address,
            "FLOWER_CLIENT_SERVER": address,
        }

    def type(self, block: Block) -> None:
        """Run the commands of a block; programs that stay run side by side to the server's end."""
        with contextlib.ExitStack() as stack:
            servers = []
            for number, command in enumerate(block.commands):
                # The page's usual port may be another process's here.
                program, *arguments = words(command.replace(":8501", ":0"))
                if program == "cd":
                    self.folder /= arguments[0]
                elif program in STAYS and not set(ONCE) & set(arguments):
                    process = stack.enter_context(self._started(program, arguments, number))
                    servers += [(command, process)] if program == "flower-server" else []
                else:
                    code = block.exit_code if command is block.commands[-1] else 0
                    self._run(block, command, code)
            for command, process in servers:
                code = process.wait(RUN_S)
                assert code == 0, f"{block}: {command}: {code}\n{self._said()}"

    def _run(self, block: Block, command: str, code: int) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == code, f"{block}: {command}: {done.returncode}\n{done.stdout}"

    @contextlib.contextmanager
    def _started(
        self, program: str, arguments: list[str], number: int
    ) -> Iterator[subprocess.Popen[bytes]]:
        with (self.logs / f"{number}-{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [program, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def _said(self) -> str:
        return "\n".join(f"{log.name}\n{log.read_text()}" for log in sorted(self.logs.iterdir()))


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.stem)
def test_commands_of_the_page_run(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for block in blocks(page):
        if not block.not_run:
            reader.type(block)
    runs = [file.parent.name for file in reader.folder.rglob("rounds.jsonl")]
    assert runs, "a page that shows no run"
    assert list(reader.folder.rglob("report.html"))
    assert (reader.folder / "page.html").is_file()
