"""Each command that writes, killed at random moments of its life, and on a disk that is too small."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from commands import Command, commands, same
from counting import Count
from processes import Place

KILLS = 4
"""Of one trial, at most."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
STARTED = 0.05
"""Seconds after which a fork has become the command."""
NO_ROOM = ("No space left", "GB free")


class Killed:
    """The commands, and of each an undisturbed one."""

    def __init__(self, folder: Path, only: tuple[str, ...] = (), kills: int = 20) -> None:
        self.folder, self.number, self.kills = folder, 0, kills
        self._stack = ExitStack()
        self.commands = [it for it in commands(folder, self._stack) if not only or it.name in only]
        self._whole: dict[str, tuple[object, float, int]] = {}

    def __enter__(self) -> Killed:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def whole(self, command: Command) -> tuple[object, float, int]:
        """Return result, seconds and bytes of an undisturbed command."""
        if command.name not in self._whole:
            command.prepare()
            place, out = self._place()
            began = time.monotonic()
            assert _start(command, place, out) == 0, place.said()
            seconds = time.monotonic() - began
            size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
            self._whole[command.name] = command.result(out), seconds, size
            shutil.rmtree(place.folder)
        return self._whole[command.name]

    def kill(self, command: Command, count: Count, rng: random.Random) -> None:
        """Kill a command often, a few times on its way from the start to its end."""
        while count.of["kills"] < self.kills:
            count.of["trials"] += 1
            place, out = self._place()
            for _ in range(min(KILLS, self.kills - count.of["kills"])):
                self._kill(command, place, out, count, rng)
            self._goes_on(command, place, out, count)

    def _kill(self, command: Command, place: Place, out: Path, count: Count, rng: random.Random) -> None:
        """Start a command, or let it go on, and kill it unless it ends before."""
        _, seconds, _ = self.whole(command)
        if (words := command.words(out)) is None:
            return
        process = place.start(*words, **_around(command, out))
        number, moment = rng.choice(SIGNALS), STARTED + rng.random() * seconds
        if process.poll(moment) is not None:
            return
        process.send_signal(number)
        code = process.wait()
        count.of["kills"] += 1
        count.faults[number.name] += 1
        print(f"  {number.name} at {moment:.2f} of {seconds:.2f} s: {code}")
        if code not in (-number, 128 + number, 0):
            count.of["other"] += 1
            print(f"  {number.name} ended with {code}: {place.said()}")
        place.killed |= number == signal.SIGKILL
        count.of.update(place.left(parts=not place.killed))

    def fill(self, command: Command, count: Count, rng: random.Random) -> None:
        """Start a command on disks that are too small, make them larger, and let the command go on."""
        _, _, size = self.whole(command)
        while count.of["faults"] < self.kills // 2:
            place, _ = self._place()
            disk, pages = place.folder / "disk", max(2, int(size * rng.uniform(0.02, 0.9)) // 4096)
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * pages}k", "chaos", disk], check=True)
            try:
                count.of["trials"] += 1
                self._fill(command, place, disk / "out", count)
                subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
                self._goes_on(command, place, disk / "out", count)
            finally:
                subprocess.run(["umount", "-l", disk], check=True)

    def _fill(self, command: Command, place: Place, out: Path, count: Count) -> None:
        code = _start(command, place, out)
        print(f"  {shutil.disk_usage(out.parent).total // 1024} kB: {code}")
        if code:
            count.of["faults"] += 1
            count.faults["disk full"] += 1
            if code != 1 or not any(words in place.text() for words in NO_ROOM):
                count.of["other"] += 1
                print(f"  on a full disk: {place.said()}")
        count.of.update(place.left())

    def _goes_on(self, command: Command, place: Place, out: Path, count: Count) -> None:
        """Let a command go on to its end, and compare what it made."""
        code = _start(command, place, out)
        if code:
            count.of["refused"] += 1
            print(f"  does not go on ({code}): {place.said()}")
        else:
            differing = [*same(command.result(out), self.whole(command)[0])]
            count.of["other"] += bool(differing)
            for text in differing[:5]:
                print("  differs at", text)
        count.leave(place)
        if not (code or count.bad):
            shutil.rmtree(place.folder, ignore_errors=True)

    def _place(self) -> tuple[Place, Path]:
        self.number += 1
        place = Place(self.folder / str(self.number))
        return place, place.folder / "out"


def _start(command: Command, place: Place, out: Path) -> int:
    words = command.words(out)
    return 0 if words is None else place.start(*words, **_around(command, out)).wait()


def _around(command: Command, out: Path) -> dict[str, str]:
    return {key: value.replace("{out}", str(out)) for key, value in command.environment.items()}
