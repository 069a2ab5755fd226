"""One run of a bench in a separate process: `python -m gatf.bench.worker RUN_FOLDER`."""

import sys
from pathlib import Path

from gatf.bench.executors import continue_run
from gatf.errors import ExitCode, UserError
from gatf.io.text import harmless
from gatf.training.loop import Interrupted
from gatf.training.memory import keep_freed_memory


def main(folder: str) -> ExitCode:
    """Returns the exit codes of the command line: done, user error, interrupted."""
    keep_freed_memory()
    try:
        continue_run(Path(folder))
    except UserError as error:
        sys.stderr.write(f"gatf: {harmless(error)}\n")
        return ExitCode.MISTAKE
    except Interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
