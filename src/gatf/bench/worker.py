"""One run of a bench in a process of its own: `python -m gatf.bench.worker RUN_FOLDER`."""

import sys
from pathlib import Path

from gatf.bench.executors import go_on
from gatf.errors import ExitCode, UserError
from gatf.io.text import harmless
from gatf.training.loop import Interrupted
from gatf.training.memory import keep_freed_memory


def main(folder: str) -> ExitCode:
    """Exit codes as the command line's: done, a mistake, stopped and saved."""
    keep_freed_memory()
    try:
        go_on(Path(folder))
    except UserError as error:
        sys.stderr.write(f"gatf: {harmless(error)}\n")
        return ExitCode.MISTAKE
    except Interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
