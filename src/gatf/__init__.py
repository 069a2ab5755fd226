"""Exemplar-free class-incremental learning: GATF and the methods it is compared with.

The names in `PLACES` are the public API. They are imported on first use: `import gatf` does not import PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatf import geometry as geometry
    from gatf.config import load_config as load_config
    from gatf.data.scenario import Scenario as Scenario
    from gatf.errors import UserError as UserError
    from gatf.experiment import resume as resume
    from gatf.experiment import start as run  # noqa: F401
    from gatf.incremental.classifier import IncrementalClassifier as IncrementalClassifier
    from gatf.incremental.embedding import EmbeddingClassifier as EmbeddingClassifier
    from gatf.methods import METHODS as METHODS
    from gatf.methods.base import Method as Method
    from gatf.report.load import results as results

__version__ = "0.2.0"
PLACES = {
    "METHODS": "gatf.methods:METHODS",
    "EmbeddingClassifier": "gatf.incremental.embedding:EmbeddingClassifier",
    "IncrementalClassifier": "gatf.incremental.classifier:IncrementalClassifier",
    "Method": "gatf.methods.base:Method",
    "Scenario": "gatf.data.scenario:Scenario",
    "UserError": "gatf.errors:UserError",
    "geometry": "gatf.geometry:",
    "load_config": "gatf.config:load_config",
    "results": "gatf.report.load:results",
    "resume": "gatf.experiment:resume",
    "run": "gatf.experiment:start",
}
"""Module and attribute of each public name."""
__all__ = ["__version__", *PLACES]


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'gatf' has no attribute '{name}'")
    module, _, attribute = PLACES[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return __all__
