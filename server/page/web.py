"""The web application of the page: its state, a stream of news, and the token that it wants."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flower_scheduling.client.wire.addresses import is_loopback

from .numbers import to_json
from .run_view import RunView
from .runs_view import RunsView
from .saved import SCRIPTS, saved_page, static

_STATIC: Final = {"page.css": "text/css"} | dict.fromkeys((*SCRIPTS, "runs.js"), "text/javascript")
_LOOK_S: Final = 0.4  # time between two looks at the run directory
_PING_S: Final = 15.0
_MAX_STREAMS: Final = 200
_MAX_OPEN: Final = 8  # runs of a folder that are followed at a time
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class LiveState:
    """The state as JSON, made once for all visitors whenever the run directory has changed.

    Parameters
    ----------
    view : RunView or RunsView
        The run, or the folder of runs.
    """

    def __init__(self, view: RunView | RunsView) -> None:
        self.view = view
        self.lock = threading.Lock()
        """Held by every reader of the view."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self.version = ""
        self.body = b""
        """The state as gzipped JSON."""
        self.run_ended = False
        """Whether the run has ended: visitors fetch that state even where they look elsewhere."""

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def closed(self) -> bool:
        """Whether nothing new will come."""
        return self._ended.is_set()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        with self.lock:
            try:
                if not self.view.refresh() and self.body:
                    return
                state = self.view.state()
                self.run_ended = state.get("run", {}).get("state") == "ended"
                text = to_json(state)
            except (
                Exception
            ) as error:  # of a file that is not as a run writes it: show the error, and go on
                text = to_json({"error": f"{type(error).__name__}: {error}"})
            version = hashlib.sha256(text.encode()).hexdigest()[:16]
            if version != self.version:
                self.body, self.version = gzip.compress(text.encode(), 1), version


class OpenRuns:
    """The live states of the runs of a folder that visitors look at, the last few.

    Parameters
    ----------
    runs : RunsView
        The folder.
    """

    def __init__(self, runs: RunsView) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._open: OrderedDict[str, LiveState] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for live in self._open.values():
            live.__exit__()

    def find(self, request: Request) -> LiveState:
        """Return the state of the run that an address names, or answer that there is none."""
        run = request.path_params["run"]
        path = self._runs.folder_of(run)
        if path is None:
            raise HTTPException(404, "there is no such run")
        with self._lock:
            if run not in self._open:
                self._open[run] = LiveState(RunView(path)).__enter__()
            self._open.move_to_end(run)
            if len(self._open) > _MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                oldest.__exit__()
            return self._open[run]


def page_app(live: LiveState, host: str, token: str | None) -> Starlette:
    """Return the application of a run's page.

    Parameters
    ----------
    live : LiveState
        What to show.
    host : str
        Where it listens; on loopback it answers to names of loopback alone, so that no other
        site's page can reach it under a name of its own.
    token : str or None
        What visitors have to know; ``None``: every visitor who reaches the port is let in.
    """
    return _app(_Answers(lambda request: live).routes(), host, token)


def runs_app(live: LiveState, runs: OpenRuns, host: str, token: str | None) -> Starlette:
    """Return the application of a folder of runs: their list at the root, each run below it.

    Parameters
    ----------
    live : LiveState
        The folder's.
    runs : OpenRuns
        Its runs.
    host, token
        As in :func:`page_app`.
    """
    of_run, of_folder = _Answers(runs.find), _Answers(lambda request: live, "runs.html")
    return _app([*of_folder.shared_routes(), *of_run.routes("/run/{run}")], host, token)


def _app(routes: list[Route], host: str, token: str | None) -> Starlette:
    middleware = [Middleware(_SecurityHeaders)]
    if is_loopback(host):
        # Starlette cuts a host at its first colon (1.3), so of an IPv6 address the bracket is left;
        # no other site has an address for a name.
        names = ["localhost", "127.0.0.1", "[", host]
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=names))
    if token is not None:
        middleware.append(Middleware(_TokenGate, token=token))
    return Starlette(routes=routes, middleware=middleware)


