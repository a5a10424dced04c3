"""The spec that a command works on, and the options that change how the spec is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.specs import SPEC_BYTES


def specs_here() -> list[str]:
    """Return the names of the files in the working folder that look like specs."""
    files = (file for file in sorted(Path().glob("*.yaml")) if not file.name.endswith(".test.yaml"))
    return [
        str(file)
        for file in files
        if file.is_file() and file.stat().st_size <= SPEC_BYTES.most and b"\nroles:" in file.read_bytes()
    ]


@dataclass(frozen=True, slots=True)
class Source:
    """A spec as a user names it, with the options that change how it is read."""

    spec: str | None = None
    """Path of a spec file or name of a shipped spec; None if no spec is named, as in `run --resume`."""
    overrides: tuple[str, ...] = ()
    """Changes of the spec's values, each `key.path=value` as in `roles.solver.count=4`."""
    model: str | None = None
    """Model in place of the spec's: `local[:FOLDER]`, `tinker:NAME`, `openai:NAME` or `replay:FILE`."""
    base_url: str | None = None
    """URL of the model's endpoint in place of the spec's."""
    imports: tuple[str, ...] = ()
    """Python files that register rewards, parsers and so on."""
    allow: tuple[str, ...] = ()
    """Permissions of the spec: `python`, or a URL with everything below it."""

    @classmethod
    def of(
        cls,
        spec: str | Path | None = None,
        *overrides: str,
        model: str | None = None,
        base_url: str | None = None,
        imports: Iterable[str | Path] = (),
        allow: Iterable[str] = (),
    ) -> Source:
        """Make a Source from the arguments of `rg.load`.

        Args:
            spec: Path of a spec file or name of a shipped spec; None where none is named.
            overrides: Changes of the spec's values, each `key.path=value`.
            model: Model in place of the spec's, as `openai:NAME`.
            base_url: URL of the model's endpoint in place of the spec's.
            imports: Python files that register rewards, parsers and so on, or one of them.
            allow: Permissions of the spec: `python`, or a URL with everything below it; or one of them.
        """
        imports = (imports,) if isinstance(imports, str | Path) else imports
        allow = (allow,) if isinstance(allow, str) else allow
        files = tuple(str(file) for file in imports)
        return cls(None if spec is None else str(spec), overrides, model, base_url, files, tuple(allow))

    @property
    def named_spec(self) -> str:
        """The spec's path or name; raises UsageError if no spec is named."""
        if self.spec is None:
            examples = ", ".join(specs_here()) or "solver_judge"
            raise UsageError(f"no spec named; give a file or the name of a shipped spec, such as {examples}")
        return self.spec

    def with_defaults(self, defaults: Source) -> Source:
        """Return a copy whose empty fields are taken from another source.

        Args:
            defaults: Source that gives each field that is None or empty here.

        Returns:
            The completed source; a field that is set here replaces the other's as a whole.
        """
        names = (field.name for field in fields(self))
        return Source(*(getattr(self, name) or getattr(defaults, name) for name in names))

    def arguments(self) -> list[str]:
        """Return the command-line arguments for the fields that are set, not yet quoted for a shell."""
        options = {
            "--import": self.imports,
            "--allow": self.allow,
            "--model": [self.model],
            "--base-url": [self.base_url],
        }
        named_values = [(option, value) for option, values in options.items() for value in values if value]
        spec = () if self.spec is None else (self.spec,)
        return [*spec, *self.overrides, *(word for pair in named_values for word in pair)]
