"""Default settings, chosen from the images.

Settings of the user take precedence. The choices follow the shipped recipes `digits` and `cifar100-cpu`.
"""

from collections.abc import Mapping
from typing import Any

from gatf.config import RunConfig, load_config, untrusted_parts
from gatf.config.legacy import current_path
from gatf.data.decode import SMALL
from gatf.data.inputs import ImageInput
from gatf.errors import UserError
from gatf.methods import method_class
from gatf.methods.parts.closed_form import ClosedForm
from gatf.nets.pretrained import install_line, packaged_weights
from gatf.plugins import consent
from gatf.settings import LITE0, LITES, PACKAGE, VECTORS, StageConfig, flat
from gatf.training.precision import chosen

SMALLEST_VIEW, LARGEST_VIEW = 128, 224
"""Sides to which images are enlarged or reduced for a pretrained network (experiments/photo_networks.py)."""
HALVINGS = 32
"""A pretrained network halves its image five times."""
FIXED_COST = 3.0
"""Seconds of an update that do not depend on the number of images."""
COST_OF_TRAINING = 9.0
"""Cost of training on an image, in forward passes of the network: forward and backward passes, and forward passes of
the old network and for the anchor. Updates of birds with EfficientNet-Lite0 at 96 and 128 pixels took 9 to 11."""
TRAINING = ("optimisation.", "method.", "data.augment", "backbone.bottleneck")
"""Settings that matter only where a network is trained."""
FEATURES = 64
"""Dimension of the features, except for tiny images."""
TINY_SIDE = 16
"""Images up to this side get the small network; larger ones up to `SMALL` get a ResNet with a 3×3 stem."""
ANCHORS_PER_UPDATE = 30
"""How often GATF estimates its anchor during an update."""
FIXED = (
    "method.name", "method.preset", "method.readout", "method.covariance.kind",
    "method.covariance.rank", "method.distillation", "method.projections", "method.gamma", "method.unit_features",
    "method.keep_scatter",
)  # fmt: skip
"""Settings that fix the structure of a model, in addition to the sections backbone and scenario."""


def first_config(
    *, method: str, shape: tuple[int, ...], images: int, device: str, seed: int, overrides: Mapping[str, Any],
    features: int | None = None,
) -> RunConfig:  # fmt: skip
    """The settings of a new model; `overrides` are dotted paths, `features` is the dimension of a given network's."""
    side = shape[1]
    tiny = side <= TINY_SIDE
    pretrained = is_pretrained(overrides)
    _check_method(method)
    if overrides.get("data.test_crop") is not None:
        raise UserError("data.test_crop is for runs alone: a model gets whole images; omit it or crop them yourself")
    usual = 32 if tiny else FEATURES
    bottleneck = None if features is not None and features <= usual else usual
    sections: dict[str, Any] = {
        "data": {"name": "folder", "augment": augmentation(side)},
        "backbone": {
            "name": "small" if tiny else "resnet18",
            "width": 64 if pretrained else 32 if tiny else width(images),
            "stem": "3x3" if side <= SMALL and not pretrained else "7x7",
            "bottleneck": bottleneck,
        },
        "seed": seed,
        "device": device,
    }
    dim = dict(overrides).get("backbone.bottleneck") or bottleneck or features or 0
    sections["optimisation"] = {
        name: stage(images, dim, first=name == "first", pretrained=pretrained) for name in ("first", "next")
    }
    if method == "gatf":
        # an update may have few images: the anchor is shrunk towards the identity
        sections["method"] = {"name": "gatf", "anchor": {"refresh": refresh(images), "kind": "identity"}}
    elif method == "gatf-release":
        sections["method"] = {"name": "gatf-release", "anchor": {"refresh": refresh(images)}}
    return _usable_later(load_config(sections, method=method, overrides=dict(overrides)))


def vector_config(*, method: str, seed: int, overrides: Mapping[str, Any]) -> RunConfig:
    """The settings of a new model of vectors."""
    _check_method(method)
    if getattr(method_class(method), "learn", None) is not ClosedForm.learn:
        raise UserError(f"method '{method}' needs images, not sums of vectors; use slda, ncm, ranpac, klda or acil")
    sections = {"data": {"name": "folder"}, "backbone": {"name": VECTORS, "bottleneck": None}, "seed": seed}
    return _usable_later(load_config({**sections, "device": "cpu"}, method=method, overrides=dict(overrides)))


def is_pretrained(overrides: Mapping[str, Any]) -> bool:
    """Whether these settings name a pretrained network."""
    usual = PACKAGE if overrides.get("backbone.name") in LITES else None
    return overrides.get("backbone.pretrained", usual) is not None


def backbone_for(given: ImageInput) -> str | None:
    """The pretrained network, if its weights are installed and images are not tiny; None: the image size decides."""
    return LITE0 if given.shorter_side > TINY_SIDE and packaged_weights() is not None else None


