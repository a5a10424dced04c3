"""Time and peak memory of an update of 64 sequences with a model folder of this machine.

    python benchmarks/update_memory.py local:smollm2-135m [--whole]

Eight prompts of 70 random tokens with eight answers of 10 to 33 tokens each. `--whole` lifts the bound on the
memory of a pass. The peak is that of the process, with the model's weights.
"""

import random
import resource
import sys
import time

import torch

from rolegraph.engine.shipped import model_folder
from rolegraph.local.service import trainer
from rolegraph.local.service.bodies import AdamSettings
from rolegraph.local.service.local_model import LocalModel, LoraShape

PROMPTS, ROLLOUTS, PROMPT = 8, 8, 70
GIGA = 1e6
"""Kilobytes, in which Linux counts, of a gigabyte."""


def datums(vocabulary: int) -> list[trainer.Datum]:
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(20, vocabulary) for _ in range(count)]

    made: list[trainer.Datum] = []
    for _ in range(PROMPTS):
        prompt = tokens(PROMPT)
        for number in range(ROLLOUTS):
            whole = [*prompt, *tokens(draw.randrange(10, 34))]
            answer = torch.zeros(len(whole) - 1)
            answer[PROMPT - 1 :] = 1
            inputs = {
                "target_tokens": torch.tensor(whole[1:]),
                "logprobs": answer * -10,
                "advantages": answer * (-1) ** number,
            }
            made.append(trainer.Datum(whole[:-1], inputs))
    return made


def main(name: str, *flags: str) -> None:
    if "--whole" in flags:
        trainer.MAX_BATCH_BYTES["cpu"], trainer.MEMORY_SHARE = 10**15, 1
    model = LocalModel(model_folder(name))
    data = datums(model.vocabulary)
    run = trainer.TrainingRun(model, LoraShape(32, seed=0))
    _ = model.can_share_rows
    start, cpu = time.monotonic(), time.process_time()
    loss, _ = run.forward_backward(data, "importance_sampling", {})
    run.step(AdamSettings(learning_rate=1e-4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIGA
    wall, used = time.monotonic() - start, time.process_time() - cpu
    tokens = sum(len(datum.tokens) for datum in data)
    print(f"{tokens} tokens, loss {loss:.4f}: {used:.1f} CPU s, {wall:.1f} s, peak {peak:.2f} GB")


if __name__ == "__main__":
    main(*sys.argv[1:])
