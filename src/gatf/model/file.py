"""A `Model` as a file, and back. What a file claims is checked against what it holds before a network is built."""

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatf import __version__, plugins
from gatf.config import RunConfig, untrusted_parts, validated
from gatf.data.decode import CENTRAL_SHARE
from gatf.data.inputs import SMALLEST_SIDE
from gatf.data.pixels import CHANNELS
from gatf.data.preprocessing import Preprocessing
from gatf.errors import CannotWrite, UserError
from gatf.io import container
from gatf.io.container import Damaged
from gatf.io.run_folder import RunFolder
from gatf.methods import METHODS, Method
from gatf.methods.parts.gaussian import transports_gaussians
from gatf.model.calibration import NO_CALIBRATION
from gatf.model.novelty import NO_NOVELTY
from gatf.model.record import UpdateRecord, remembered
from gatf.model.state import FROZEN_METHOD, Label, Model
from gatf.model.upgrade import upgraded_config, upgraded_state
from gatf.nets import BACKBONES
from gatf.session import build_method
from gatf.settings import INSIDE, PYTHON, VECTORS, Strict

METHOD, FROZEN = "method.", "frozen."
LARGEST_SIDE, LARGEST_DIM = 4096, 2**20
LINEAGE_DIGITS = 16
OWN = {"counts": torch.int64, "calibration": torch.float64, "errors": torch.float64, "strangeness": torch.float32}
"""Tensors that are not the method's; "strangeness" has the novelty scores."""


class Other(Strict):
    """The differing part of a second model in the file."""

    model_config = ConfigDict(strict=True)

    config: dict[str, Any]
    temperature: float


class Description(Strict):
    """The JSON part of a model file."""

    model_config = ConfigDict(strict=True)

    gatf: str
    """Version of the library that wrote it."""
    config: dict[str, Any]
    shape: list[int]
    mean: list[float]
    std: list[float]
    labels: list[str | int | bool]
    temperature: float
    history: list[dict[str, Any]]
    lineage: str = ""
    """Names the first fit that the model goes back to: the same for all versions of one model, and for no other.
    Files of earlier versions do not have it."""
    updates: int = 0
    """Fits and partial fits; `history` does not keep every one. Files of earlier versions do not have it."""
    adapts: str | None = None
    """The method that may adapt a pretrained network, where updates choose."""
    adapt: Literal["never", "auto"] = "never"
    """Whether later updates try to adapt it; "never" is not written."""
    frozen: Other | None = None
    """The same classes on the network as it was before it was adapted; its tensors begin with `frozen.`."""
    central_share: float = Field(CENTRAL_SHARE, gt=0, le=1)
    """Of the shorter side of large images, what the network sees; the usual share is not written."""


def save(model: Model, path: Path, before: Callable[[str], None] = lambda digest: None) -> None:
    """Write the model; what was at the path stays valid until the new file is complete, was read back and predicts.

    `before` receives the new file's digest just before the file takes its place.
    """
    if not model.labels:
        raise UserError("there is nothing to save: the model has learnt no class yet")
    if _is_fetched(model.config.backbone.name):
        raise UserError("backbones from the hub cannot be saved by name: loading a model must not fetch code")

    def check(written: Path) -> None:
        from_python = model.config.backbone.name.startswith(PYTHON)
        backbone = copy.deepcopy(model.method.backbone) if from_python else None
        refused = any(untrusted_parts(model.config.model_dump(mode="json")))
        _check_predicts(written, path, outside=refused, backbone=backbone)
        before(container.inspect(written).digest)

    container.write(path, *_contents(with_lineage(model)), check=check)


def check_room(model: Model, path: Path, labels: Sequence[Label]) -> None:
    """Refuse, before training, an update with these classes whose model could not be written: its description would be
    too long, or the disk has no room for a second file."""
    known = set(model.labels)
    added = tuple(label for label in labels if label not in known)
    record = model.history[-1].model_copy(
        update={"added": added, "revisited": tuple(label for label in labels if label in known)}
    )
    later = replace(model, labels=(*model.labels, *added), history=remembered((*model.history, record)))
    tensors, description = _contents(later)
    container.check_room(path, tensors, description)
    size, free = path.stat().st_size if path.exists() else 0, shutil.disk_usage(path.parent).free
    if free < size:
        raise CannotWrite(
            f"{path} cannot be updated: the new file takes about {size / 1e6:.1f} MB, and its disk has "
            f"{free / 1e6:.1f} MB left; make room first"
        )


