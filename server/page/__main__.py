"""``python -m flower_scheduling.server.page``: what :func:`.page_process` starts."""

from .process import main

main()
