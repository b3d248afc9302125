"""Lines a second that validation reads, and how that compares with a bare loop that only decodes each line, in the same run.

    python bench/validation.py [--lines 200000] [--words 12] [--rounds 3] [--bad-every 0]

Processor time, so that what else runs on the machine disturbs little; the best of all rounds counts on both sides. The file has
what chat batches have: a system prompt, a user's text of some words. With --bad-every every so manyth line is rejected.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from haywain.openai import CHAT_FIELDS
from services.batches.lines import Served
from services.batches.validate import Order, validate

ENDPOINT = "/v1/chat/completions"


def write_input(path: Path, lines: int, words: int, bad_every: int) -> None:
    """Write a batch's input."""
    with path.open("w") as file:
        for number in range(lines):
            messages = [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": f"{number} " + "word " * words},
            ]
            url = "/v1/other" if bad_every and number % bad_every == 0 else ENDPOINT
            body = {"model": "echo", "messages": messages, "max_tokens": 16}
            file.write(json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}) + "\n")


def bare(path: Path) -> int:
    """Decode every line, and nothing else."""
    decode = msgspec.json.Decoder().decode
    count = 0
    with path.open("rb") as file:
        for line in file:
            decode(line)
            count += 1
    return count


def validated(path: Path) -> int:
    """Validate as the batches service does; the number of lines that could run."""
    order = Order(
        input_path=str(path), index_path=f"{path}.index", endpoint=ENDPOINT, default_model="",
        served={"echo": Served("echo", fields=CHAT_FIELDS)}, members={}, deterministic=False, mixed_models=False,
        max_lines=10**9, max_line_bytes=1 << 20, max_errors=1_000, shard_rows=5_000, reject=True, rejects_path=f"{path}.rejected",
        row_prefix="batch_req_0_",
    )  # fmt: skip
    return validate(order).good


def best(work: Callable[[Path], int], path: Path, rounds: int) -> float:
    """Measure the processor seconds of the quickest round."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work(path)
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bad-every", type=int, default=0)
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 20)  # as in the validation process
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder:
        path = Path(folder) / "input.jsonl"
        write_input(path, options.lines, options.words, options.bad_every)
        size = path.stat().st_size
        good = validated(path)
        if not options.bad_every and good != options.lines:
            sys.exit(f"{options.lines - good} good lines were found bad")
        mine, reference = best(validated, path, options.rounds), best(bare, path, options.rounds)
    print(f"{options.lines} lines, {size / options.lines:.0f} bytes each, {good} good")
    print(f"bare decoding {options.lines / reference:12,.0f} lines/s")
    print(f"validation    {options.lines / mine:12,.0f} lines/s   {mine / reference:.2f} times the bare loop's time")
    print(f"highest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024:.0f} MB")


if __name__ == "__main__":
    main()
