"""Rerun of the tests that failed, which names the ones that pass then: `flaky.py PYTEST...`.

The words are a command of pytest. Each test that failed in the last run and passes now is printed as FLAKY,
with their number at the end. The exit code is that of pytest; of a scheduled run, 1 if a test was flaky.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed() -> set[str]:
    """Return the names of the tests that failed in the last run."""
    return {*json.loads(FAILED.read_text("utf-8"))} if FAILED.exists() else set()


def main() -> int:
    """Run the failed tests once more and return the exit code."""
    before = failed()
    print(f"{len(before)} failed, once more, one at a time:", flush=True)
    code = subprocess.run([*sys.argv[1:], "--last-failed", "--last-failed-no-failures", "none"]).returncode
    flaky = sorted(before - failed())
    for name in flaky:
        print("FLAKY", name)
    print(f"{len(flaky)} flaky of {len(before)} that failed first")
    return code or int(bool(flaky) and os.environ.get("GITHUB_EVENT_NAME") == "schedule")


if __name__ == "__main__":
    sys.exit(main())