def with_lineage(model: Model) -> Model:
    """The model with a lineage: its own, or the digest of its tensors and labels where it has none yet, which is the
    same whenever the same images are learnt with the same settings."""
    if model.lineage:
        return model
    content = container.digest_of({name: tensor.detach().cpu() for name, tensor in _tensors(model).items()})
    lineage = _short_digest([content, model.labels])
    frozen = model.frozen and replace(model.frozen, lineage=lineage)
    return replace(model, lineage=lineage, frozen=frozen)


def _first_lineage(history: tuple[UpdateRecord, ...]) -> str:
    """The lineage of a file that was written without one: of its first record, which every version of it has."""
    first = history[0].model_dump(mode="json", include={"number", "date", "added", "images", "held_out", "seconds"})
    return _short_digest(first)


def _short_digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=LINEAGE_DIGITS // 2).hexdigest()


def _contents(model: Model) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a model's file."""
    frozen = model.frozen
    description = Description(
        gatf=__version__,
        config=_config_to_keep(model),
        shape=list(model.preprocessing.shape),
        mean=list(model.preprocessing.mean),
        std=list(model.preprocessing.std),
        labels=list(model.labels),
        temperature=model.temperature,
        history=[record.model_dump(mode="json") for record in model.history],
        lineage=model.lineage,
        updates=model.updates,
        adapts=model.adapts,
        adapt="auto" if model.adapt == "auto" else "never",
        frozen=None if frozen is None else Other(config=_config_to_keep(frozen), temperature=frozen.temperature),
        central_share=model.preprocessing.central_share,
    )
    tensors = _tensors(model)
    if frozen is not None:
        tensors |= {FROZEN + name: value for name, value in _tensors(frozen).items()}
    usual = {"central_share": CENTRAL_SHARE, "adapt": "never"}
    usual_names = {name for name, value in usual.items() if getattr(description, name) == value}
    return tensors, description.model_dump(mode="json", exclude=usual_names)


def _config_to_keep(model: Model) -> dict[str, Any]:
    config = model.config.model_dump(mode="json")
    config["backbone"]["pretrained"] = INSIDE if getattr(model.method.backbone, "pretrained", False) else None
    config["data"]["root"] = None  # where the images lay is nobody's concern
    config["device"] = "auto"
    return config


def _tensors(model: Model) -> dict[str, Tensor]:
    tensors = {METHOD + name: value for name, value in model.method.state_dict().items()}
    own = {"counts": model.counts, "calibration": model.calibration, "errors": model.errors}
    measured = {"measured": model.measured} if len(model.measured) else {}
    return tensors | own | measured | {"strangeness": model.novelty}


