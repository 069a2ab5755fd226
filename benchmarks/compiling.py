"""`compile=true`: how long compiling the backbone takes, what a step gains, and after how many steps that is earned.

    python benchmarks/compiling.py [--quick] [--out benchmarks/results/compiling.json]

Forward and backward of the width-16 ResNet-18 on a batch of 128, eager and compiled in turns. Nothing compiled earlier
is used: torch's cache of it is in a folder of its own.
"""

import argparse
import os
import tempfile

from harness import Report, options, seconds, take_turns
from training import BATCH, Ours


def main() -> None:
    arguments = options("compiling", __doc__)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    ours = Ours(BATCH)
    batch, eager = ours.batch, ours.method.backbone.train()
    compiled = Ours(BATCH).method.backbone.train()
    compiled.compile()

    def step(net: object) -> None:
        net(batch).sum().backward()  # type: ignore[operator]
        net.zero_grad(set_to_none=True)  # type: ignore[attr-defined]

    first = seconds(lambda: step(compiled))
    turns = take_turns(lambda: step(eager), lambda: step(compiled), repeats=2 if arguments.quick else 40)
    report = Report(arguments, {"batch": BATCH})
    gain = turns["reference"] * (1 - 1 / turns["ratio"])
    even = (first - turns["ours"]) / gain if gain > 0 else None
    report.add(
        "a step of the backbone, compiled against eager", **turns, compile_seconds=first, break_even_steps=even,
        break_even_images=None if even is None else even * BATCH,
    )  # fmt: skip
    print(
        f"compiling takes {first:.0f} s; "
        + ("it is never earned" if even is None else f"earned after {even:.0f} steps")
    )
    report.write()


if __name__ == "__main__":
    main()
