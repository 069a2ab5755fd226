"""`IncrementalClassifier`: a classifier that keeps learning classes, by scikit-learn's conventions."""

import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_html_repr
from torch import nn

from gatf.data.inputs import ImageInput, read_images, read_labelled
from gatf.devices import available_device
from gatf.errors import UserError, deprecated
from gatf.incremental.algebra import merged, without
from gatf.incremental.candidates import train_candidates
from gatf.incremental.strategy import Parameters, Strategy, choose_strategy
from gatf.model import file as model_file
from gatf.model import hub
from gatf.model.predict import forward, predictions_from
from gatf.model.predictions import Predictions
from gatf.model.record import UpdateRecord
from gatf.model.state import ForwardOutput, Label, Model
from gatf.training.context import RunContext


class IncrementalClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):
    """An image classifier that learns new classes for years without keeping old images.

    `fit` learns the first classes, `partial_fit` more, `predict` classifies among all of them. Images are arrays
    or tensors ([N, H, W], [N, H, W, C] or [N, C, H, W]; uint8, or floating-point numbers from 0 to 1), lists of paths
    or of PIL images, or a folder with one folder of images per class. Arrays must have one square size; files and PIL
    images are read in colour, cropped to the central square and resized. Pixels have 8 bits during training. A data set
    of Hugging Face or a `torch.utils.data.Dataset` of (image, label) brings its own labels; all its images are read.

    Parameters
    ----------
    method : str, default "gatf"
        Any exemplar-free method of `gatf methods`. Certificates need one that keeps Gaussians: gatf, adagauss or slda.
        These methods and ncm, ranpac, klda, acil and ds-al also accept new images of known classes.
    backbone : str or torch.nn.Module, default "auto"
        The network: "small", "resnet18", "resnet50", "mobilenet_v2", "efficientnet_lite0" (or 1 or 2) or "timm:MODEL",
        or a module that returns features [B, D]; a copy of it is trained. "auto" chooses from the first images: above
        16 pixels efficientnet_lite0 with ImageNet weights if the extra `pretrained` is installed; small images (below
        64 pixels) only if no parameter asks for training. Models of timm start with timm's weights from the hub. To use
        your own weights: settings={"backbone.pretrained": FILE}.
    adapt : "never", "auto", "always" or None
        How updates use a pretrained backbone. "never": it stays frozen, with linear discriminants (slda). "auto": it
        stays frozen unless training has a clearly higher expected accuracy over all classes: adapting it to the new
        images (by `method`), or in the first fit of small images a network from scratch. `report_` has the choice and
        both accuracies. "always": it is adapted without comparison. None: as in earlier updates, at first "never"; with
        parameters that matter only in training (`method`, `epochs`, ...) "auto". A network with random weights is
        always trained.
    minutes : float, default 5
        Time limit for training beside a frozen backbone in one update; if it would take longer, it stays frozen.
    width : int or "auto"
        Channels of the first stage of "small" and of ResNets; a number rules out the pretrained network of "auto".
    feature_dim : int or "auto"
        Dimension of the features.
    image_size : int or "auto"
        Side of the network's input in pixels; for files and PIL images only. A pretrained EfficientNet-Lite gets images
        of 128 to 224 pixels. Backbone, width, feature dimension and
        image size are fixed by the first fit.
    augment : list of str or "auto"
        Augmentation of training images, e.g. ["crop:4", "flip"].
    epochs : int or "auto"
        Epochs per fit or partial_fit; "auto" chooses from the number of images.
    batch_size : int or "auto"
        Images per step.
    held_out : float, default 0.1
        Share of each class's images that is held out of training to calibrate probabilities and to measure accuracy.
        Classes with fewer than five different images have none held out. On a frozen backbone all images are learnt,
        and each is classified by the classifier without it instead.
    unknown : float or None, default None
        If given, `predict` returns `unknown_label` for images unlike every class, at this rate of wrong rejections.
        The rate is guaranteed after `fit`, and after an update with at least five images of every class. After an
        update that adds classes it is an estimate for older ones; after an update with known classes only, no image
        is rejected. `predict` warns in both cases.
    unknown_label : str, int or None
        None means "unknown" for text labels and -1 for numbers.
    device : "auto", "cpu" or "cuda"
        "auto" uses a GPU if there is one.
    random_state : int, RandomState or None, default 0
        The same number gives the same model on the same machine; None draws a seed.
    settings : mapping or None
        Any other setting by its dotted name, e.g. {"method.anchor.ridge": 0.1, "optimisation.next.lr": 0.02}.
        `set_params` and grid searches take one of them as the parameter "settings__method.anchor.ridge".
    verbose : int, default 0
        1 prints the chosen settings and the record of each update.

    Attributes
    ----------
    classes_ : array
        The labels in the order of `predict_proba`'s columns: sorted after `fit`; each `partial_fit` appends its new
        ones, sorted, so that a column keeps its meaning.
    image_shape_ : tuple of int
        Channels, height and width of the network's input. (There is no `n_features_in_`, because files have a shape
        only when they are read.)
    report_ : UpdateRecord
        The record of the last update; print it.
    history_ : tuple of UpdateRecord
        The records of updates: the first and the newest ones.
    model_ : Model
        The state itself.

    Notes
    -----
    `partial_fit` with a known class transports its stored Gaussian into the new feature space, like all others, and
    merges it with the moments of the new images, weighted by the numbers of images. With slda, ncm, ranpac, klda
    and acil nothing is transported, and the result is the same as from all images at once. If `fit` or `partial_fit`
    fails or is interrupted, the classifier does not change.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits(return_X_y=True)
    >>> images = (images * 15).astype("uint8").reshape(-1, 8, 8)
    >>> clf = gatf.IncrementalClassifier(method="slda", epochs=1)
    >>> clf = clf.fit(images[labels < 2], labels[labels < 2])
    >>> clf = clf.partial_fit(images[labels == 2], labels[labels == 2])  # without the old images
    >>> clf.classes_.tolist(), clf.score(images[labels < 3], labels[labels < 3]) > 0.8
    ([0, 1, 2], True)
    """

    def __init__(
        self, *, method: str = "gatf", backbone: str | nn.Module = "auto", adapt: str | None = None,
        minutes: float = 5.0, width: int | str = "auto", feature_dim: int | str = "auto",
        image_size: int | str = "auto", augment: Any = "auto", epochs: int | str = "auto",
        batch_size: int | str = "auto", held_out: float = 0.1, unknown: float | None = None,
        unknown_label: Label | None = None, device: str = "auto", random_state: Any = 0,
        settings: Mapping[str, Any] | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.method = method
        self.backbone = backbone
        self.adapt = adapt
        self.minutes = minutes
        self.width = width
        self.feature_dim = feature_dim
        self.image_size = image_size
        self.augment = augment
        self.epochs = epochs
        self.batch_size = batch_size
        self.held_out = held_out
        self.unknown = unknown
        self.unknown_label = unknown_label
        self.device = device
        self.random_state = random_state
        self.settings = settings
        self.verbose = verbose

    # --- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep` also each given setting, as "settings__method.anchor.ridge"."""
        params: dict[str, Any] = super().get_params(deep)
        if deep and isinstance(self.settings, Mapping):
            params |= {f"settings__{path}": value for path, value in self.settings.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters; "settings__method.anchor.ridge" changes one setting and leaves the others."""
        named = [name for name in params if name.startswith("settings__")]
        dotted = {name.removeprefix("settings__"): params.pop(name) for name in named}
        super().set_params(**params)
        if dotted:
            self.settings = {**(self.settings or {}), **dotted}
        return self

    # --- learning

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the first classes and forget all earlier ones. `y` is left out where X is a folder or a data set."""
        return self._update(None, X, y)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn more classes; before any fit, learn the first ones."""
        return self._update(getattr(self, "model_", None), X, y)

    def _update(self, model: Model | None, X: Any, y: Any) -> Self:
        images, labels = read_labelled(X, y)
        strategy = choose_strategy(self._parameters(), model, images)
        if self.verbose:
            print(strategy.description)  # noqa: T201
        self.model_ = model_file.with_lineage(train_candidates(strategy, images, labels, RunContext()))
        if self.verbose:
            print(self.report_)  # noqa: T201
        return self

    def choose_strategy(self, images: ImageInput) -> Strategy:
        """What `partial_fit` would train on these images."""
        return choose_strategy(self._parameters(), getattr(self, "model_", None), images)

    def _parameters(self) -> Parameters:
        return Parameters.of(**self.get_params(deep=False))

    def merge(self, *others: "IncrementalClassifier") -> Self:
        """Add what other classifiers learnt, on the same frozen backbone or of the same encoder. The result classifies
        as if this one had learnt all their items."""
        self.model_ = merged([self._fitted(), *(other._fitted() for other in others)])
        return self

    def forget(self, label: Label, vectors: Any = None) -> str:
        """Remove a class; returns a statement of what remains of it. Given all `vectors` that the class was learnt
        from, the classifier is the one that never learnt it."""
        self.model_, remains = without(self._fitted(), label, vectors)
        return remains

    def upgrade(self, images: Any, backbone: str, labels: Any = None) -> Self:
        """Move the model to another pretrained backbone, with any recent images that both networks embed. No image of
        the learnt classes is needed; labels of some help. `report_` has the forecast."""
        from gatf.incremental.upgrade import upgrade_images

        self.model_ = upgrade_images(self._fitted(), read_images(images), backbone, labels).model
        return self

    # --- predictions

    def predict(self, X: Any, *, return_certificate: bool = False) -> Any:
        """The label of each image; with `return_certificate` also whether Theorem 2 of GATF certifies it.

        A certificate means that the transport of old classes, with the error measured at the last update, cannot have
        changed the prediction (see `Certifier.certificates`). It does not mean that the prediction is correct.
        """
        found = self.predictions(X, certificate=return_certificate)
        if found.warning is not None:
            warnings.warn(found.warning, UserWarning, stacklevel=2)
        return (found.labels, found.certified) if return_certificate else found.labels

    def predictions(self, X: Any, *, certificate: bool = False) -> Predictions:
        """Labels, probabilities and certificates of images from one forward pass."""
        return predictions_from(
            self._fitted(), self._forward(X), certificate=certificate, unknown=self.unknown,
            unknown_label=self.unknown_label,
        )  # fmt: skip

    def answers(self, X: Any, *, certificate: bool = False) -> Predictions:
        """Deprecated: `predictions`."""
        deprecated("IncrementalClassifier.answers", "predictions", removed_in="0.3")
        return self.predictions(X, certificate=certificate)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [N, classes] in the order of `classes_`, calibrated on the images that updates held out."""
        return predictions_from(self._fitted(), self._forward(X)).probabilities

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`, accurate also for probabilities that round to 0."""
        model, outputs = self._fitted(), self._forward(X)
        logs: np.ndarray = torch.log_softmax(outputs.scores.double() / model.temperature, dim=1).numpy()
        return logs

    def transform(self, X: Any) -> np.ndarray:
        """Features [N, S] of images; an update can change the feature space."""
        features = self._forward(X, features=True).features
        assert features is not None
        return np.asarray(features)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`."""
        dim = self._fitted().method.feature_dim
        return np.array([f"{type(self).__name__.lower()}{number}" for number in range(dim)], dtype=object)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores [N, classes] of the method's own rule, higher is better; for two classes their difference, [N]."""
        scores = self._forward(X).scores.numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def _forward(self, X: Any, *, features: bool = False) -> ForwardOutput:
        return forward(self._fitted(), X, features=features)

    # --- state

    @property
    def classes_(self) -> np.ndarray:
        return np.array(self._fitted().labels)

    @property
    def image_shape_(self) -> tuple[int, ...]:
        return self._fitted().preprocessing.shape

    @property
    def report_(self) -> UpdateRecord:
        return self._fitted().history[-1]

    @property
    def history_(self) -> tuple[UpdateRecord, ...]:
        return self._fitted().history

    def save(self, path: str | Path) -> None:
        """Write the model as one file; if that fails, an existing file stays unchanged."""
        model_file.save(self._fitted(), Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", backbone: nn.Module | None = None) -> Self:
        """Read a model that `save` or `gatf learn` wrote. Runs no code from the file: a backbone that was passed as a
        module must be passed again as `backbone`, with any weights."""
        model = model_file.load(Path(path), device=available_device(device), backbone=backbone)
        return cls.from_model(model, device=device)

    def push_to_hub(self, target: str | Path, *, private: bool = False) -> str:
        """Upload the model and a card that describes it to a repository of the Hugging Face hub (`owner/name`), or copy
        them to a folder (`./shop`, or any `Path`). Creates the repository if needed, `private` if so asked. Returns
        the address. An edited card stays unchanged. The hub needs the extra `hub` and a login."""
        with TemporaryDirectory() as made:
            self.save(Path(made) / "model.gatf")
            return hub.push(Path(made) / "model.gatf", target, private=private).place

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, revision: str | None = None, device: str = "auto", backbone: nn.Module | None = None
    ) -> Self:
        """Read a model from a repository of the hub (at a `revision`) or a folder, written by `push_to_hub` or `gatf
        push`. Only the model file is fetched, and as with `load` no code in it runs."""
        return cls.load(hub.find(source, revision=revision), device=device, backbone=backbone)

    @classmethod
    def from_model(cls, model: Model, *, device: str = "auto") -> Self:
        """An estimator for a model, with the method and seed of the model."""
        if model.preprocessing.takes_vectors:
            raise UserError("this model classifies vectors, not images; load it with EmbeddingClassifier.load")
        method = model.adapts or model.config.method.name
        estimator = cls(method=method, random_state=model.config.seed, device=device)
        estimator.model_ = model
        return estimator

    def _fitted(self) -> Model:
        model = getattr(self, "model_", None)
        if model is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments before "
                "using this estimator."
            )
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "model_", None) is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _html_repr(self) -> str:
        """scikit-learn's HTML representation, and below it a summary of the model."""
        own: str = estimator_html_repr(self)
        if not self.__sklearn_is_fitted__():
            return own
        last = self.history_[-1]
        rows = {
            "classes": ", ".join(map(str, self.classes_[:10])) + (", …" if len(self.classes_) > 10 else ""),
            "known": f"{len(self.classes_)} classes, {last.number + 1} updates, the last on {last.date}",
            "input": self._fitted().preprocessing.description,
            "method": f"{self.model_.config.method.name}, {last.bytes_per_class:,} bytes per class",
            "last update": str(last),
        }
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f'{own}<table style="white-space: pre-line">{cells}</table>'
