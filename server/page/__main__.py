"""``python -m server.page``: what :func:`server.page.process.page_process` starts."""

from .process import main

main()
