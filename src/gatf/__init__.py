"""Exemplar-free class-incremental learning: GATF and the methods it is compared with."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatf.incremental.classifier import IncrementalClassifier as IncrementalClassifier

__version__ = "0.1.0"
__all__ = ["IncrementalClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    """The estimator is imported when it is asked for: `gatf --help` must not wait for PyTorch."""
    if name == "IncrementalClassifier":
        from gatf.incremental.classifier import IncrementalClassifier

        return IncrementalClassifier
    raise AttributeError(f"module 'gatf' has no attribute '{name}'")
