"""``flower-client``: one device of a fleet, from the command line."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

import click
from click.core import ParameterSource

from flower_scheduling.environment import check_environment, is_link_variable
from flower_scheduling.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_USAGE,
    ClientConfigError,
    SchedulingError,
    WireError,
    fail,
)
from flower_scheduling.extras import BUILT_IN_APP, require_extra
from flower_scheduling.help_sections import HelpfulGroup
from flower_scheduling.loading import load_object
from flower_scheduling.usage import usage_text

from .restart import begin_anew, take_slot_number, take_state
from .slots import take_slot
from .wire.addresses import is_loopback, parse_address
from .wire.frames import package_version
from .wire.proxies import proxy_options

_OUR_APP: Final = "flower_scheduling.client.app:app"
# Flags that the ClientApp reads from its node configuration, under their kebab-case names.
_NODE_CONFIG: Final = (
    "partition_id",
    "num_partitions",
    "data_dir",
    "dataset",
    "link",
    "distance_m",
    "bandwidth_hz",
    "payload_bits",
    "compute",
)
UserConfig: TypeAlias = dict[str, bool | float | int | str]  # as flwr.app's, which loads slowly
_PREFIX: Final = "FLOWER_CLIENT"  # of environment variables
_WARN_DAYS: Final = 30  # before a certificate's end


def main(
    arguments: Sequence[str] | None = None, available: Callable[[], bool] = lambda: True
) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Instead of those of the process.
    available : callable
        Returns whether the client takes work at first.

    Returns
    -------
    int
        0 when stopped, 1 when the server refuses, 2 for wrong usage.
    """
    try:
        cli.main(args=arguments, prog_name="flower-client", standalone_mode=False, obj=available)
    except click.ClickException as error:
        return fail(usage_text(error), EXIT_USAGE)
    except SchedulingError as error:
        return fail(str(error), error.exit_code)
    except OSError as error:
        return fail(str(error), EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        pass  # the server has had a goodbye, and the user wanted an end
    return EXIT_DONE


_server = click.option(
    "--server",
    "address",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="FLOWER_CLIENT_SERVER",
    help="HOST:PORT.",
)


def _own_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Return the client's name, unless what is in its variable is the name of a Docker link."""
    from_environment = context.get_parameter_source("name") == ParameterSource.ENVIRONMENT
    if from_environment and is_link_variable(_PREFIX, f"{_PREFIX}_NAME", name):
        context.set_parameter_source("name", ParameterSource.DEFAULT)
        return socket.gethostname()
    return name


_name = click.option(
    "--name",
    callback=_own_name,
    default=socket.gethostname,
    show_default="host name",
    envvar="FLOWER_CLIENT_NAME",
    help="This client's name.",
)
_tls = click.option(
    "--tls",
    type=click.Path(path_type=Path),
    envvar="FLOWER_CLIENT_TLS",
    help="Folder of ca.pem and this client's.",
)


@click.group(
    cls=HelpfulGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": _PREFIX,
    },
)
@click.version_option(package_version(), prog_name="flower-client", allow_from_autoenv=False)
@_server
@_name
@click.option("--partition-id", type=click.IntRange(min=0), help="Share of the data set, from 0.")
@click.option("--num-partitions", type=click.IntRange(min=1), help="Number of shares.")
@click.option(
    "--slots",
    type=click.Path(path_type=Path),
    help="Be client-N with share N, the first that is free among the clients of this folder.",
)
@click.option("--data-dir", help="Folder of the data set (default: the user's cache).")
@click.option(
    "--dataset",
    help="Data set that this client is meant for: it is fetched at the start, and a server of "
    "another one is refused (default: the server's).",
)
@click.option("--link", help="Emulate a radio link: rayleigh.")
@click.option("--distance-m", type=float, help="Distance of the emulated link [m].")
@click.option("--bandwidth-hz", type=float, help="Bandwidth of the emulated link [Hz].")
@click.option("--payload-bits", help="Emulated size of a transfer [bit], or 'model'.")
@click.option("--compute", help="Emulated examples per second: RATE or LOW-HIGH.")
@click.option(
    "--app",
    "app_path",
    default=_OUR_APP,
    envvar="FLOWER_CLIENT_APP",
    help="Another ClientApp, MODULE:NAME.",
)
@click.option(
    "--node-config",
    "node_config_text",
    default="",
    envvar="FLOWER_CLIENT_NODE_CONFIG",
    help="Flower's node configuration, \"dataset-path='part_1' n=3\", or a TOML file.",
)
@click.option(
    "--restart-after",
    type=click.IntRange(min=1),
    help="Begin anew after so many messages, if the app keeps memory.",
)
@_tls
@click.option("--insecure", is_flag=True, help="Connect beyond loopback without TLS.")
@click.option(
    "--max-message-mb",
    type=click.IntRange(min=0),
    default=0,
    help="Largest message [MB] (default: what the server sends and takes).",
)
@click.pass_context
def cli(
    context: click.Context,
    /,
    address: str,
    name: str,
    slots: Path | None,
    app_path: str,
    node_config_text: str,
    restart_after: int | None,
    tls: Path | None,
    insecure: bool,
    max_message_mb: int,
    **node: Any,
) -> None:
    """Train on the requests of a flower-server. Reconnects for ever; SIGUSR1 opts out and in.

    Every flag can come from the environment, --distance-m as FLOWER_CLIENT_DISTANCE_M.
    """
    _check_environment(context)
    if context.invoked_subcommand is not None:
        return
    flags = {key.replace("_", "-"): node[key] for key in _NODE_CONFIG if node[key] is not None}
    node_config: UserConfig = {**flags, **_read_node_config(node_config_text, flags)}
    slot = take_slot_number()
    if slots is not None:
        named = context.get_parameter_source("name") != ParameterSource.DEFAULT
        if named or "partition-id" in node_config or "num-partitions" not in node_config:
            raise ClientConfigError(
                f"slots = {str(slots)!r}: needs --num-partitions, gives --name and --partition-id"
            )
        # The number stays this client's until the lock is released at the end of the process.
        slot, _lock = take_slot(slots, int(node_config["num-partitions"]), slot)
        node_config["partition-id"] = slot
        name = f"client-{slot}"
    address = _checked_address(address, secure=tls is not None or insecure)
    credentials, own_fault = _credentials(tls, name, address)
    node_config["name"] = name
    if app_path == _OUR_APP:
        require_extra(BUILT_IN_APP, "learning")
    _check_node_config(node_config, flags, ours=app_path == _OUR_APP)
    _log_to_stderr()
    flower = logging.getLogger("flwr")  # its own handler would write every line a second time
    flower.handlers.clear()
    flower.propagate = True
    flower.setLevel(max(flower.level, logging.INFO))
    if tls is not None:
        _warn_of_expiry(tls, name)
    logging.getLogger("httpx").setLevel(logging.WARNING)

    if app_path == _OUR_APP:
        _check_data(node_config)

    from flwr.clientapp import ClientApp

    from flower_scheduling.allocator import freeze_loaded, keep_heaps

    from .app_runner import Worker
    from .main_thread import ClientProcess
    from .stream import StreamClient
    from .wire.frames import MEGABYTE, NO_LIMIT

    client_app = load_object(app_path, ClientApp, "app")
    if app_path != _OUR_APP and flags.keys() & {"link", "compute"}:
        from .link.emulation import emulated

        client_app = emulated(client_app)
    environment = dict(os.environ)
    keep_heaps()
    freeze_loaded()
    worker = Worker(name, own_thread=False)
    try:
        client = StreamClient(
            address,
            name,
            client_app,
            node_config,
            credentials=credentials,
            own_fault=own_fault,
            max_message_bytes=(max_message_mb * MEGABYTE) or NO_LIMIT,
            worker=worker,
            restart_after=restart_after,
            kept_state=take_state(),
        )
    except WireError as error:
        raise ClientConfigError(str(error)) from None
    ClientProcess(client, worker, available=context.obj).run()
    if client.retired:
        logging.getLogger(__name__).info("%s begins anew after %d messages", name, restart_after)
        begin_anew(environment, client.kept_state(), available=client.available, slot=slot)