class _Answers:
    """The answers to requests, by route."""

    def __init__(self, find: Callable[[Request], LiveState], html: str = "page.html") -> None:
        self._find = find
        self._html = html
        self._num_streams = 0

    def shared_routes(self, prefix: str = "") -> list[Route]:
        """Return the routes of any page: itself, what it loads, its state and news of it."""
        return [
            Route(f"{prefix}/", self.page),
            Route(f"{prefix}/static/{{name}}", self.asset),
            Route(f"{prefix}/state", self.state),
            Route(f"{prefix}/events", self.events),
        ]

    def routes(self, prefix: str = "") -> list[Route]:
        """Return the routes of a run's page."""
        return [
            *self.shared_routes(prefix),
            Route(f"{prefix}/round/{{number:int}}", self.round),
            Route(f"{prefix}/client/{{arm:int}}", self.client),
            Route(f"{prefix}/curves/{{first:int}}/{{last:int}}", self.curves),
            Route(f"{prefix}/about", self.about),
            Route(f"{prefix}/rounds.csv", self.rounds_csv),
            Route(f"{prefix}/saved", self.saved),
        ]

    def page(self, request: Request) -> Response:
        self._find(request)
        return Response(static(self._html), media_type="text/html")

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return PlainTextResponse("not found", 404)
        headers = {"cache-control": "max-age=3600" if name.startswith("echarts") else "no-cache"}
        return Response(static(name), media_type=_STATIC[name], headers=headers)

    def state(self, request: Request) -> Response:
        live = self._find(request)
        body, version = live.body, f'"{live.version}"'
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(gzip.decompress(body), media_type="application/json")
        if request.headers.get("if-none-match") == version:
            return Response(status_code=304, headers={"etag": version})
        headers = {"etag": version, "cache-control": "no-cache", "content-encoding": "gzip"}
        return Response(body, media_type="application/json", headers=headers)

    def round(self, request: Request) -> Response:
        number = request.path_params["number"]
        return self._json(request, lambda view: view.round(number))

    def client(self, request: Request) -> Response:
        arm = request.path_params["arm"]
        return self._json(request, lambda view: view.history(arm))

    def curves(self, request: Request) -> Response:
        first, last = request.path_params["first"], request.path_params["last"]
        return self._json(request, lambda view: view.curves(first, last))

    def about(self, request: Request) -> Response:
        return self._json(request, lambda view: view.about())

    def rounds_csv(self, request: Request) -> Response:
        live, view = self._of_run(request)
        with live.lock:
            lines = list(view.rounds_csv())
        return Response("".join(lines), media_type="text/csv", headers=_file(view, "csv"))

    async def events(self, request: Request) -> Response:
        if self._num_streams >= _MAX_STREAMS:
            return PlainTextResponse("too many pages are open", 503)
        live = await run_in_threadpool(self._find, request)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._news(live), media_type="text/event-stream", headers=headers)

    def saved(self, request: Request) -> Response:
        live, view = self._of_run(request)
        with live.lock:
            text = saved_page(view)
        return Response(text, media_type="text/html", headers=_file(view, "html"))

    def _json(self, request: Request, ask: Callable[[RunView], dict[str, Any] | None]) -> Response:
        live, view = self._of_run(request)
        with live.lock:
            found = ask(view)
        if found is None:
            return PlainTextResponse("there is no such one", 404)
        return Response(to_json(found), media_type="application/json")

    def _of_run(self, request: Request) -> tuple[LiveState, RunView]:
        live = self._find(request)
        assert isinstance(live.view, RunView)
        return live, live.view

    async def _news(self, live: LiveState) -> AsyncIterator[str]:
        """Yield an event for each new version of the state, and a comment in long pauses."""
        self._num_streams += 1
        try:
            sent, silent_s = "", 0.0
            while not live.closed:
                if live.version != sent:
                    sent, silent_s = live.version, 0.0
                    yield f"data: {sent}{' ended' if live.run_ended else ''}\n\n"
                elif silent_s >= _PING_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(_LOOK_S / 2)
                silent_s += _LOOK_S / 2
        finally:
            self._num_streams -= 1


def _file(view: RunView, kind: str) -> dict[str, str]:
    folder = view.path.resolve().name
    name = "".join(c for c in folder if c.isalnum() or c in "-_.")
    return {"content-disposition": f'attachment; filename="{name}.{kind}"'}


class _SecurityHeaders:
    """Middleware: headers that keep foreign content out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _TokenGate:
    """Middleware: visitors need the token, from the address once, from a cookie afterwards."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        cookie = f"page-token-{request.url.port or 80}"  # browsers share cookies between ports
        given = QueryParams(scope["query_string"]).get("token")
        response: Any = self._app
        if given is not None and self._is_right(given):
            response = RedirectResponse(request.url.path, 303)
            response.set_cookie(cookie, self._token, httponly=True, samesite="lax")
        elif not self._is_right(request.cookies.get(cookie)) and not self._is_right(
            _bearer(request.headers)
        ):
            text = "this page wants the token: open the address that the server printed\n"
            response = PlainTextResponse(text, 401)
        await response(scope, receive, send)

    def _is_right(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())


def _bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else None


def view_of(path: Path, *, latest: bool = False) -> LiveState:
    """Return the live state of a run directory, or of the latest run of its app."""
    return LiveState(RunView(path, latest=latest))


def folder_of_runs(path: Path) -> tuple[LiveState, OpenRuns]:
    """Return the live states of a folder of runs and of those in it."""
    view = RunsView(path)
    return LiveState(view), OpenRuns(view)
