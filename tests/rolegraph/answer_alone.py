"""Script that measures the solver's accuracy of exported weights with transformers and peft only.

    python answer_alone.py TASKS.jsonl COUNT BASE FOLDER...

Each line of the file is a task with `messages`, `nums` and `target`. COUNT answers per task are sampled at
temperature 1. Each FOLDER holds a model, or an adapter of BASE. The output is the accuracy of each folder.
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


def accuracy(folder: str, base: str, tasks: list[dict], count: int) -> float:
    if Path(folder, "adapter_config.json").exists():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    else:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
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
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=LONGEST,
            num_return_sequences=count,
        )
    answers = tokenizer.batch_decode(drawn[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [
        is_right(answer, tasks[number // count]["nums"], tasks[number // count]["target"])
        for number, answer in enumerate(answers)
    ]
    return sum(right) / len(right)


if __name__ == "__main__":
    file, count, base, *folders = sys.argv[1:]
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    print(json.dumps([accuracy(folder, base, rows, int(count)) for folder in folders]))
