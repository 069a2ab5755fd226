"""`gatf doctor`: versions, devices and data of this machine, and problems with them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from gatf import __version__
from gatf.errors import ExitCode

PACKAGES = (
    "torch", "numpy", "pydantic", "typer", "rich", "safetensors", "lightning-fabric", "scikit-learn",
    "matplotlib", "datasets", "huggingface-hub", "pyarrow", "timm", "onnx", "onnxruntime",
)  # fmt: skip
OPTIONAL = {"datasets", "huggingface-hub", "pyarrow", "timm", "onnx", "onnxruntime"}
FETCHED = ("resnet18", "resnet50", "mobilenet_v2")
"""Networks whose weights come from no package."""


def doctor(
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(help="Train a tiny problem on this device and on the CPU, compare, and measure its speed."),
    ] = None,
) -> None:
    """Print versions, devices, cache folders, available weights and data, and report problems."""
    if device is not None:
        from gatf.cli.device_check import check

        raise typer.Exit(ExitCode.DONE if check(device, typer.echo) else ExitCode.FAILED)
    problems = examine(typer.echo)
    for problem in problems:
        typer.echo(f"problem: {problem}")
    typer.echo("no problems found" if not problems else f"{len(problems)} problem(s) found")
    raise typer.Exit(ExitCode.FAILED if problems else ExitCode.DONE)


def examine(say: Callable[[str], object]) -> list[str]:
    """Report the installation; return one sentence per problem."""
    from importlib.metadata import PackageNotFoundError, version

    problems = []
    say(f"python            {sys.version.split()[0]} ({sys.executable})")
    say(f"gatf              {__version__} ({Path(__file__).parents[1]})")
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed" + (" (optional)" if package in OPTIONAL else "")
            if package not in OPTIONAL:
                problems.append(f"{package} is not installed; run pip install gatf-cil")
        say(f"{package:<17} {found}")
    problems += _devices(say) + _folders(say)
    _weights(say)
    return problems + _data(say)


def _devices(say: Callable[[str], object]) -> list[str]:
    try:
        import torch
    except ImportError as error:
        return [f"torch does not import ({error}); reinstall it for this machine"]
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    say(f"cpu               {cores} core{'s' * (cores > 1)}, torch uses {threads} thread{'s' * (threads > 1)}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            say(f"cuda:{index}            {torch.cuda.get_device_name(index)}")
    else:
        say("cuda              none")
    return []


def _folders(say: Callable[[str], object]) -> list[str]:
    from gatf.data.cache import cache_folder

    problems = []
    for name, folder in (("cache", cache_folder()), ("runs", Path("runs").resolve())):
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        writable = os.access(nearest, os.W_OK)
        say(f"{name:<17} {folder}" + ("" if writable else " (not writable)"))
        if not writable:
            problems.append(f"the {name} folder {folder} cannot be written")
    named = os.environ.get("GATF_DATA")
    say(f"GATF_DATA         {named or 'not set'}")
    if named and not Path(named).expanduser().is_dir():
        problems.append(f"GATF_DATA names {named}, which is not a folder; correct or unset it")
    return problems


def _weights(say: Callable[[str], object]) -> None:
    from gatf.nets.pretrained import install_line, packaged_weights
    from gatf.settings import LITES

    for name in LITES:
        found = packaged_weights(name)
        say(
            f"weights {name}: "
            + (f"ImageNet, available ({found})" if found else f"not installed ({install_line(name)})")
        )
    say(f"weights {', '.join(FETCHED)}: from a file or hub id that you name (backbone.pretrained)")


def _data(say: Callable[[str], object]) -> list[str]:
    """Which data can be used; data in a folder of its own name that cannot is a problem."""
    from gatf.data.benchmarks import BENCHMARKS
    from gatf.data.listing import fetch_folder
    from gatf.data.sources import SOURCES
    from gatf.settings import DataConfig

    problems = []
    for name, entry in SOURCES.items():
        config = DataConfig(name=name)
        reason = entry.missing(config)
        own = fetch_folder(config)
        if reason is None:
            status = "available"
        elif name in BENCHMARKS and own.is_dir() and any(own.iterdir()):
            status = "unusable"
            problems.append(f"{name} is in {own} but cannot be used: {reason}")
        else:
            _, own_data, how = reason.partition(" is for your own data: ")
            status = f"your own: {how}" if own_data else f"not available ({reason})"
        say(f"data {name:<12} {status}")
    return problems
