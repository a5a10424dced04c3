"""Resolve the extras together, for several Pythons, with the newest and with the lowest versions.

A set of versions for all extras is one for each pair of them. Only where there is none, each pair is resolved
alone, to name those that exclude each other. Pre-releases are refused where a package has final versions.

rLLM comes from git and needs overrides beside other extras, so it has resolutions of its own. The lowest
versions leave it out: the resolver takes the lowest of rLLM's own requirements, too. Without access to rLLM's
address, git's `insteadOf` names a local copy (docs/rllm.md).

python .ci/resolve.py UV [PYPROJECT]
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

OVERRIDES = ("--config-file", "rolegraph/integrations/rllm/uv.toml")
LINUX = ("--python-platform", "x86_64-manylinux_2_28")
GROUPS = ("rllm", "verl")
"""Dependency groups, which stand beside the extras: their packages come from git."""
SHOWN = "mcp numpy openai rich tinker tinker-cookbook torch transformers verifiers verl vllm".split()
"""Packages whose versions the table shows: several extras require them."""


class Resolution(NamedTuple):
    """One set of extras to resolve, with the resolver's options."""

    label: str
    extras: Collection[str]
    pythons: Sequence[str]
    options: Sequence[str] = ()


def resolutions(requirements: dict[str, list[str]]) -> list[Resolution]:
    """Return the resolutions of a project with these optional dependencies."""
    released = sorted(requirements)
    pythons = ("3.11", "3.14")
    return [
        Resolution("newest without rLLM", released, pythons),
        Resolution("lowest without rLLM", released, pythons, ("--resolution", "lowest-direct")),
        Resolution("newest with rLLM", [*released, "rllm"], pythons, OVERRIDES),
        Resolution("rLLM on tinker, Linux", ["local", "math", "rllm"], pythons, LINUX),
        # vLLM has no wheel for a newer Python.
        Resolution("rLLM on verl, Linux", ["math", "verl"], ("3.11", "3.12"), (*OVERRIDES, *LINUX)),
    ]


def resolve(uv: str, project: str, extras: Collection[str], *options: str) -> tuple[bool, str]:
    """Resolve the extras of a project.

    Returns:
        True and the resolved requirements, or False and the resolver's error.
    """
    wanted = [
        part
        for extra in extras
        for part in (("--group", f"{project}:{extra}") if extra in GROUPS else ("--extra", extra))
    ]
    command = [uv, "pip", "compile", "--quiet", "--prerelease", "if-necessary", *options, *wanted, project]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stderr if done.returncode else done.stdout


def versions(requirements: str) -> dict[str, str]:
    """Return the version of each pinned package."""
    return dict(re.findall(r"^([a-z][\w.-]*)==([^\s;]+)", requirements, re.MULTILINE))


def prereleases(pins: dict[str, str], direct: str) -> list[str]:
    """Return the pre-releases among the packages that the project itself requires."""
    return [
        f"{name} {version}"
        for name, version in pins.items()
        if re.search(r"\d(a|b|rc|\.dev)\d", version) and re.search(rf"\b{name}\b", direct)
    ]


def main(uv: str, project: str = "pyproject.toml") -> int:
    """Print a line for each resolution; return 1 where extras exclude each other or need a pre-release."""
    document = tomllib.loads(Path(project).read_text())
    requirements = document["project"]["optional-dependencies"]
    direct, status = f"{requirements} {document['dependency-groups']}", 0
    for label, extras, pythons, options in resolutions(requirements):
        for python in pythons:
            chosen = ("--python-version", python, *options)
            is_resolved, text = resolve(uv, project, extras, *chosen)
            pins = versions(text) if is_resolved else {}
            early = prereleases(pins, direct)
            shown = ", ".join(f"{name} {pins[name]}" for name in SHOWN if name in pins)
            print(f"{label}, Python {python}: {shown or 'none'}", flush=True)
            for line in early:
                print(f"  pre-release: {line}")
            status |= not is_resolved or bool(early)
            for pair in () if is_resolved else combinations(extras, 2):
                fits, error = resolve(uv, project, pair, *chosen)
                if not fits:
                    print(f"  {pair[0]} excludes {pair[1]}: {error.splitlines()[0]}")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
