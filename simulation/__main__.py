"""``python -m simulation``."""

import sys

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # while the imports, which take seconds, were under way
    print("error: interrupted", file=sys.stderr)
    code = 130
sys.exit(code)