def _check_predicts(written: Path, path: Path, *, outside: bool, backbone: nn.Module | None) -> None:
    """Refuse a file that does not load, or whose model's scores of black, white and noisy images are not finite."""
    try:
        if outside:  # no code is run because a file names it
            container.read(written)
            return
        model = load(written, backbone=backbone)
    except Damaged as error:
        raise UserError(f"the new {path} would be of no use ({error.reason}), so it was not written") from None
    noise = torch.randn(2, *model.preprocessing.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = model.method.scores(torch.cat([torch.full_like(noise[:1], fill) for fill in (-1, 1)] + [noise]))
    if not bool(scores.isfinite().all()):
        raise UserError(f"the new {path} would be of no use (its scores are not finite), so it was not written")


def model_path(path: Path) -> Path:
    """The model file that is meant: of a run's folder, the one the run wrote at its end."""
    written = RunFolder(path).model
    return written if written.is_file() else path


def load(path: Path, device: str = "cpu", *, backbone: nn.Module | None = None, answering: bool = False) -> Model:
    """Read a model, or the one in a run's folder. Runs no code of the file's; a damaged, foreign or newer file is a
    `UserError`, and so is one whose network came from Python and is not given again as `backbone`. `answering`: without
    the frozen model beside an adapted one, which only an update needs."""
    path = model_path(path)
    tensors, header = container.read(path)
    described, config, history = _described(path, header)
    given = _demanded(path, config, backbone)
    own = {name: value for name, value in tensors.items() if not name.startswith(FROZEN)}
    model = _model(path, described, config, history, own, backbone=given, first_format=header.format == 1)
    others = {name.removeprefix(FROZEN): value for name, value in tensors.items() if name.startswith(FROZEN)}
    if described.frozen is None and others:
        raise Damaged(path, "it holds tensors that belong to nothing")
    if described.frozen is not None and not answering:
        frozen_config = _settings(path, described.frozen.config)
        if not described.frozen.temperature > 0 or not math.isfinite(described.frozen.temperature):
            raise Damaged(path, "its description contradicts itself")
        frozen = _model(path, described, frozen_config, history, others, backbone=None)
        frozen = replace(frozen, temperature=described.frozen.temperature)
        frozen.method.to(device).eval()
        model = replace(model, frozen=frozen)
    model.method.to(device).eval()
    adapt = "auto" if model.frozen is not None else described.adapt
    return replace(model, adapts=described.adapts, adapt=adapt)


def _settings(path: Path, config: dict[str, Any]) -> RunConfig:
    """The settings of a second model in the file, checked."""
    _refuse_code(path, config)
    try:
        found = validated(config)
    except (ValidationError, UserError, RecursionError, AttributeError, TypeError) as error:
        raise Damaged(path, f"its settings do not fit this version of gatf ({str(error)[:200]})") from None
    if found.backbone.pretrained != INSIDE or _is_fetched(found.backbone.name) or found.method.name != FROZEN_METHOD:
        raise Damaged(path, "its second model is not a frozen one")
    return found


def _model(
    path: Path, described: Description, config: RunConfig, history: tuple[UpdateRecord, ...],
    tensors: dict[str, Tensor], *, backbone: nn.Module | None, first_format: bool = False,
) -> Model:  # fmt: skip
    """A model of the file, from its tensors; on the CPU."""
    shape, tensors = tuple(described.shape), dict(tensors)
    if "distances" in tensors:  # up to format 2, novelty was the distance alone
        tensors = {name: value for name, value in tensors.items() if name != "distances"}
        tensors |= {"strangeness": NO_NOVELTY, "calibration": NO_CALIBRATION}
        history = (*history[:-1], history[-1].model_copy(update={"rejection": "withdrawn"}))
    for name, dtype in OWN.items():
        if name not in tensors or tensors[name].dtype != dtype or tensors[name].ndim != 1 + (name == "strangeness"):
            raise Damaged(path, f"its '{name}' are missing or not what they should be")
    if len(tensors["counts"]) != len(described.labels) or len(tensors["errors"]) not in (0, len(described.labels)):
        raise Damaged(path, "it has another number of classes than labels")
    if tensors["calibration"].shape != NO_CALIBRATION.shape or tensors["strangeness"].shape[1] not in (1, 2):
        raise Damaged(path, "its 'calibration' or 'strangeness' is not what it should be")
    measured = tensors.pop("measured", torch.zeros(0, 3, dtype=torch.float64))
    if measured.dtype != torch.float64 or measured.shape not in ((0, 3), (len(described.labels), 3)):
        raise Damaged(path, "its 'measured' is not what it should be")
    if not bool((measured.isfinite() & (measured >= 0)).all()):
        raise Damaged(path, "its 'measured' is not finite and positive")
    if bool((tensors["counts"] < 0).any()) or bool((tensors["errors"] < 0).any()):
        raise Damaged(path, "its 'counts' or 'errors' are negative")
    state = {name.removeprefix(METHOD): value for name, value in tensors.items() if name.startswith(METHOD)}
    if len(state) + len(OWN) != len(tensors):
        raise Damaged(path, "it holds tensors that belong to nothing")
    if first_format:
        state = upgraded_state(config.method.name, state)
    method = _method(path, config, shape, state, classes=len(described.labels), backbone=backbone)
    preprocessing = Preprocessing(shape, tuple(described.mean), tuple(described.std), described.central_share)
    return Model(
        config, preprocessing, method, tuple(described.labels), tensors["counts"], described.temperature,
        tensors["calibration"], tensors["errors"], tensors["strangeness"], history, measured=measured,
        lineage=described.lineage,
    )  # fmt: skip


def _demanded(path: Path, config: RunConfig, backbone: nn.Module | None) -> nn.Module | None:
    """The backbone that was given, if and only if the file's came from Python."""
    name = config.backbone.name
    if not name.startswith(PYTHON):
        if backbone is not None:
            raise UserError(f"{path} brings its own network, {name}: leave out backbone")
        return None
    if backbone is None:
        raise UserError(
            f"{path} was made with a network from Python, {name.removeprefix(PYTHON)[:80]}, and no code is run because "
            "a file names it: IncrementalClassifier.load(path, backbone=module) takes it"
        )
    return backbone


def describe(path: Path) -> tuple[Description, RunConfig, tuple[UpdateRecord, ...], container.Header]:
    """The checked description of a file's model, without building it."""
    path = model_path(path)
    header = container.inspect(path)
    return (*_described(path, header), header)


def _described(path: Path, header: container.Header) -> tuple[Description, RunConfig, tuple[UpdateRecord, ...]]:
    model = header.model
    _refuse_code(path, model.get("config"))
    try:
        described = Description.model_validate(model)
        history = tuple(UpdateRecord.model_validate(record) for record in described.history)
        config = validated(upgraded_config(described.config) if header.format == 1 else described.config)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise Damaged(path, f"its description does not fit this version of gatf (at '{where[:80]}')") from None
    except (UserError, RecursionError, AttributeError, TypeError) as error:
        raise Damaged(path, f"its settings do not fit this version of gatf ({str(error)[:200]})") from None
    updates = history[-1].number + 1 if history else 0
    if history:
        found = {"updates": described.updates or updates, "lineage": described.lineage or _first_lineage(history)}
        described = described.model_copy(update=found)
    sound = (
        _sound_input(described, vectors=config.backbone.name == VECTORS)
        and all(math.isfinite(value) for value in (*described.mean, *described.std, described.temperature))
        and min((*described.std, described.temperature)) > 0
        and len(described.labels) > 0
        and len({(type(label), label) for label in described.labels}) == len(described.labels)
        and len({type(label) for label in described.labels}) == 1
        and described.updates == updates > 0
        and (described.adapts is None or described.adapts in METHODS)
    )
    if not sound:
        raise Damaged(path, "its description contradicts itself")
    if config.backbone.pretrained not in (None, INSIDE) or _is_fetched(config.backbone.name):
        raise Damaged(path, "it asks for weights from elsewhere, which a model must not")
    return described, config, history


def _sound_input(described: Description, *, vectors: bool) -> bool:
    """Whether shape and normalisation are those of square images, or of vectors."""
    shape, normalisation = described.shape, (len(described.mean), len(described.std))
    if vectors:
        return len(shape) == 1 and 1 <= shape[0] <= LARGEST_DIM and normalisation == (0, 0)
    square = len(shape) == 3 and shape[0] in CHANNELS and shape[1] == shape[2]
    return square and SMALLEST_SIDE <= shape[1] <= LARGEST_SIDE and normalisation == (shape[0], shape[0])


def _is_fetched(backbone: str) -> bool:
    """Whether a backbone's name means code or weights from the hub."""
    bare = backbone.removeprefix(PYTHON) if backbone.startswith(PYTHON) else backbone.removeprefix("timm:")
    return ":" in bare and not plugins.is_outside("backbone", backbone, BACKBONES)


def _refuse_code(path: Path, config: Any) -> None:
    """Refuse plugins that the user does not trust: checking their settings would import them."""
    parts = [(kind, name[:80]) for kind, name in untrusted_parts(config)][:5] if isinstance(config, dict) else []
    if parts:
        needed = " and ".join(f"the {kind} '{name}'" for kind, name in parts)
        raise UserError(
            f"{path} needs {needed} from outside gatf, and no code is run because a file names it: if you trust that "
            f"code, set the environment variable {plugins.consent(name for _, name in parts)}"
        )


class _Undrawn(TorchFunctionMode):
    """Within, weights that a layer would draw stay as they are: a tensor without memory has none, and to pretend to
    draw it torch imports its compiler, which takes longer than a prediction."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _method(
    path: Path, config: RunConfig, shape: tuple[int, ...], state: dict[str, Tensor], *, classes: int,
    backbone: nn.Module | None,
) -> Method:  # fmt: skip
    """The method with the file's state; sizes are compared first, on a network without memory unless one is given."""
    try:
        with torch.device("cpu" if backbone is not None else "meta"), _Undrawn():
            plan = build_method(config, shape, backbone)
        expected = plan.state_dict()
        for name, tensor in expected.items():
            fixed = name.startswith("backbone.") or tensor.numel() > 0
            if fixed and (name not in state or state[name].shape != tensor.shape or state[name].dtype != tensor.dtype):
                raise Damaged(path, f"tensor '{name}' is not the one its settings call for")
        wanted = sum(tensor.numel() * tensor.element_size() for tensor in (*plan.parameters(), *plan.buffers()))
        if wanted > sum(tensor.numel() * tensor.element_size() for tensor in state.values()):
            raise Damaged(path, "its settings call for a larger network than it holds")
        method = build_method(config, shape, backbone)
        method.load_state_dict(state)
        _check_classes(path, method, state, shape, classes)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, OverflowError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(path, f"its tensors do not fit its settings ({' '.join(str(error).split())[:200]})") from None
    return method


def _check_classes(path: Path, method: Method, state: dict[str, Tensor], shape: tuple[int, ...], classes: int) -> None:
    if transports_gaussians(method):  # by shape: unpacking all triangles would take several times the file's size
        fits = all(state[f"memory.{name}"].shape == size for name, size in method.memory.shapes(classes).items())
    else:
        with torch.no_grad():
            fits = method.eval().scores(torch.zeros(1, *shape)).shape == (1, classes)
    if not fits:
        raise Damaged(path, "it has another number of classes than labels")
