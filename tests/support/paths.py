"""Where things are."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKER: Final = ROOT / "docker"
CONTAINERS: Final = ROOT / "tests" / "containers"
