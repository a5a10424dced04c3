"""Script that measures the solver's accuracy of exported weights with transformers and peft only.

    python answer_alone.py TASKS.jsonl BASE FOLDER...

Each line of the file is a task with `messages`, `nums` and `target`. Each is answered once, by the likeliest
tokens: samples of another generator would differ by chance. Each FOLDER holds a model, or an adapter of BASE.
The output is the accuracy of each folder.
"""

import json
import re
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

LONGEST = 64


def is_right(answer: str, nums: list[int], target: int) -> bool:
    found = re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL)
    if not found or not re.fullmatch(r"[\d+\-*/() \n]+", found[-1]):
        return False
    if sorted(map(int, re.findall(r"\d+", found[-1]))) != sorted(nums):
        return False
    try:
        return abs(eval(found[-1].strip()) - target) < 1e-5
    except (SyntaxError, ZeroDivisionError, TypeError):
        return False


def accuracy(folder: str, base: str, tasks: list[dict]) -> float:
    if Path(folder, "adapter_config.json").exists():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    else:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [task["messages"] for task in tasks]
    given = tokenizer.apply_chat_template(
        chats,
        add_generation_prompt=True,
        padding=True,
        padding_side="left",
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        drawn = model.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            do_sample=False,
            max_new_tokens=LONGEST,
        )
    answers = tokenizer.batch_decode(drawn[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [
        is_right(answer, task["nums"], task["target"]) for answer, task in zip(answers, tasks, strict=True)
    ]
    return sum(right) / len(right)


if __name__ == "__main__":
    file, base, *folders = sys.argv[1:]
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    print(json.dumps([accuracy(folder, base, rows) for folder in folders]))