@cli.command()
@_server
@_name
@_tls
@click.option("--timeout-s", type=float, default=5.0, show_default=True)
@click.pass_context
def health(
    context: click.Context, /, address: str, name: str, tls: Path | None, timeout_s: float
) -> None:
    """Exit with 0 if the server answers that it serves, else with 1."""
    import grpc

    from .wire.health import check_health

    address, name, tls = (
        _own_or_programs(context, key, value)
        for key, value in (("address", address), ("name", name), ("tls", tls))
    )
    address = _checked_address(address, secure=True)
    credentials, own_fault = _credentials(tls, name, address)
    options = proxy_options(address)
    if credentials is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, credentials, options=options)
    with channel:
        check_health(channel, address, timeout_s, own_fault)
    click.echo("serving")


def _own_or_programs(context: click.Context, key: str, value: Any) -> Any:
    """Return a subcommand's flag, or the one given before the subcommand."""
    if context.parent is None or context.get_parameter_source(key) == ParameterSource.COMMANDLINE:
        return value
    return context.parent.params[key]


def _check_environment(context: click.Context) -> None:
    """Refuse variables that look like flags and are none: they would have no effect."""
    known: set[str] = set()
    for command, prefix in (
        (cli, _PREFIX),
        *((command, f"{_PREFIX}_{name.upper()}") for name, command in cli.commands.items()),
    ):
        params = (each for each in command.params if isinstance(each, click.Option))
        options = [each for each in params if each.allow_from_autoenv]
        known.update(f"{prefix}_{(each.name or '').upper()}" for each in options)
        known.update(each.envvar for each in options if isinstance(each.envvar, str))
    check_environment(_PREFIX, known)