def pretrained_shape(name: str, given: ImageInput) -> tuple[int, ...]:
    """The input shape of a pretrained network. EfficientNet-Lite and MobileNetV2 get the images' own size, rounded down
    to a multiple of 32, within bounds. Models of timm may accept 224 only, and weights of a ResNet may be for any
    size."""
    if name not in (*LITES, "mobilenet_v2"):
        return given.natural_shape()
    side = min(max(given.shorter_side // HALVINGS * HALVINGS, SMALLEST_VIEW), LARGEST_VIEW)
    return 3, side, side


def next_config(config: RunConfig, *, images: int, overrides: Mapping[str, Any]) -> RunConfig:
    """The settings of a later update: the model's, with epochs and batch size for this number of images, unless the
    preset sets them.

    The structure of the model is fixed; an override of such a setting must repeat its value.
    """
    _check_method(config.method.name)
    base = config.model_dump(mode="json")
    for path, value in flat(overrides).items():
        path = current_path(path, config.method.name)
        fixed = path.split(".")[0] in ("backbone", "scenario") or path in FIXED
        if fixed and value != _at(base, path):
            raise UserError(f"'{path}' was fixed when the model was first fitted and cannot change in an update")
    kept = base["optimisation"]["next"]
    of_preset = config.method.preset_layer(base["method"].get("preset")).get("optimisation", {}).get("next", {})
    pretrained = config.backbone.pretrained is not None
    chosen = stage(images, config.backbone.bottleneck or 0, first=False, pretrained=pretrained) | of_preset
    kept |= {name: chosen[name] for name in ("epochs", "batch_size")}
    if config.method.name in ("gatf", "gatf-release"):
        base["method"]["anchor"]["refresh"] = refresh(images)
    # the preset is the model's own, whose values may have been changed since: naming it again does not bring them back
    changes = {path: value for path, value in overrides.items() if path != "method.preset"}
    return _usable_later(load_config(base, method=config.method.name, overrides=changes))


def _usable_later(config: RunConfig) -> RunConfig:
    """The config, unless it names a plugin that loading the model's file would refuse."""
    _refuse_plugins(config.model_dump(mode="json"))
    return config


def _refuse_plugins(values: Mapping[str, Any]) -> None:
    if parts := list(untrusted_parts(values)):
        kind, name = parts[0]
        raise UserError(
            f"{kind} '{name}' is not part of gatf, so the model's file would be refused: if you trust that code, set "
            f"the environment variable {consent(name for _, name in parts)} here and wherever the model is used, or "
            "use gatf run"
        )


def _check_method(method: str) -> None:
    _refuse_plugins({"method": {"name": method}})  # before it is imported
    if not method_class(method).exemplar_free:
        raise UserError(f"method '{method}' needs all earlier images at every update; choose another method")


def _at(values: Any, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def width(images: int) -> int:
    """Channels of the first stage: a wider network needs more images."""
    return 16 if images < 5_000 else 32 if images < 50_000 else 64


def epochs(images: int) -> int:
    """About 200 000 training images in total, between 30 and 60 epochs."""
    return min(max(200_000 // max(images, 1), 30), 60)


def fine_tuning_epochs(images: int) -> int:
    """About 6 000 training images in total, between 5 and 15 epochs: a pretrained network needs few."""
    return min(max(6_000 // max(images, 1), 5), 15)


def refresh(images: int) -> int:
    return max(1, epochs(images) // ANCHORS_PER_UPDATE)


def stage(images: int, dim: int, *, first: bool, pretrained: bool = False) -> dict[str, Any]:
    """Optimisation of one update. A batch must have more images than there are feature dimensions."""
    batch = 64 if images < 2_000 else 128 if images < 20_000 else 256
    while batch <= dim:
        batch *= 2
    few_steps = images < 50 * batch
    chosen = StageConfig(
        epochs=fine_tuning_epochs(images) if pretrained else epochs(images), batch_size=batch,
        lr=0.1 if first else 0.01, clip=10.0 if few_steps else 1.0,
    )  # fmt: skip
    return chosen.model_dump()


def augmentation(side: int) -> list[str]:
    """Augmentation steps: tiny images are shifted by a pixel, large ones cropped and mirrored like photos."""
    if side <= TINY_SIDE:
        return ["crop:1"]
    return ["crop:4", "flip"] if side <= SMALL else [f"resized_crop:{side}", "flip"]


def describe(
    config: RunConfig, *, shape: tuple[int, ...], images: int, first: bool, seconds: float, trains: bool = True
) -> str:
    """One line for users: network, size, number of images, expected time."""
    stage = config.optimisation.stage(0 if first else 1)
    made = f"backbone {config.backbone}, {shape[1]}×{shape[2]} {'grey' if shape[0] == 1 else 'colour'} pixels"
    made += f", method {config.method.name}; {images} images"
    if trains:
        how = chosen(config.precision, config.device)[1] if stage.epochs else None
        made += f", {stage.epochs} epochs, batches of {stage.batch_size}" + ("" if how is None else f"; {how}")
    about = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    advice = ""
    if first and config.backbone.pretrained is None and shape[1] > TINY_SIDE and packaged_weights() is None:
        advice = f"; `{install_line(LITE0)}` makes this faster and better"
    return f"{made}; about {about}{advice}"
