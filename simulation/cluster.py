"""Studies on a cluster that is there already: their jobs on its workers, their files here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from flower_scheduling.errors import ClusterError, ConfigError, MissingExtraError, nearest
from flower_scheduling.extras import install_command

from .jobs import Arrays, Job, code_digest

_CONNECT_S: Final = 20.0

Results: TypeAlias = Iterator[tuple[Job, Arrays]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster's engine and address.

    Attributes
    ----------
    engine : str
        ``dask`` or ``ray``.
    address : str
        Of its scheduler: ``HOST:PORT`` of a Dask scheduler or of the head of a Ray cluster.
    """

    engine: str
    address: str

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read ``ENGINE:HOST:PORT``.

        Raises
        ------
        ConfigError
            If it is none.
        MissingExtraError
            If the engine is not installed here.
        """
        engine, _, address = text.partition(":")
        if engine not in _ENGINES:
            allowed = "must begin with " + " or ".join(f"{name}:" for name in _ENGINES)
            raise ConfigError("cluster", text, allowed, nearest(engine, _ENGINES))
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError("cluster", text, f"must read {engine}:HOST:PORT")
        package = _PACKAGES[engine]
        if find_spec(package) is None:
            raise MissingExtraError(
                f"--cluster {engine}:... needs {package}, which is not installed: "
                + install_command("cluster")
            )
        return cls(engine, address)

    def compute(self, jobs: Sequence[Job]) -> Results:
        """Yield jobs and their results, in the order in which they are done.

        Raises
        ------
        ClusterError
            If it cannot be reached, lost a job for good, or runs another version of our code.
        Exception
            The first that a job has raised.
        """
        return _ENGINES[self.engine](self.address, jobs)


def _work(job: Job, digest: str) -> Arrays:
    """Compute a job on a worker, to which both engines give one thread."""
    if code_digest() != digest:
        raise ClusterError("a worker has other code than this process: install the same version")
    return job.compute()


def _on_dask(address: str, jobs: Sequence[Job]) -> Results:
    dask: Any = import_module("distributed")
    try:
        client = dask.Client(f"tcp://{address}", timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError:
            raise ClusterError(f"the Dask scheduler at {address} has no worker") from None
        digest = code_digest()
        # pure=False: no result of an earlier study is taken for ours.
        waiting = {
            client.submit(_work, job, digest, pure=False, priority=-place): job
            for place, job in enumerate(jobs)
        }
        try:
            for done in dask.as_completed(waiting, loop=client.loop):
                yield waiting[done], done.result()
        except (dask.KilledWorker, dask.client.FutureCancelledError) as error:
            raise ClusterError(f"the Dask cluster lost a job: {error}") from None
        except RuntimeError as error:
            if "deserialization" not in str(error):
                raise
            raise ClusterError("the Dask scheduler or a worker has other packages") from None
        finally:
            with suppress(Exception):  # a scheduler that is gone cancels nothing
                client.cancel(list(waiting))


def _on_ray(address: str, jobs: Sequence[Job]) -> Results:
    ray: Any = import_module("ray")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {error}") from None
    try:
        work = ray.remote(num_cpus=1)(_work)
        digest = code_digest()
        waiting = {work.remote(job, digest): job for job in jobs}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            try:
                yield waiting.pop(done), ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause or ClusterError(str(error)) from None
            except ray.exceptions.RayError as error:
                raise ClusterError(f"the Ray cluster lost a job: {error}") from None
    finally:
        ray.shutdown()


_ENGINES: Final[dict[str, Callable[[str, Sequence[Job]], Results]]] = {
    "dask": _on_dask,
    "ray": _on_ray,
}
_PACKAGES: Final = {"dask": "distributed", "ray": "ray"}
