"""Methods outside the package, named by their import path: `package.module:Class`."""

import sys
from importlib import import_module
from pathlib import Path

from gatf.errors import UserError, near_misses
from gatf.methods.base import Method


def is_outside(name: str) -> bool:
    """Whether a name is an import path rather than the name of a shipped method."""
    return ":" in name


def imported(name: str) -> type[Method]:
    """Import the class at `package.module:Class`, searching the current directory first, as `python -m` does.

    Importing runs the module. The name must therefore come from the user, a recipe or a run's own config, never from a
    model file.
    """
    path, _, wanted = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except Exception as error:  # the module is anyone's code, so anything can be raised
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{path}.".startswith(f"{absent}."):
            raise UserError(
                f"method '{name}': there is no module '{absent}', neither in {here} nor installed"
            ) from None
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"method '{name}': importing '{path}' failed with {told}") from error
    if not hasattr(module, wanted):
        theirs = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == path]
        hint = near_misses(wanted, theirs) if theirs else ""
        raise UserError(f"method '{name}': module '{path}' has no '{wanted}'{hint}")
    return _checked(getattr(module, wanted), name)


def _checked(found: object, name: str) -> type[Method]:
    """What was found, if a run can use it."""
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method '{name}': that is not a subclass of gatf.methods.Method")
    if found.__abstractmethods__:
        raise UserError(f"method '{name}': the class leaves out {', '.join(sorted(found.__abstractmethods__))}")
    if found.Config.model_fields["name"].annotation is not str:
        raise UserError(f"method '{name}': {found.Config.__name__} restricts its field 'name'; leave the field out")
    return found
