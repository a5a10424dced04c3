"""Folders of training runs in the training loop's format, from real episodes and simple figures."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.records import Episode, Failure, FailureName, Step, Task, Trajectory

ROLES = {
    "solver": {"estimator": "grpo", "loss": "ppo", "trainable": True},
    "judge": {"estimator": "reinforce", "loss": "ppo", "trainable": True},
}
SPEC = """\
rolegraph: 2
name: NAME
roles:
  solver: {count: 2, prompt: solve, estimator: grpo}
  judge: {needs: [solver], prompt: judge, estimator: reinforce}
"""


def write_run(
    folder: Path, *, name: str = "solver_judge", seed: int = 0, steps: int = 4, planned: int = 4
) -> Path:
    """Write a whole run: figures of every step, a validation at every second step from 0, a few episodes."""
    (folder / "episodes").mkdir(parents=True)
    info = {
        "name": name,
        "hash": "1f0c9a7e2b",
        "seed": seed,
        "model": "rolegraph-base",
        "roles": ROLES,
        "metrics": ["solver_acc", "judge_acc"],
        "steps": planned,
        "version": "0.2.0",
    }
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "spec.yaml").write_text(SPEC.replace("NAME", name))
    rng = random.Random(seed)
    write_lines(folder / "metrics.jsonl", [figures(step, steps, rng) for step in range(steps + 1)])
    for step in range(1, steps + 1):
        write_episodes(folder, "train", step, rollouts(step))
    for step in range(0, steps + 1, 2):
        write_episodes(folder, "validation", step, [rollout(f"v{task}", 0, [1.0, 0.0]) for task in range(3)])
    return folder


def figures(step: int, steps: int, rng: random.Random) -> dict[str, float]:
    """Return one line of `metrics.jsonl`."""
    gain = 1 - math.exp(-3 * step / max(1, steps))
    line: dict[str, float] = {"step": step}
    if step:
        response = 38 - 10 * gain + rng.gauss(0, 1)
        line |= {
            "episode/solver_acc": 0.43 + 0.25 * gain + rng.gauss(0, 0.03),
            "episode/judge_acc": 0.46 + 0.3 * gain + rng.gauss(0, 0.03),
            "kl/solver": 0.002 + abs(rng.gauss(0, 0.001)),
            "kl/judge": 0.004 + abs(rng.gauss(0, 0.002)),
            "optim/learning_rate": 4e-5 * (1 - step / (steps + 1)),
            "optim/grad_norm": 0.4 + abs(rng.gauss(0, 0.1)),
            "signal/judge/reverse_kl": 0.3 * (1 - gain) + abs(rng.gauss(0, 0.01)),
            **{f"signal/solver/advantage/{part}": 0.1 * (1 - gain) for part in ("mean", "std", "max", "min")},
            "tokens/response": 144 * response,
            "tokens/per_response": response,
            "tokens/per_response/solver": response,
            "tokens/per_response/judge": response / 2,
            "entropy/solver": 0.6 - 0.3 * gain,
            "tokens/per_second": 1900 + rng.gauss(0, 80),
            "time/rollout": 9 + rng.gauss(0, 0.7),
            "time/advantage": 0.1,
            "time/update": 5 + rng.gauss(0, 0.3),
            "time/step": 15.0,
            "failures/solver/malformed_output": round(30 * (1 - gain) + rng.random() * 4),
            "failures/solver/timeout": round(rng.random() * 2),
            "groups/num_groups": 32,
        }
        for role in ROLES:
            easy, hard = 0.1 + 0.2 * gain, 0.35 * (1 - 0.6 * gain) + rng.random() * 0.05
            line |= {
                f"reward/{role}/mean": 0.43 + 0.25 * gain + rng.gauss(0, 0.03),
                f"reward/{role}/std": 0.45 - 0.1 * gain,
                f"reward/{role}/max": 1.0,
                f"reward/{role}/n": 24.0,
                f"advantage/{role}/std": 0.8 - 0.2 * gain + rng.gauss(0, 0.04),
                f"batch/{role}/total": 16,
                f"batch/{role}/informative": 9,
                f"batch/{role}/fractions/effective": 0.97 - easy - hard,
                f"batch/{role}/fractions/too_easy": easy,
                f"batch/{role}/fractions/too_hard": hard,
                f"batch/{role}/group_reward_mean/p10": 0.0,
                f"batch/{role}/group_reward_mean/p50": 0.4 + 0.2 * gain,
                f"batch/{role}/group_reward_mean/p90": 0.9,
                f"loss/{role}/mean": 0.02 * rng.gauss(0, 1),
            }
    if step % 2 == 0:
        line |= {
            "validation/solver_acc": 0.43 + 0.26 * gain + rng.gauss(0, 0.01),
            "validation/judge_acc": 0.45 + 0.31 * gain + rng.gauss(0, 0.01),
            "validation/correct": 0.45 + 0.31 * gain,
            "validation/reward/solver": 0.43 + 0.26 * gain,
            "validation/reward/judge": 0.45 + 0.31 * gain,
            "validation/n/reward/solver": 6.0,
            "validation/n/reward/judge": 3.0,
        }
    return line


def rollouts(step: int) -> list[Episode]:
    """Return four rollouts of three tasks: one mixed, one always solved, one never."""
    found: list[Episode] = []
    for at in range(4):
        found.append(rollout("mixed", at, [float(at % 2), 1.0], advantage=1.0 if at % 2 else -0.5))
        found.append(rollout("easy", at, [1.0, 1.0], advantage=0.0))
        found.append(rollout("hard", at, [0.0, 0.0], advantage=0.0))
    return found


def rollout(
    task: str,
    at: int,
    rewards: Sequence[float],
    *,
    advantage: float | None = None,
    text: str = "an answer",
    failed: bool = False,
) -> Episode:
    """Return an episode of two solvers and a judge that picks the first; of wrong solvers the second failed.

    `failed`: whether every solver failed.
    """
    trajectories = [
        trajectory("solver", index + 1, reward, advantage, f"{text} {index + 1}", failed=failed)
        for index, reward in enumerate(rewards)
    ]
    trajectories.append(trajectory("judge", 1, rewards[0], advantage, "<answer>1</answer>"))
    row: Task = {"id": task, "question": f"What is {task}?", "target": 7}
    return Episode(task, at, row, trajectories, is_correct=rewards[0] >= 1)


def trajectory(
    role: str,
    index: int,
    reward: float,
    advantage: Sequence[float] | float | None,
    text: str,
    *,
    failed: bool = False,
) -> Trajectory:
    """Return the trajectory of one role instance with one model call."""
    step = Step(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        logprobs=[-0.1, -0.2, -0.3],
        chat_completions=[{"role": "user", "content": f"asked of {role} {index}"}],
        action=text,
        model_response=text,
        reward=reward,
        advantage=advantage,
    )
    failed = failed or (not reward and index > 1)
    failure = Failure(FailureName.MALFORMED_OUTPUT, "no <answer> was found") if failed else None
    return Trajectory(role, index, [step], reward=reward, is_correct=reward >= 1, failure=failure)


def write_lines(path: Path, lines: Sequence[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_episodes(folder: Path, split: str, step: int, episodes: Sequence[Episode]) -> Path:
    path = folder / "episodes" / f"{split}-{step:06d}.jsonl"
    path.write_text("".join(json.dumps(episode.to_dict()) + "\n" for episode in episodes))
    return path
