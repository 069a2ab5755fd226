"""`IncrementalClassifier`: a classifier that keeps learning classes, by scikit-learn's conventions."""

import secrets
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

from gatf.config import RunConfig
from gatf.data.inputs import ImageInput, read_labelled
from gatf.devices import available_device
from gatf.errors import UserError
from gatf.incremental import adapt, defaults, update
from gatf.incremental.update import Conditions
from gatf.model import file as model_file
from gatf.model import hub
from gatf.model.answers import answer, forward
from gatf.model.record import UpdateRecord
from gatf.model.said import Answers
from gatf.model.state import FROZEN_METHOD, ForwardOutput, Label, Model
from gatf.nets import TIMM
from gatf.nets.foreign import constructor_name, probe_dim
from gatf.settings import HUB, INSIDE, PYTHON


class IncrementalClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):
    """An image classifier that learns new classes for years without keeping old images.

    `fit` learns the first classes, `partial_fit` further ones, `predict` answers among all of them. Images are arrays
    or tensors ([N, H, W], [N, H, W, C] or [N, C, H, W]; uint8, or floating-point numbers from 0 to 1), lists of paths
    or of PIL images, or a folder with one folder of images per class. Arrays must have one square size; files and PIL
    images are read in colour, cut to the central square and resized. Pixels are kept with 8 bits while learning.

    Parameters
    ----------
    method : str, default "gatf"
        Any exemplar-free method of `gatf methods`. Certificates need one that keeps Gaussians: gatf, adagauss or slda.
        Going on with known classes can these, ncm, ranpac and klda.
    backbone : str or torch.nn.Module, default "auto"
        The network: "small", "resnet18", "resnet50", "mobilenet_v2", "efficientnet_lite0" or "timm:MODEL", or a module
        that returns features [B, D], of which a copy is trained. Here and below "auto" chooses from the first images:
        photos (colour, 64 pixels or more) get efficientnet_lite0 with ImageNet's weights where the extra `pretrained`
        is installed. timm's models begin with timm's weights, from the hub. Weights of your own:
        settings={"backbone.pretrained": FILE}.
    adapt : "auto", "never" or "always"
        What updates do with a pretrained network. "auto": the frozen network with linear discriminants (slda) answers,
        unless the network adapted to the new images (by `method`) promises clearly more over all classes; `report_`
        says which and by how much. "never": it stays frozen. "always": it is adapted, without comparing. A network that
        starts from nothing is always trained.
    minutes : float, default 5
        Time for adapting a pretrained network in one update; where it would take longer, it is left as it is.
    width : int or "auto"
        Channels of the first stage of "small" and of ResNets; a number rules out the pretrained network of "auto".
    feature_dim : int or "auto"
        Dimension of the features.
    image_size : int or "auto"
        Side of the images that the network gets, in pixels; for files and PIL images only. Network, width, features and
        image size stay as they are after the first fit.
    augment : list of str or "auto"
        What is done to training images, e.g. ["crop:4", "flip"].
    epochs : int or "auto"
        Of each fit or partial_fit; "auto" chooses from the number of images.
    batch_size : int or "auto"
        Images per step, of each fit or partial_fit.
    held_out : float, default 0.1
        Share of each class's images that is not trained on but kept back, during the fit, to calibrate probabilities
        and to measure accuracy; of a class with fewer than five images none.
    unknown : float or None, default None
        If given, `predict` answers `unknown_label` to images unlike every class, at this rate of wrong rejections.
        The rate is promised after `fit`, and after an update with at least five images of every class. After an update
        that adds classes it is an estimate for older ones, and `predict` warns; after one that only goes on with known
        classes nothing is rejected, and `predict` warns.
    unknown_label : str, int or None
        None stands for "unknown" where labels are text, and for -1 where they are numbers.
    device : "auto", "cpu" or "cuda"
        Where it is computed; "auto" takes a GPU where there is one.
    random_state : int, RandomState or None, default 0
        The same number gives the same model on the same machine; None draws one.
    settings : mapping or None
        Any other setting by its dotted name, e.g. {"method.ridge": 0.1, "optimisation.next.lr": 0.02}. One of them is
        the parameter "settings__method.ridge" of `set_params`, and of a grid search.
    verbose : int, default 0
        1 prints the chosen settings and what each update did.

    Attributes
    ----------
    classes_ : array
        The labels in the order of `predict_proba`'s columns: sorted after `fit`; each `partial_fit` appends its new
        ones, sorted, so that a column keeps its meaning.
    image_shape_ : tuple of int
        Channels, height and width of the images as the network gets them. (There is no `n_features_in_`: an image has a
        shape, and files have one only when they are read.)
    report_ : UpdateRecord
        What the last update did; print it.
    history_ : tuple of UpdateRecord
        What each update did.
    model_ : Model
        The state itself.

    Notes
    -----
    `partial_fit` with a class that is known: its stored Gaussian is first carried into the new feature space like all
    others, then merged with the moments of the new images, weighted by the number of images of either; the class stays
    one class. With slda, ncm, ranpac and klda nothing is carried, and the result is that of all images at once. If
    `fit` or `partial_fit` fails or is interrupted, the classifier stays as it was.
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
        """Parameters by name; with `deep` also each given setting, as "settings__method.ridge"."""
        params: dict[str, Any] = super().get_params(deep)
        if deep and isinstance(self.settings, Mapping):
            params |= {f"settings__{path}": value for path, value in self.settings.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters; "settings__method.ridge" changes one setting and leaves the others."""
        named = [name for name in params if name.startswith("settings__")]
        dotted = {name.removeprefix("settings__"): params.pop(name) for name in named}
        super().set_params(**params)
        if dotted:
            self.settings = {**(self.settings or {}), **dotted}
        return self

    # --- learning

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the first classes, forgetting whatever was known. `y` is left out where X is a folder."""
        given, answers = read_labelled(X, y)
        return self.learn(given, answers, Conditions(), afresh=True)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn more classes; without a fit before, learn the first ones."""
        given, answers = read_labelled(X, y)
        return self.learn(given, answers, Conditions())

    def learn(self, given: ImageInput, answers: np.ndarray, run: Conditions, *, afresh: bool = False) -> Self:
        """`partial_fit` (or `fit`, when `afresh`) of images already read, under the given circumstances."""
        model = None if afresh else getattr(self, "model_", None)
        if self.verbose:
            print(self.describe(given, afresh=afresh))  # noqa: T201
        if self._chooses(model, given):
            self.model_ = adapt.learn(
                self._candidates(model, given), given, answers, adapts=self._adapts(model), held_out=self._held_out(),
                minutes=self.minutes, run=run,
            )  # fmt: skip
        else:
            config = self._config(model, given)
            module = self.backbone if isinstance(self.backbone, nn.Module) else None
            start = model if model is not None else update.new_model(config, given, self._shape(given), module)
            self.model_ = update.learn(start, given, answers, config=config, held_out=self._held_out(), run=run)
        self.model_ = model_file.with_lineage(self.model_)
        if self.verbose:
            print(self.report_)  # noqa: T201
        return self

    def describe(self, given: ImageInput, *, afresh: bool = False) -> str:
        """One line: what is chosen for learning these images."""
        model = None if afresh else getattr(self, "model_", None)
        shape = self.shape_for(given, afresh=afresh)
        config, then, trains = self._config(model, given), "", True
        if self._chooses(model, given):
            candidates = self._candidates(model, given)
            config = candidates.adapted_config or candidates.frozen_config
            trains = candidates.adapted_config is not None
            then = "; the pretrained network stays as it is (adapt=never)"
            if trains:
                then = "; kept only if it promises more than the pretrained network as it is (adapt=auto)"
        told = defaults.describe(config, shape=shape, images=len(given), first=model is None, trains=trains)
        return told + then

    def shape_for(self, given: ImageInput, *, afresh: bool = False) -> tuple[int, int, int]:
        """Channels, height and width in which these images are learnt."""
        model = None if afresh else getattr(self, "model_", None)
        return self._shape(given) if model is None else model.preprocessing.shape

    # --- an update that chooses

    def _chooses(self, model: Model | None, given: ImageInput) -> bool:
        """Whether this update compares a pretrained network with itself adapted, or leaves it frozen."""
        if self.adapt not in ("auto", "never", "always"):
            raise UserError(f"adapt is 'auto', 'never' or 'always', not {self.adapt!r}")
        if self.adapt == "always":
            return False
        if model is not None:
            return model.adapts is not None
        pretrained = not isinstance(self.backbone, nn.Module) and defaults.is_pretrained(
            self._first_overrides(given, self._shape(given))
        )
        if self.adapt == "never" and adapt.can_adapt(self.method) and not pretrained:
            raise UserError("adapt='never' needs a pretrained network: one from nothing has to be trained")
        return pretrained and adapt.can_adapt(self.method)

    def _adapts(self, model: Model | None) -> str:
        return self.method if model is None or model.adapts is None else model.adapts

    def _candidates(self, model: Model | None, given: ImageInput) -> adapt.Candidates:
        frozen = model if model is None or model.frozen is None else model.frozen
        shape = self._shape(given) if model is None else model.preprocessing.shape
        config = self._config(frozen, given, FROZEN_METHOD, shape)
        if frozen is None:
            frozen = update.new_model(config, given, shape)
        if self.adapt == "never":
            return adapt.Candidates(frozen, config, None)
        adapted = model if model is not None and model.frozen is not None else None
        adapted_config = self._config(adapted, given, self._adapts(model), shape)
        return adapt.Candidates(frozen, config, adapted_config, adapted)

    def _config(
        self,
        model: Model | None,
        given: ImageInput,
        method: str | None = None,
        shape: tuple[int, int, int] | None = None,
    ) -> RunConfig:
        """The settings of an update of this model, or of a new one by this method for images of this shape."""
        if model is not None:
            overrides = self._overrides()
            if model.adapts is not None or method is not None:
                overrides = _for_method(overrides, model.config.method.name, self.method)
            config = defaults.next_config(model.config, images=len(given), overrides=overrides)
            return config.model_copy(update={"device": self.device, "seed": model.config.seed})
        shape = shape or self._shape(given)
        overrides = _for_method(self._first_overrides(given, shape), method or self.method, self.method)
        return defaults.first_config(
            method=method or self.method, shape=shape, images=len(given), device=self.device, seed=self._seed(),
            overrides=overrides,
            features=probe_dim(self.backbone, shape) if isinstance(self.backbone, nn.Module) else None,
        )  # fmt: skip

    def _overrides(self) -> dict[str, Any]:
        """What was set, as dotted paths."""
        overrides: dict[str, Any] = dict(self.settings or {})
        for name, path in PATHS.items():
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                value = PYTHON + constructor_name(value)
            if not isinstance(value, str) or value != "auto":
                overrides |= dict.fromkeys(path, value)
        return overrides

    def _first_overrides(self, given: ImageInput, shape: tuple[int, int, int]) -> dict[str, Any]:
        """The same with the network that is chosen for these images, where that is not left to their size."""
        overrides = self._overrides()
        if isinstance(self.backbone, nn.Module):
            return {**overrides, "backbone.pretrained": INSIDE if getattr(self.backbone, "pretrained", False) else None}
        if overrides.get("backbone.name", "").startswith(TIMM):
            return {"backbone.pretrained": HUB, **overrides}
        free = not any(name in overrides for name in ("backbone.name", "backbone.width", "backbone.pretrained"))
        chosen = defaults.backbone_for(given) if free and shape[1] >= defaults.PHOTO_SIDE else None
        return overrides if chosen is None else {**overrides, "backbone.name": chosen}

    def _shape(self, given: ImageInput) -> tuple[int, int, int]:
        if self.image_size == "auto":
            natural = given.natural_shape()
            if isinstance(self.backbone, nn.Module):
                return natural
            overrides = self._first_overrides(given, natural)
            if defaults.is_pretrained(overrides):
                return defaults.pretrained_shape(overrides.get("backbone.name", ""), given)
            return natural
        if not isinstance(self.image_size, (int, np.integer)) or given.are_pixels:
            raise UserError(
                "image_size is a number of pixels and for files and PIL images only; resize arrays yourself"
            )
        return 3, int(self.image_size), int(self.image_size)

    def _held_out(self) -> float:
        if not 0 <= self.held_out < 1:
            raise UserError(f"held_out must be at least 0 and below 1, not {self.held_out!r}")
        return float(self.held_out)

    def _seed(self) -> int:
        if self.random_state is None:
            return secrets.randbelow(2**31)
        if isinstance(self.random_state, (np.random.RandomState, np.random.Generator)):
            draw = getattr(self.random_state, "integers", None) or self.random_state.randint  # type: ignore[union-attr]
            return int(draw(2**31 - 1))
        return int(self.random_state)

    # --- answers

    def predict(self, X: Any, *, return_certificate: bool = False) -> Any:
        """The label of each image; with `return_certificate` also whether Theorem 2 of GATF guarantees it.

        A certificate says that the transport of old classes, with the error measured at the last update, cannot have
        changed the answer (see `Judge.certificates`); it does not say that the answer is right.
        """
        answers = self.answers(X, certificate=return_certificate)
        if answers.warning is not None:
            warnings.warn(answers.warning, UserWarning, stacklevel=2)
        return (answers.labels, answers.certified) if return_certificate else answers.labels

    def answers(self, X: Any, *, certificate: bool = False) -> Answers:
        """Everything there is to say about images, from one look at them."""
        model, outputs = self._fitted(), self._forward(X)
        return answer(model, outputs, certificate=certificate, unknown=self.unknown, unknown_label=self.unknown_label)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [N, classes] in the order of `classes_`, calibrated on the images the last update kept back."""
        return answer(self._fitted(), self._forward(X)).probabilities

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`, also of probabilities too small to be told from 0."""
        model, outputs = self._fitted(), self._forward(X)
        logs: np.ndarray = torch.log_softmax(outputs.scores.double() / model.temperature, dim=1).numpy()
        return logs

    def transform(self, X: Any) -> np.ndarray:
        """Features [N, S] of images, as the network sees them now: an update changes what they mean."""
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
        """Write the model as one file; it appears complete, or what was there stays."""
        model_file.save(self._fitted(), Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", backbone: nn.Module | None = None) -> Self:
        """Read a model that `save` or `gatf learn` wrote. Runs no code from the file: a network that was handed over in
        Python must be given again as `backbone`, with any weights."""
        model = model_file.load(Path(path), device=available_device(device), backbone=backbone)
        return cls.from_model(model, device=device)

    def push_to_hub(self, target: str | Path, *, private: bool = False) -> str:
        """Put the model and a card that describes it into a repository of the Hugging Face hub (`owner/name`), made if
        there is none, or into a folder (`./shop`, or any `Path`). Returns where it is. A card that was edited there
        stays; `private` is for a repository that is made. The hub needs the extra `hub` and its own login."""
        with TemporaryDirectory() as made:
            self.save(Path(made) / "model.gatf")
            return hub.push(Path(made) / "model.gatf", target, private=private).place

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, revision: str | None = None, device: str = "auto", backbone: nn.Module | None = None
    ) -> Self:
        """Read a model that `push_to_hub` or `gatf push` put into a repository (at a `revision`) or a folder. The model
        file alone is fetched, and as with `load` nothing in it is run."""
        return cls.load(hub.find(source, revision=revision), device=device, backbone=backbone)

    @classmethod
    def from_model(cls, model: Model, *, device: str = "auto") -> Self:
        """An estimator around a model; its parameters are those the model was made with."""
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
        """scikit-learn's own picture, and below it what the model knows."""
        own: str = estimator_html_repr(self)
        if not self.__sklearn_is_fitted__():
            return own
        last = self.history_[-1]
        channels, height, width = self.image_shape_
        rows = {
            "classes": ", ".join(map(str, self.classes_[:10])) + (", …" if len(self.classes_) > 10 else ""),
            "known": f"{len(self.classes_)} classes, {last.number + 1} updates, the last on {last.date}",
            "images": f"{height}×{width} {'grey' if channels == 1 else 'colour'}",
            "method": f"{self.model_.config.method.name}, {last.bytes_per_class:,} bytes kept for each class",
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
"""Parameters and the settings they stand for."""


def _for_method(overrides: dict[str, Any], method: str, meant: str) -> dict[str, Any]:
    """Settings for one of the two candidates: those of the method that was asked for are not the other's."""
    if method == meant:
        return overrides
    own = ("method.", "backbone.bottleneck", "optimisation.")
    return {path: value for path, value in overrides.items() if not path.startswith(own)}
