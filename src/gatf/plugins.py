"""Parts from outside the package: named by an import path, `package.module:attribute`, or registered by an installed
package as an entry point.

Importing a part runs its module. The name must come from the user, a recipe or a run's own config. A model file that
names one is refused, unless the user lists the name in the environment variable `GATF_TRUST`.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from gatf.errors import UserError, near_misses

GROUPS = {
    "method": "gatf.methods",
    "data source": "gatf.sources",
    "backbone": "gatf.backbones",
    "augmentation": "gatf.augmentations",
    "readout": "gatf.readouts",
}
"""The entry point group of each kind of part."""
TRUST = "GATF_TRUST"
"""Environment variable: names of parts that model files may ask for, separated by commas."""
OTHER_PREFIXES = ("timm:", "python:")
"""Of names with a colon that are not import paths."""


def registered(kind: str) -> dict[str, EntryPoint]:
    """The parts of this kind that installed packages register, by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUPS[kind])}


def listed() -> Iterator[tuple[str, str, str]]:
    """Kind, name and origin of each part that installed packages register."""
    for kind in GROUPS:
        for name, entry in sorted(registered(kind).items()):
            package = "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
            yield kind, name, f"{package} ({entry.value})"


def is_outside(kind: str, name: str, shipped: Iterable[str]) -> bool:
    """Whether a name is an import path, or a part that an installed package registers."""
    return name not in shipped and not name.startswith(OTHER_PREFIXES) and (":" in name or name in registered(kind))


def consent(names: Iterable[str]) -> str:
    """The value that trusts these names besides those that are trusted already."""
    trusted = [name for name in os.environ.get(TRUST, "").split(",") if name]
    return f"{TRUST}={','.join([*trusted, *names])}"


def find(kind: str, name: str, shipped: Mapping[str, Any], *, hint: str = "") -> Any:
    """The shipped part, the one that an installed package registers, or the one at an import path, which is imported.

    `hint` replaces the list of known names in the error for an unknown name.
    """
    if name in shipped:
        return shipped[name]
    if not is_outside(kind, name, shipped):
        known = [*shipped, *registered(kind)]
        raise UserError(f"no {kind} is called '{name}'{hint or near_misses(name, known)}")
    entry = registered(kind).get(name)
    return _imported(kind, name, entry.value if entry is not None else name)


def _imported(kind: str, name: str, place: str) -> Any:
    """Import the attribute at `package.module:attribute`, from the current directory first, as `python -m` does."""
    path, _, wanted = place.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except Exception as error:  # the module is anyone's code, so anything can be raised
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{path}.".startswith(f"{absent}."):
            raise UserError(
                f"{kind} '{name}': there is no module '{absent}', neither in {here} nor installed"
            ) from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{kind} '{name}': importing '{path}' failed with {reason}") from error
    if not hasattr(module, wanted):
        theirs = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == path]
        hint = near_misses(wanted, theirs) if theirs else ""
        raise UserError(f"{kind} '{name}': module '{path}' has no '{wanted}'{hint}")
    return getattr(module, wanted)


def call(kind: str, name: str, part: Callable[..., Any], *arguments: Any) -> Any:
    """What a part makes of the arguments; its errors as one sentence."""
    try:
        return part(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{kind} '{name}' failed: {' '.join(f'{type(error).__name__}: {error}'.split())}") from error
