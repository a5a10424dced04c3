"""Resolve all extras together, for each Python, with the newest and with the lowest versions.

A set of versions for all extras is one for each pair of them. Only where there is none, each pair is resolved
alone, to name those that exclude each other. Extras that install from git are left out of the lowest ones:
the resolver takes the lowest of their own requirements, too, whose bounds are another project's.

python .ci/resolve.py UV [PYPROJECT]
"""

import subprocess
import sys
import tomllib
from collections.abc import Collection
from itertools import combinations, product
from pathlib import Path

PYTHONS = ("3.11", "3.14")
RESOLUTIONS = ("highest", "lowest-direct")
SHOWN = ("mcp", "openai", "rich", "tinker", "torch", "transformers", "verifiers")
"""Packages whose versions the table shows: several extras require them."""


def resolve(uv: str, project: str, extras: Collection[str], *options: str) -> tuple[bool, str]:
    """Resolve the extras of a project.

    Returns:
        True and the resolved requirements, or False and the resolver's error.
    """
    wanted = [part for extra in extras for part in ("--extra", extra)]
    command = [uv, "pip", "compile", "--quiet", *options, *wanted, project]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stderr if done.returncode else done.stdout


def versions(requirements: str) -> str:
    """Return the versions of the packages in `SHOWN`."""
    pins = [line.split("==", 1) for line in requirements.splitlines() if "==" in line and line[0].isalpha()]
    return ", ".join(f"{name} {version.split()[0]}" for name, version in pins if name in SHOWN)


def main(uv: str, project: str = "pyproject.toml") -> int:
    """Print a line for each Python and resolution; return 1 where the extras exclude each other."""
    requirements = tomllib.loads(Path(project).read_text())["project"]["optional-dependencies"]
    released = [extra for extra in requirements if not any(" @ " in it for it in requirements[extra])]
    status = 0
    for python, resolution in product(PYTHONS, RESOLUTIONS):
        options = ("--python-version", python, "--resolution", resolution)
        extras = sorted(requirements if resolution == "highest" else released)
        is_resolved, text = resolve(uv, project, extras, *options)
        print(f"Python {python}, {resolution}: {versions(text) if is_resolved else 'none'}", flush=True)
        status |= not is_resolved
        for pair in () if is_resolved else combinations(extras, 2):
            fits, error = resolve(uv, project, pair, *options)
            if not fits:
                print(f"  {pair[0]} excludes {pair[1]}: {error.splitlines()[0]}")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
