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

from gatf.data.inputs import ImageInput, read_labelled
from gatf.devices import available_device
from gatf.incremental.candidates import train_candidates
from gatf.incremental.strategy import Parameters, Strategy, choose_strategy
from gatf.model import file as model_file
from gatf.model import hub
from gatf.model.predict import forward, predictions_from
from gatf.model.predictions import Predictions
from gatf.model.record import UpdateRecord
from gatf.model.state import ForwardOutput, Label, Model
from gatf.nets.foreign import constructor_name
from gatf.settings import PYTHON
from gatf.training.context import RunContext


class IncrementalClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):
    """An image classifier that learns new classes for years without keeping old images.

    `fit` learns the first classes, `partial_fit` more, `predict` classifies among all of them. Images are arrays
    or tensors ([N, H, W], [N, H, W, C] or [N, C, H, W]; uint8, or floating-point numbers from 0 to 1), lists of paths
    or of PIL images, or a folder with one folder of images per class. Arrays must have one square size; files and PIL
    images are read in colour, cropped to the central square and resized. Pixels have 8 bits during training.

    Parameters
    ----------
    method : str, default "gatf"
        Any exemplar-free method of `gatf methods`. Certificates need one that keeps Gaussians: gatf, adagauss or slda.
        These methods and ncm, ranpac and klda also accept new images of known classes.
    backbone : str or torch.nn.Module, default "auto"
        The network: "small", "resnet18", "resnet50", "mobilenet_v2", "efficientnet_lite0" or "timm:MODEL", or a module
        that returns features [B, D]; a copy of it is trained. Here and below "auto" chooses from the first images:
        photos (colour, 64 pixels or more) get efficientnet_lite0 with ImageNet weights if the extra `pretrained` is
        installed. Models of timm start with timm's weights from the hub. To use your own weights:
        settings={"backbone.pretrained": FILE}.
    adapt : "auto", "never" or "always"
        How updates use a pretrained backbone. "auto": it stays frozen, with linear discriminants (slda), unless
        adapting it to the new images (by `method`) has a clearly higher expected accuracy over all classes; `report_`
        tells the choice and both accuracies. "never": it stays frozen. "always": it is adapted without comparison. A
        network with random weights is always trained.
    minutes : float, default 5
        Time limit for adapting a pretrained backbone in one update; if it would take longer, it stays frozen.
    width : int or "auto"
        Channels of the first stage of "small" and of ResNets; a number rules out the pretrained network of "auto".
    feature_dim : int or "auto"
        Dimension of the features.
    image_size : int or "auto"
        Side of the network's input in pixels; for files and PIL images only. Backbone, width, feature dimension and
        image size are fixed by the first fit.
    augment : list of str or "auto"
        Augmentation of training images, e.g. ["crop:4", "flip"].
    epochs : int or "auto"
        Epochs per fit or partial_fit; "auto" chooses from the number of images.
    batch_size : int or "auto"
        Images per step.
    held_out : float, default 0.1
        Share of each class's images that is held out of training to calibrate probabilities and to measure accuracy.
        Classes with fewer than five different images have none held out.
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
    merges it with the moments of the new images, weighted by the numbers of images. With slda, ncm, ranpac and klda
    nothing is transported, and the result is the same as from all images at once. If `fit` or `partial_fit` fails or is
    interrupted, the classifier does not change.
    """

    def __init__(
        self, *, method: str = "gatf", backbone: str | nn.Module = "auto", adapt: str = "auto", minutes: float = 5.0,
        width: int | str = "auto", feature_dim: int | str = "auto", image_size: int | str = "auto",
        augment: Any = "auto", epochs: int | str = "auto", batch_size: int | str = "auto", held_out: float = 0.1,
        unknown: float | None = None,
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
        """Learn the first classes and forget all earlier ones. `y` is left out where X is a folder."""
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

    def image_shape_for(self, images: ImageInput) -> tuple[int, int, int]:
        """Channels, height and width in which `partial_fit` would learn these images."""
        return self._parameters().shape(images, getattr(self, "model_", None))

    def _parameters(self) -> Parameters:
        overrides: dict[str, Any] = dict(self.settings or {})
        for name, paths in PATHS.items():
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                value = PYTHON + constructor_name(value)
            if not isinstance(value, str) or value != "auto":
                overrides |= dict.fromkeys(paths, value)
        return Parameters(
            method=self.method, backbone=self.backbone, adapt=self.adapt, minutes=self.minutes,
            image_size=self.image_size, held_out=self.held_out, device=self.device, random_state=self.random_state,
            overrides=overrides,
        )  # fmt: skip

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
    def image_shape_(self) -> tuple[int, int, int]:
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
        channels, height, width = self.image_shape_
        rows = {
            "classes": ", ".join(map(str, self.classes_[:10])) + (", …" if len(self.classes_) > 10 else ""),
            "known": f"{len(self.classes_)} classes, {last.number + 1} updates, the last on {last.date}",
            "images": f"{height}×{width} {'grey' if channels == 1 else 'colour'}",
            "method": f"{self.model_.config.method.name}, {last.bytes_per_class:,} bytes per class",
            "last update": str(last),
        }
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f'{own}<table style="white-space: pre-line">{cells}</table>'


PATHS = {
    "backbone": ("backbone.name",),
    "width": ("backbone.width",),
    "feature_dim": ("backbone.bottleneck",),
    "augment": ("data.augment",),
    "epochs": ("optimisation.first.epochs", "optimisation.next.epochs"),
    "batch_size": ("optimisation.first.batch_size", "optimisation.next.batch_size"),
}
"""Parameters and the settings they set."""
