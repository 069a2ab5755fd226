"""scikit-learn's own checks, on rows drawn as images; what does not apply is listed with its reason."""

import math
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from gatf import EmbeddingClassifier, IncrementalClassifier
from gatf.training import memory

SMALLEST = 8


class RowsAsImages(IncrementalClassifier):
    """Rows of features become images: values squashed into (0, 1), repeated over the lines of a square whose side tells
    how many features there were. All else is the estimator's."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.positive_only = True, False
        return tags

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(as_images(X), y)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Any:
        return super().partial_fit(as_images(X), y)

    def _forward(self, X: Any, **asked: Any) -> Any:
        self._fitted()
        return super()._forward(as_images(X), **asked)


def as_images(rows: Any) -> Any:
    if scipy.sparse.issparse(rows):
        return rows
    values = np.asarray(rows)
    if values.ndim != 2 or values.dtype.kind not in "iuf" or values.shape[1] == 0:
        return values
    values = values.astype(float)
    values[np.isinf(values)] = np.nan
    side = SMALLEST + values.shape[1]
    lines = np.resize(np.arange(values.shape[1]), side)  # a feature a line: mirror images, which are stored too, agree
    return np.repeat((1 / (1 + np.exp(-values)))[:, lines, None], side, axis=2)


def expected_failures(estimator: IncrementalClassifier) -> dict[str, str]:
    if isinstance(estimator, EmbeddingClassifier):
        any_time = "classes may come at any time, so partial_fit takes no list of them"
        return {
            "check_estimators_partial_fit_n_features": any_time,
            "check_n_features_in_after_fitting": any_time,
            "check_dtype_object": "vectors of objects raise a UserError, which is a ValueError, not a TypeError",
        }
    shapes = "an image has a shape, not a number of features; another size is refused, see test_estimator_inputs"
    return {
        "check_n_features_in": shapes,
        "check_n_features_in_after_fitting": shapes,
        "check_estimators_empty_data_messages": shapes + "; no images at all are refused there, too",
        "check_dtype_object": "an array of objects is a list of paths or PIL images here, not numbers",
        "check_methods_subset_invariance": "asks for 1e-7; float32 convolutions sum in an order that batches change",
    }


TINY = RowsAsImages(
    backbone="small", width=8, feature_dim=8, epochs=12, batch_size=32, device="cpu", augment=[],
    settings={"method.samples": 50, "method.rotation": False},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@parametrize_with_checks([TINY, EmbeddingClassifier()], expected_failed_checks=expected_failures)
def test_scikit_learn_check(estimator: IncrementalClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", [TINY, EmbeddingClassifier()], ids=["images", "vectors"])
def test_exempt_checks_exist(estimator: IncrementalClassifier) -> None:
    from sklearn.utils.estimator_checks import estimator_checks_generator

    names = {getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(estimator)}
    assert set(expected_failures(estimator)) <= names
    assert math.isclose(len(names), 55, abs_tol=15)


def process_state() -> dict[str, Any]:
    """What a library must leave as its host process set it."""
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "import path": list(sys.path),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "draws": (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()),  # noqa: NPY002
    }


def test_fit_does_not_change_its_host_process(
    digit_images: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = digit_images
    tuned: list[bool] = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: tuned.append(True))
    IncrementalClassifier(epochs=1, device="cpu").fit(images[:60], labels[:60])  # imports on demand happen here
    before = process_state()
    IncrementalClassifier(epochs=1, device="cpu").fit(images[:60], labels[:60]).predict(images[:3])
    assert process_state() == before
    assert not tuned
