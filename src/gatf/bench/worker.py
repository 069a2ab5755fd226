"""One run of a bench in a process of its own: `python -m gatf.bench.worker RUN_FOLDER`."""

import sys
from pathlib import Path

from gatf import experiment
from gatf.errors import UserError
from gatf.training.loop import Interrupted


def main(folder: str) -> int:
    """Exit codes as the command line's: 0 done, 2 a mistake, 130 stopped and saved."""
    try:
        experiment.resume(Path(folder))
    except UserError as error:
        sys.stderr.write(f"gatf: {error}\n")
        return 2
    except Interrupted:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
