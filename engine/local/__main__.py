"""The service as the child of a run: `python -m engine.local OPTIONS-AS-JSON`, the key in the environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from engine.errors import RolegraphError
from engine.local.service import KEY_VARIABLE, serve


def main() -> None:
    """Serve until the parent is gone."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    try:
        serve(
            Path(options["model_dir"]),
            api_key=os.environ.pop(KEY_VARIABLE),
            state_dir=Path(options["state_dir"]) if options["state_dir"] else None,
            threads=options["threads"],
            lifeline=True,
        )
    except RolegraphError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
