"""The page as one file, for a run that has ended or as it is now."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import Final

from flower_scheduling.palette import css_colours

from .numbers import to_json
from .run_view import RunView

SCRIPTS: Final = (
    "echarts.min.js",
    "palette.js",
    "format.js",
    "charts.js",
    "curves.js",
    "overview.js",
    "why.js",
    "channels.js",
    "clients.js",
    "about.js",
    "page.js",
)
"""The page's scripts, in order; the first is Apache ECharts 6.1.0, unchanged."""
MARK: Final = '<meta name="generator" content="flower-client-scheduling page">'
"""Line by which our pages are known among other files."""
# Rounds with all scores fill at most so much of the file, the latest first
_MAX_ROUNDS_BYTES: Final = 8 << 20
_MAX_HISTORY_BYTES: Final = 1 << 20


def saved_page(view: RunView) -> str:
    """Return a run as one HTML file that needs nothing else.

    Parameters
    ----------
    view : RunView
        The run, up to date.
    """
    rounds: dict[int, str] = {}
    left = _MAX_ROUNDS_BYTES
    for number in range(view.num_rounds, 0, -1):
        found = view.round(number)
        if found is None:
            continue
        text = to_json(found)
        left -= len(text)
        if left < 0:
            break
        rounds[number] = text
    listed = ",".join(f'"{number}":{text}' for number, text in sorted(rounds.items()))
    histories = {}
    state = view.state()
    left = _MAX_HISTORY_BYTES
    for arm in range(len(state["clients"]["name"])):
        found = view.history(arm)
        left -= 0 if found is None else len(to_json(found))
        if found is not None and left >= 0:
            histories[str(arm)] = found
    more = to_json({"state": state, "about": view.about(), "clients": histories})
    data = f'{more[:-1]},"rounds":{{{listed}}}}}'
    script, style = "\n".join(map(static, SCRIPTS)), static("page.css")
    # Elements whose content is given by its digest: nothing else runs, whatever is in the data.
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; "
        f"style-src 'sha256-{_digest(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = static("page.html")
    meta = '<meta charset="utf-8">'
    changes = {
        meta: f"{meta}\n{MARK}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
        '<link rel="stylesheet" href="static/page.css">': f"<style>{style}</style>",
        "</body>": f'<script type="application/json" id="saved">{_inert(data)}</script>\n'
        f"<script>{script}</script>\n</body>",
    }
    changes |= {f'<script src="static/{name}" defer></script>\n': "" for name in SCRIPTS}
    for old, new in changes.items():
        before, there, after = page.partition(old)
        assert there, old
        page = before + new + after
    return page


def static(name: str) -> str:
    """Return one of the page's own files; the style sheet begins with the palette's colours."""
    file = files("flower_scheduling.server.page") / "static" / name
    text = file.read_text(encoding="utf-8")
    return css_colours() + text if name == "page.css" else text


def _inert(data: str) -> str:
    """Return JSON that cannot end the element it stands in."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
