"""The web application of the page: its state, a stream of news, and the token that it wants."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Self

from starlette.applications import Starlette
from starlette.datastructures import Headers, QueryParams
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flower_scheduling.client.wire.addresses import is_loopback

from .numbers import to_json
from .run_view import RunView
from .saved import SCRIPTS, saved_page, static

_STATIC: Final = {"page.css": "text/css"} | dict.fromkeys(SCRIPTS, "text/javascript")
_LOOK_S: Final = 0.4  # time between two looks at the run directory
_PING_S: Final = 15.0
_MAX_STREAMS: Final = 200
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
    view : RunView
        The run.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.lock = threading.Lock()
        """Held by every reader of the view."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self.version = ""
        self.body = b""
        """The state as gzipped JSON."""

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        with self.lock:
            try:
                if not self.view.refresh() and self.body:
                    return
                text = to_json(self.view.state())
            except (
                Exception
            ) as error:  # of a file that is not as a run writes it: show the error, and go on
                text = to_json({"error": f"{type(error).__name__}: {error}"})
            version = hashlib.sha256(text.encode()).hexdigest()[:16]
            if version != self.version:
                self.body, self.version = gzip.compress(text.encode(), 1), version


def page_app(live: LiveState, host: str, token: str | None) -> Starlette:
    """Return the application.

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
    answers = _Answers(live)
    routes = [
        Route("/", answers.page),
        Route("/static/{name}", answers.asset),
        Route("/state", answers.state),
        Route("/round/{number:int}", answers.round),
        Route("/events", answers.events),
        Route("/saved", answers.saved),
    ]
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

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._num_streams = 0

    def page(self, request: Request) -> Response:
        return Response(static("page.html"), media_type="text/html")

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return PlainTextResponse("not found", 404)
        headers = {"cache-control": "max-age=3600" if name.startswith("echarts") else "no-cache"}
        return Response(static(name), media_type=_STATIC[name], headers=headers)

    def state(self, request: Request) -> Response:
        body, version = self._live.body, f'"{self._live.version}"'
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(gzip.decompress(body), media_type="application/json")
        if request.headers.get("if-none-match") == version:
            return Response(status_code=304, headers={"etag": version})
        headers = {"etag": version, "cache-control": "no-cache", "content-encoding": "gzip"}
        return Response(body, media_type="application/json", headers=headers)

    def round(self, request: Request) -> Response:
        with self._live.lock:
            found = self._live.view.round(request.path_params["number"])
        if found is None:
            return PlainTextResponse("there is no such round", 404)
        return Response(to_json(found), media_type="application/json")

    async def events(self, request: Request) -> Response:
        if self._num_streams >= _MAX_STREAMS:
            return PlainTextResponse("too many pages are open", 503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._news(), media_type="text/event-stream", headers=headers)

    def saved(self, request: Request) -> Response:
        with self._live.lock:
            text = saved_page(self._live.view)
            folder = self._live.view.path.resolve().name
        name = "".join(c for c in folder if c.isalnum() or c in "-_.")
        headers = {"content-disposition": f'attachment; filename="{name}.html"'}
        return Response(text, media_type="text/html", headers=headers)

    async def _news(self) -> AsyncIterator[str]:
        """Yield an event for each new version of the state, and a comment in long pauses."""
        self._num_streams += 1
        try:
            sent, silent_s = "", 0.0
            while True:
                if self._live.version != sent:
                    sent, silent_s = self._live.version, 0.0
                    yield f"data: {sent}\n\n"
                elif silent_s >= _PING_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(_LOOK_S / 2)
                silent_s += _LOOK_S / 2
        finally:
            self._num_streams -= 1


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
