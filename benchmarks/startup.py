"""Seconds until `import gatf` and `gatf --help` are done, against `import torch` alone, each in a fresh process.

    python benchmarks/startup.py [--quick] [--out benchmarks/results/startup.json]

Starting Python itself is part of every number. Files are in the system's cache after the first turn, which is not
counted.
"""

import subprocess
import sys

from harness import Call, Report, options, seconds, take_turns

LIMIT = 0.5
TORCH = ("-c", "import torch")
COMMANDS = {"import gatf": ("-c", "import gatf"), "gatf --help": ("-m", "gatf", "--help")}


def process(*arguments: str) -> Call:
    """A call that runs Python with these arguments and waits."""
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    arguments = options("startup", __doc__)
    empty = min(seconds(process("-c", "pass")) for _ in range(5))
    report = Report(arguments, {"reference": "import torch", "empty_process": round(empty, 4)})
    for what, command in COMMANDS.items():
        turns = take_turns(process(*TORCH), process(*command), repeats=2 if arguments.quick else 4)
        report.add(what, **turns, at_most=LIMIT)
    report.write("typer")


if __name__ == "__main__":
    main()
