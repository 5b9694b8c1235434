"""The metrics of a running server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .alarms import KINDS
from .http_server import HttpServer

PREFIX: Final = "flower_scheduling"
"""What the names of all metrics begin with."""
_COUNTERS: Final = {
    "refused": ("refused_connections", "Connections that were refused."),
    "late_replies": ("late_replies", "Replies after their deadline."),
    "ignored_replies": ("ignored_replies", "Replies to messages that wait for none."),
    "steps": ("steps", "Rounds in which the model changed."),
}
_GAUGES: Final = {
    "round": ("round", "Last round that ended."),
    "round_s": ("round_seconds", "Length of the last round."),
    "deadline_s": ("deadline_seconds", "Deadline of a round: given, or the last that was found."),
    "accuracy": ("accuracy", "Last test accuracy."),
    "loss": ("loss", "Last test loss."),
    "uptime_s": ("uptime_seconds", "Since the server began to listen."),
}
_ARM_GAUGES: Final = {
    "connected": ("client_connected", "Whether a stream is open."),
    "busy": ("client_busy", "Whether it works on a message."),
    "queue": ("client_virtual_queue", "Rounds that it is owed."),
    "floor": ("client_floor", "Guaranteed share of rounds."),
    "last_rtt_s": ("client_last_round_trip_seconds", "Last measured round trip."),
}


class StatusCollector:
    """A collector that turns the status into metrics at each scrape.

    Parameters
    ----------
    snapshot : callable
        Returns the status, :meth:`.ServerStatus.snapshot`.
    """

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        status = self._snapshot()
        clients = GaugeMetricFamily(f"{PREFIX}_clients", "Clients by state.", labels=["state"])
        for state in ("connected", "available", "busy", "opted_out", "left_out"):
            clients.add_metric([state], status[state])
        yield clients
        for key, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=status[key])
        for key, (name, text) in _GAUGES.items():
            if status[key] is not None:
                yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=status[key])

        alarms = GaugeMetricFamily(f"{PREFIX}_alarms", "Alarms by kind.", labels=["kind"])
        for kind in KINDS:
            alarms.add_metric([kind], sum(alarm["kind"] == kind for alarm in status["alarms"]))
        yield alarms

        arms = [arm for arm in status["arms"] if arm["index"] is not None]
        for key, (name, text) in _ARM_GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["client"])
            for arm in arms:
                if arm[key] is not None:
                    gauge.add_metric([arm["name"]], arm[key])
            yield gauge
        selections = CounterMetricFamily(
            f"{PREFIX}_client_selections", "Rounds in which it was selected.", labels=["client"]
        )
        failures = CounterMetricFamily(
            f"{PREFIX}_client_failures", "Rounds that it failed.", labels=["client", "reason"]
        )
        round_trips = SummaryMetricFamily(
            f"{PREFIX}_client_round_trip_seconds", "Measured round trips.", labels=["client"]
        )
        for arm in arms:
            selections.add_metric([arm["name"]], arm["selections"])
            for reason, count in arm["failures"].items():
                failures.add_metric([arm["name"], reason], count)
            round_trips.add_metric(
                [arm["name"]],
                count_value=arm["completed"],
                sum_value=(arm["mean_rtt_s"] or 0.0) * arm["completed"],
            )
        yield from (selections, failures, round_trips)


def metrics_server(address: str, snapshot: Callable[[], Mapping[str, Any]]) -> HttpServer:
    """Return a server of ``/metrics``, not yet started.

    Parameters
    ----------
    address : str
        Where to listen, ``host:port``.
    snapshot : callable
        Returns the status.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(snapshot))

    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return HttpServer("metrics", address, Starlette(routes=[Route("/metrics", metrics)]))
