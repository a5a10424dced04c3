"""What was done to runs, and what they lost of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from processes import Place

from rolegraph.engine.records import read_episodes
from rolegraph.engine.records.jsonl import is_cut

DONE = ("trials", "faults", "kills", "told", "episodes")
"""`told`: episodes and steps that commands told as finished, and that were looked for."""
BAD = ("lost", "twice", "cut", "other", "refused", "processes", "sockets", "temporary", "tracebacks")
"""`lost`: told as finished and not in the folder, at a kill or later, or missing at the end. `other`: what an
unbroken run would not have. `refused`: commands that do not go on with what another left."""


@dataclass
class Count:
    """One row of the table."""

    name: str
    of: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    """By kind."""

    @property
    def bad(self) -> int:
        return sum(self.of[key] for key in BAD)

    def __str__(self) -> str:
        told = [f"{key} {self.of[key]}" for key in DONE]
        return ", ".join([*told, *(f"{key.upper()} {self.of[key]}" for key in BAD if self.of[key])])

    def keeps(self, place: Place, file: Path) -> None:
        """Count the episodes that commands told as finished and that the run's file does not hold now."""
        told = {*place.told()}
        self.of["told"] += len(told - place.seen)
        place.seen |= told
        self.of["lost"] += len(told - {*(said_in(file) if file.exists() else ())})

    def leave(self, place: Place) -> None:
        """What a place is left with."""
        self.of.update(place.left())
        self.of["tracebacks"] += place.tracebacks()

    def episodes(self, file: Path, planned: Mapping[str, object]) -> None:
        """What became of the episodes that were planned, each with what is said in it."""
        found = [(episode.id, words(episode)) for episode in read_episodes(file)]
        times = Counter(name for name, _ in found)
        self.of["episodes"] += len(found)
        self.of["lost"] += len({*planned} - {*times})
        self.of["twice"] += sum(count - 1 for count in times.values())
        self.of["cut"] += is_cut(file)
        self.of["other"] += sum(name not in planned or planned[name] != said for name, said in found)


def words(episode: object) -> object:
    """All that was said in an episode."""
    return [step.model_response for t in episode.trajectories for step in t.steps]  # pyright: ignore


def said_in(file: Path) -> dict[str, object]:
    """What was said in each episode of a file."""
    return {episode.id: words(episode) for episode in read_episodes(file)}


def table(counts: Sequence[Count]) -> str:
    """As Markdown."""
    heads = ["", *DONE, *BAD]
    rows = [[count.name, *(f"{count.of[key]:,}" for key in (*DONE, *BAD))] for count in counts]
    total = ["all", *(f"{sum(count.of[key] for count in counts):,}" for key in (*DONE, *BAD))]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows, total]
    kinds: Counter[str] = Counter()
    for count in counts:
        kinds.update(count.faults)
    told = ", ".join(f"{kind} {times:,}" for kind, times in kinds.most_common())
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\nFaults: {told}."
