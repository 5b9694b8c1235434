"""What the suite adds to an app: the README's line, and a record of what the run came to.

One line at the end of the app's server module calls :func:`wrap`. From then on a strategy's
``start`` runs as if ``strategy = ScheduledStrategy(strategy, ...)`` stood before it. Of Flower's
old API a workflow runs as if ``workflow = ScheduledWorkflow(workflow, ...)`` did, and what a
``server_fn`` returns as if it had a ``ScheduledServer``.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.common import parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import server_app
from flwr.serverapp.strategy import Strategy


def wrap(file: str, num_selected: int, tau_max_s: float, mode: str) -> None:
    """Schedule what any strategy's ``start`` trains, and write the results to a file.

    With ``num_selected = 0`` the app runs as it is.
    """
    write = functools.partial(_write, Path(file), scheduled=bool(num_selected))
    settings: dict[str, Any] = {
        "policy": "cs-ucb-q",
        "num_selected": num_selected,
        "mode": mode,
        "tau_max_s": tau_max_s,
        "wait_s": tau_max_s,  # a busy machine takes a minute to start a client
    }
    starts = [(one, one.__dict__["start"]) for one in _classes(Strategy) if "start" in vars(one)]

    @contextlib.contextmanager
    def own_starts() -> Iterator[None]:
        # From before a strategy is wrapped: buffered mode refuses one with a start of its own.
        for cls, own in starts:
            cls.start = own
        try:
            yield
        finally:
            _redirect(starts, start)  # an app may train first and fine-tune afterwards

    def start(
        self: Strategy, original: Any, grid: Any, initial_arrays: Any, *more: Any, **named: Any
    ) -> Any:
        before = _contents(initial_arrays)
        with own_starts():
            outer = self
            if num_selected:
                from flower_scheduling import ScheduledStrategy

                outer = ScheduledStrategy(self, **settings)
            result = outer.start(grid, initial_arrays, *more, **named)
        write(
            before,
            result.arrays,
            train=result.train_metrics_clientapp,
            clients=result.evaluate_metrics_clientapp,
            server=result.evaluate_metrics_serverapp,
        )
        return result

    _redirect(starts, start)
    call = DefaultWorkflow.__call__

    @functools.wraps(call)
    def workflow(self: DefaultWorkflow, grid: Any, context: Any) -> None:
        DefaultWorkflow.__call__ = call  # type: ignore[method-assign]
        try:
            with own_starts():
                outer: Any = self
                if num_selected:
                    from flower_scheduling import ScheduledWorkflow

                    outer = ScheduledWorkflow(self, **settings)
                outer(grid, context)
        finally:
            DefaultWorkflow.__call__ = workflow  # type: ignore[method-assign]
        _write_history(write, context.state.array_records["parameters"], context.history)

    DefaultWorkflow.__call__ = workflow  # type: ignore[method-assign]
    start_grid = server_app.start_grid

    def start_server(*, server: Any = None, **components: Any) -> Any:
        manager = components.pop("client_manager", None) or SimpleClientManager()
        with own_starts():
            if server is None:
                strategy, kind = components.pop("strategy"), Server
                if num_selected:
                    from flower_scheduling import ScheduledServer

                    kind = functools.partial(ScheduledServer, **settings)
                server = kind(client_manager=manager, strategy=strategy)
            history = start_grid(server=server, **components)
        _write_history(write, ArrayRecord(parameters_to_ndarrays(server.parameters)), history)
        return history

    server_app.start_grid = start_server


def _write_history(write: Any, arrays: ArrayRecord, history: Any) -> None:
    """Write what a run of the old API came to."""
    write(
        {},
        arrays,
        train=_by_round(history.metrics_distributed_fit),
        clients=_by_round(history.metrics_distributed)
        | {round_: {"loss": loss} for round_, loss in history.losses_distributed},
        server=_by_round(history.metrics_centralized),
    )


def _redirect(starts: list[tuple[Any, Any]], start: Any) -> None:
    for cls, own in starts:
        cls.start = functools.wraps(own)(functools.partialmethod(start, own))


def _classes(base: type) -> Iterator[Any]:
    yield base
    for one in base.__subclasses__():
        if not one.__module__.startswith("flower_scheduling."):
            yield from _classes(one)


def _by_round(metrics: dict[str, list[tuple[int, Any]]]) -> dict[int, dict[str, Any]]:
    """Turn the old API's values by metric into metrics by round."""
    rounds: dict[int, dict[str, Any]] = {}
    for key, values in metrics.items():
        for round_, value in values:
            rounds.setdefault(round_, {})[key] = value
    return rounds


def _contents(arrays: ArrayRecord) -> dict[str, tuple[str, list[int], bytes]]:
    # Arrays of the old API have dtype and shape in their data alone.
    views = {key: one.numpy() for key, one in arrays.items()}
    return {key: (str(one.dtype), list(one.shape), one.tobytes()) for key, one in views.items()}


def _write(
    file: Path,
    before: dict[str, Any],
    arrays: ArrayRecord,
    *,
    scheduled: bool,
    **metrics: dict[int, Any],
) -> None:
    after = _contents(arrays)
    line = {
        "scheduled": scheduled,
        "arrays": {
            # What grows, such as an ensemble of trees, has no shape to compare.
            key: [dtype, shape if before.get(key, (0, shape))[1] == shape else "varies"]
            for key, (dtype, shape, _) in after.items()
        },
        "changed": bool(after) and after != before,
        **{
            kind: {str(round_): sorted(values) for round_, values in by_round.items()}
            for kind, by_round in metrics.items()
        },
    }
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
