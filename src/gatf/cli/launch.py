"""`gatf run --devices N`: start the processes of one run on this node, and end them together."""

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from gatf.errors import ExitCode, UserError

LAUNCHER = "GATF_LAUNCHER"
"""Set in the processes started here; the launcher reports their errors, once."""
GRACE = 3.0
"""Seconds that the other processes have to end by themselves."""
PORTS = range(15000, 32000)
TAIL = 15
"""Lines of a failed process's output that are printed."""


def is_first_process() -> bool:
    """Whether this is the only or the first process of a run. The others neither print nor write."""
    return os.environ.get("RANK", "0") == "0"


def launch(arguments: Sequence[str], *, devices: int, nodes: int, folder: str) -> int:
    """Run `gatf ARGUMENTS`, which writes to `folder`, in `devices` processes on this node and return the exit code.

    With more nodes the same command runs on each, with NODE_RANK, MASTER_ADDR and MASTER_PORT in the environment.
    """
    if "WORLD_SIZE" in os.environ:
        raise UserError("torchrun has started several processes already: leave out --devices and --nodes")
    environment = _environment(devices, nodes)
    node = int(environment["GROUP_RANK"])
    command = [sys.executable, "-m", "gatf", *arguments]
    processes, words = [], []
    for local in range(devices):
        own = {"LOCAL_RANK": str(local), "RANK": str(node * devices + local)}
        words.append(tempfile.TemporaryFile("w+") if local else None)  # noqa: SIM115
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": words[local]} if local else {}
        processes.append(subprocess.Popen(command, env=environment | own, **quiet))
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}  # a terminal sends it to all of them
    previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, frame: _end(processes))
    try:
        return _wait(processes, words, folder)
    finally:
        _kill(processes)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _environment(devices: int, nodes: int) -> dict[str, str]:
    environment = dict(os.environ)
    if nodes == 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise UserError(
            f"--nodes {nodes} needs {', '.join(missing)} in the environment: run the same command on every node with "
            "NODE_RANK=0, 1, …, and MASTER_ADDR and MASTER_PORT of node 0"
        )
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch would warn about parameters without a gradient
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    sizes = {"WORLD_SIZE": str(devices * nodes), "LOCAL_WORLD_SIZE": str(devices)}
    return environment | sizes | {LAUNCHER: "1", "GROUP_RANK": environment["NODE_RANK"]}


def free_port() -> int:
    """A port on which nothing listens. It is below those that systems give to connections: another program could take
    one of those in the seconds that the first process needs to import torch."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", secrets.choice(PORTS)))
            return int(probe.getsockname()[1])


def _end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.terminate()


def _kill(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.kill()


def _wait(processes: Sequence[subprocess.Popen[Any]], words: Sequence[IO[str] | None], folder: str) -> int:
    """0, or the exit code of the process that failed first. Prints a sentence unless that process has printed one."""
    while not any(process.poll() for process in processes):
        if all(process.poll() == 0 for process in processes):
            return 0
        time.sleep(0.1)
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    _kill(processes)
    if codes[0] in (ExitCode.MISTAKE, ExitCode.INTERRUPTED):  # the first process has printed the reason
        return codes[0]
    failed, code = next((rank, code) for rank, code in enumerate(codes) if code and code != ExitCode.LOST)
    own = words[failed]
    if own is not None:
        own.seek(0)
        sys.stderr.writelines(own.readlines()[-TAIL:])
    reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    sys.stderr.write(
        f"gatf: process {failed} of {len(processes)} {reason}, so the others were stopped; saved checkpoints are kept. "
        f"Continue with: gatf run --resume {shlex.quote(folder)} --devices {len(processes)}\n"
    )
    return code if code > 0 else 1
