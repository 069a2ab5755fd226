"""`EmbeddingClassifier`: a classifier of vectors that keeps learning classes, by scikit-learn's conventions."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from gatf.data.inputs import from_dataset
from gatf.data.vectors import VectorBatch, VectorInput
from gatf.errors import UserError
from gatf.incremental import defaults
from gatf.incremental.candidates import standard_error
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.gather import Gathered, gather, gather_on_cluster
from gatf.incremental.strategy import drawn_seed
from gatf.incremental.update import new_model, update_with_vectors
from gatf.methods.parts.closed_form import ClosedForm
from gatf.model import file as model_file
from gatf.model.predict import check_vectors
from gatf.model.state import Label, Model
from gatf.training.context import RunContext
from gatf.training.loop import Interrupted

UNIT = 0.01
"""Vectors whose lengths differ from 1 by less than this are at unit length already."""


class EmbeddingClassifier(IncrementalClassifier):
    """A classifier of embeddings that learns new classes without keeping old vectors.

    `fit` learns the first classes, `partial_fit` more classes or more vectors of known ones, `predict` classifies among
    all of them. Vectors are an array, tensor or Arrow column [N, D], or the path of .npz or parquet files, which are
    read in batches. The result does not depend on the order of the vectors or on how they are split into calls.

    Parameters
    ----------
    method : "slda", "ncm", "ranpac" or "klda"
        The classifier: linear discriminants, nearest means, ridge regression on random features, or discriminants on
        random Fourier features. Other methods train a network.
    encoder : str or None
        The name of the encoder, e.g. "clip-vit-b32@2". The model records it and refuses vectors that name another.
    normalize : bool or "auto"
        Whether vectors are divided by their lengths. "auto": the first fit chooses by the accuracy on held-out vectors.
    held_out : float, default 0.1
        Share of each class's vectors that is held out to calibrate probabilities and to measure accuracy. The model
        learns them after that. Classes with fewer than five different vectors have none held out.
    unknown : float or None
        If given, `predict` returns `unknown_label` for vectors unlike every class, at this rate of wrong rejections.
    unknown_label : str, int or None
        None means "unknown" for text labels and -1 for numbers.
    random_state : int, RandomState or None, default 0
        The seed of the random features of ranpac and klda.
    settings : mapping or None
        Any other setting by its dotted name, e.g. {"method.shrinkage": 0.1}.
    engine : "local" or "ray"
        Files are read here, or each by a worker of a Ray cluster (extra `cluster`).
    verbose : int, default 0
        1 prints the record of each update.

    Attributes
    ----------
    n_features_in_ : int
        The dimension of the vectors. The other attributes are those of `IncrementalClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> vectors, labels = np.random.default_rng(0).normal(size=(200, 16)), np.repeat(["cat", "dog"], 100)
    >>> vectors[labels == "dog"] += 2
    >>> clf = gatf.EmbeddingClassifier().fit(vectors, labels)
    >>> clf = clf.partial_fit(vectors[:50] - 4, ["fox"] * 50)  # without the old vectors
    >>> clf.predict(vectors[:1] - 4).tolist()
    ['fox']
    """

    def __init__(
        self, *, method: str = "slda", encoder: str | None = None, normalize: bool | str = "auto",
        held_out: float = 0.1, unknown: float | None = None, unknown_label: Label | None = None, random_state: Any = 0,
        settings: Mapping[str, Any] | None = None, engine: str = "local", verbose: int = 0,
    ) -> None:  # fmt: skip
        self.method = method
        self.encoder = encoder
        self.normalize = normalize
        self.held_out = held_out
        self.unknown = unknown
        self.unknown_label = unknown_label
        self.random_state = random_state
        self.settings = settings
        self.engine = engine
        self.verbose = verbose

    def _update(self, model: Model | None, X: Any, y: Any) -> Self:
        if y is None:
            X, y = from_dataset(X, vectors=True)
        if y is None and not isinstance(X, str) and not hasattr(X, "__fspath__"):
            raise UserError("requires y to be passed, but the target y is None: give one label for each vector")
        names = getattr(X, "columns", None)
        self.model_ = self.updated(model, VectorInput(X, y), RunContext())
        if names is not None and all(isinstance(name, str) for name in names):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        elif model is None and hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if self.verbose:
            print(self.report_)  # noqa: T201
        return self

    def updated(self, model: Model | None, given: VectorInput, context: RunContext) -> Model:
        """The model after learning these vectors; None: a new one."""
        if not 0 <= self.held_out < 1:
            raise UserError(f"held_out must be at least 0 and below 1, not {self.held_out!r}")
        if self.engine not in ("local", "ray"):
            raise UserError(f"engine is 'local' or 'ray', not {self.engine!r}")
        if self.engine == "ray" and not given.paths:
            raise UserError("engine 'ray' reads files; give their path or pattern, or leave it out for arrays")
        encoder = given.encoder if self.encoder is None else self.encoder
        if model is None:
            candidates = self._candidates(given, encoder)
        else:
            check_vectors(model, given.dim, encoder)
            config = defaults.next_config(model.config, images=1, overrides=dict(self.settings or {}))
            candidates = [(model, config.model_copy(update={"device": "cpu", "seed": model.config.seed}))]
        first = candidates[0][0]
        memory = _closed_form(first).memory
        gathered = Gathered(
            [_Embed(start) for start, _ in candidates], scatter=memory.has_scatter, parts=memory.has_parts,
            known=first.labels,
        )  # fmt: skip
        if self.engine == "ray":
            gather_on_cluster(given, gathered, context.stop)
            if context.stop():
                raise Interrupted
        else:
            gather(self._until_stopped(given, context), gathered)
        found = [
            update_with_vectors(
                start, gathered, which, config=config, held_out=float(self.held_out), context=context
            )
            for which, (start, config) in enumerate(candidates)
        ]  # fmt: skip
        return model_file.with_lineage(_better(*found))

    def upgrade(self, old: Any, new: Any, labels: Any = None, *, encoder: str | None = None) -> Self:
        """Move the model to another encoder by pairs: row i of `old` and `new` has the vectors of one item by the old
        and the new encoder. Any items serve; labels of some help. `report_` has the forecast."""
        from gatf.incremental.upgrade import upgrade_vectors

        self.model_ = upgrade_vectors(self._fitted(), old, new, labels, encoder=encoder).model
        self.encoder = encoder
        return self

    def _until_stopped(self, given: VectorInput, context: RunContext) -> Any:
        for batch in given.batches():
            if context.stop():
                raise Interrupted
            yield batch

    def _candidates(self, given: VectorInput, encoder: str | None) -> list[tuple[Model, Any]]:
        """New models without classes and their settings: with vectors as they are, at unit length, or both."""
        if self.normalize not in (True, False, "auto"):
            raise UserError(f"normalize is True, False or 'auto', not {self.normalize!r}")
        first = next(given.batches())
        choices = [bool(self.normalize)]
        if self.normalize == "auto":
            choices = [False] if _at_unit_length(first) else [False, True]
        seed = drawn_seed(self.random_state)
        overrides = {"backbone.encoder": encoder, **(self.settings or {})}
        found = []
        for unit in choices:
            config = defaults.vector_config(
                method=self.method, seed=seed, overrides={"backbone.unit_length": unit, **overrides}
            )
            found.append((new_model(config, None, (first.vectors.shape[1],)), config))
        return found

    @property
    def n_features_in_(self) -> int:
        return self._fitted().preprocessing.shape[0]

    @classmethod
    def from_model(cls, model: Model, *, device: str = "auto") -> Self:
        """An estimator for a model, with the method and seed of the model."""
        if not model.preprocessing.takes_vectors:
            raise UserError("this model classifies images, not vectors; load it with IncrementalClassifier.load")
        backbone = model.config.backbone
        estimator = cls(
            method=model.config.method.name, encoder=backbone.encoder, normalize=backbone.unit_length,
            random_state=model.config.seed,
        )  # fmt: skip
        estimator.model_ = model
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        tags.input_tags.positive_only = False
        return tags


class _Embed:
    """What a model's method sums of vectors."""

    def __init__(self, model: Model) -> None:
        self._method = _closed_form(model)

    @torch.no_grad()
    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        return self._method.embedded(self._method.backbone(vectors))


def _closed_form(model: Model) -> ClosedForm[Any]:
    assert isinstance(model.method, ClosedForm)
    return model.method


def _at_unit_length(batch: VectorBatch) -> bool:
    lengths = batch.vectors.double().norm(dim=1)
    return bool(((lengths - 1).abs() < UNIT).all())


def _better(plain: Model, unit: Model | None = None) -> Model:
    """Unit length where it is more accurate on held-out vectors by more than one standard error."""
    if unit is None:
        return plain
    (_, one), (_, other) = plain.history[-1].measured, unit.history[-1].measured
    if one is None or other is None:
        return plain
    return unit if other > one + standard_error(plain.history[-1]) else plain