def _read_node_config(text: str, flags: Mapping[str, object]) -> UserConfig:
    """Read ``--node-config``; what a flag says too is refused."""
    if not text:
        return {}
    from flower_scheduling.user_config import read_user_config

    found = read_user_config("node-config", text)
    for key in sorted(found.keys() & {"name", *flags}):
        raise ClientConfigError(f"node-config = {text!r}: {key} is set by --{key}")
    return found


def _check_node_config(node_config: UserConfig, flags: Mapping[str, Any], *, ours: bool) -> None:
    """Refuse a node configuration that our app, or the emulation of links, could not use."""
    if ours and not {"partition-id", "num-partitions"} <= node_config.keys():
        raise ClientConfigError(
            "--partition-id and --num-partitions are missing: the client's share of the data set"
        )
    number, of = node_config.get("partition-id", 0), node_config.get("num-partitions", math.inf)
    if isinstance(number, int) and isinstance(of, int | float) and number >= of:
        raise ClientConfigError(
            f"partition-id = {number}: must be below num-partitions = {of}, shares count from 0"
        )
    from .link.emulation import EmulatedDevice
    from .settings import NodeSettings

    # Refuses a wrong link or rate before connecting; a key of another app's means what it will.
    EmulatedDevice.from_node_config(node_config if ours else {**flags, "name": node_config["name"]})
    if ours:
        NodeSettings.from_config(node_config)


def _check_data(node_config: UserConfig) -> None:
    """Load the data set, if it is known; a folder that can hold none ends the client here too."""
    from .learning.datasets import check_folder, load_data

    data_dir = str(node_config.get("data-dir", ""))
    if "dataset" in node_config:
        load_data(str(node_config["dataset"]), data_dir)
    elif data_dir:
        check_folder(data_dir)


def _log_to_stderr() -> None:
    """Log to a stream of the program's own: an app may close or replace ``sys.stderr``."""
    stream: TextIO | None = None  # sys.stderr
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is no file
        stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", 1, errors="backslashreplace")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=stream)


def _credentials(tls: Path | None, name: str, address: str) -> tuple[Any, Callable[[], str] | None]:
    """Read the TLS files; return them, and a function that returns the certificates' fault."""
    from .wire.credentials import (
        certificate_fault,
        channel_credentials,
        client_files,
        load_certificate,
    )

    if tls is None:
        return None, None
    credentials = channel_credentials(tls, name)
    authority, own = (load_certificate(file) for file in client_files(tls, name)[:2])
    return credentials, lambda: certificate_fault(address, own, authority)


def _warn_of_expiry(tls: Path, name: str) -> None:
    from .wire.credentials import client_files, days_left, load_certificate

    days = days_left(load_certificate(client_files(tls, name)[1]))
    if days < _WARN_DAYS:
        logging.getLogger(__name__).warning(
            "%s: its certificate expires in %d days: renew it with flower-certs", name, days
        )


def _checked_address(address: str, *, secure: bool) -> str:
    """Return the server's address as gRPC takes it."""
    parsed = parse_address("server", address)
    if not secure and not is_loopback(parsed.host):
        raise ClientConfigError(
            f"server = {address!r} is beyond this machine: give --tls FOLDER, or --insecure"
        )
    return str(parsed)
