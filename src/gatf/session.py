"""A learner at work: settings, method, pipeline and engine in one object, which learns a task, looks at images, and is
saved and restored. A run is a loop over a scenario's tasks on it; an update of a classifier is one task more."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.config import RunConfig, differences
from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.base import ImageSet
from gatf.data.decode import CENTRAL_SHARE, SMALL
from gatf.data.inputs import ImageInput, image_set
from gatf.data.loader import TaskData, TaskInfo, views
from gatf.devices import check_float64, set_determinism
from gatf.errors import Diverged, UserError
from gatf.io.events import FeaturesExtracted, Listener, Trained
from gatf.methods import Method, method_class
from gatf.methods.parts.bottleneck import start_bottleneck
from gatf.nets import build_backbone, given_backbone, wrap_backbone
from gatf.nets.base import Backbone
from gatf.nets.folding import check_folding
from gatf.nets.foreign import Wrapped
from gatf.nets.shared_norm import share_batch_norm
from gatf.seeding import keyed_init
from gatf.settings import PYTHON
from gatf.training import checkpoint
from gatf.training.divergence import check_finite, diverged, noticing
from gatf.training.loop import Position
from gatf.training.memory import keep_freed_memory
from gatf.training.phase import Phase
from gatf.training.precision import chosen
from gatf.training.processes import open_alone, open_fabric
from gatf.training.task import Resumed, SaveAt, train_task
from gatf.training.threads import LIGHT, multiplications, one_thread_if

CONFIG, SCALER = "config", "scaler"
"""In the description of a checkpoint: the settings, and the loss scale of 16-mixed."""
METHOD, SUMS, TRAINED = "method.", "sums.", "trained."
"""Prefixes of tensors in a checkpoint; the optimiser's are `checkpoint.flatten_optimiser`'s."""


@dataclass(frozen=True)
class Preprocessing:
    """From pictures to what the network sees: uint8 pixels of a central square, /255, less the mean, over the standard
    deviation."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    central_share: float = CENTRAL_SHARE
    """Of the shorter side of large images, what the test view keeps; of small ones it keeps all."""

    def suited_to(self, backbone: nn.Module) -> "Preprocessing":
        """With the mean, deviation and share of the image that a pretrained backbone expects, where it says so; else
        the data's."""
        suited = self
        expected = getattr(backbone, "normalisation", None)
        if expected is not None and len(expected[0]) == self.shape[0]:
            suited = replace(suited, mean=expected[0], std=expected[1])
        share = getattr(backbone, "central_share", None)
        if share is not None and self.shape[1] > SMALL:
            if not 0 < share <= 1:
                raise UserError(f"a backbone's central_share is above 0 and at most 1, not {share!r}")
            suited = replace(suited, central_share=share)
        return suited

    def images(self, given: ImageInput, labels: Tensor | None = None) -> ImageSet:
        """Pictures as the network sees them in a test, but for the normalisation, with class numbers."""
        return image_set(given, self.shape, labels, central_share=self.central_share)

    def pipeline(self, config: RunConfig) -> Pipeline:
        """With the augmentation and the crop of test images that the config asks for."""
        steps = parse_augmentation(config.data.augment)
        return Pipeline(steps, self.mean, self.std, config.data.test_crop).check(self.shape)


@dataclass(frozen=True)
class Circumstances:
    """How a task is learnt: who hears of it, who may stop it, where and how often it is saved on the way."""

    listener: Listener
    stop: Callable[[], bool] = lambda: False
    save: SaveAt = lambda phase, position, optimiser: None
    save_every: int | None = None
    """Epochs between two saves within a phase; None: only when `stop` says so."""
    networks: Callable[[int], dict[str, Tensor]] | None = None
    """What another run has trained in a task that would train the same; it is then not trained again."""
    trained: Callable[[dict[str, Tensor]], None] | None = None
    """Is given what a phase has trained for that, before a later phase changes it or the method drops it."""


class Session:
    """A method with everything it takes to train it and to ask it."""

    def __init__(
        self, config: RunConfig, preprocessing: Preprocessing, *, backbone: nn.Module | None = None,
        alone: bool = False,
    ) -> None:  # fmt: skip
        """`alone`: in this process, even if a launcher made others."""
        self.config = config
        self.warnings: list[str] = []
        precision, how = session_precision(config, preprocessing.shape)
        if how is not None:
            self.warnings.append(how)
        self.fabric = open_alone(config.device, precision) if alone else open_fabric(config.device, precision)
        check_float64(self.device)
        set_determinism(config.deterministic, self.device)
        self.method = build_method(config, preprocessing.shape, backbone, self.warnings).to(self.device)
        self.preprocessing = preprocessing.suited_to(self.method.backbone)
        self.pipeline = self.preprocessing.pipeline(config)
        if config.compile:
            compile_backbone(self.method.backbone, self.device, graphs=config.compile == "reduce-overhead")
        if distributed.world() > 1:
            self.method.backbone = share_batch_norm(self.method.backbone, self.device)

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @cached_property
    def light(self) -> bool:
        """Whether a step is so little work that threads would but wait for each other."""
        if self.device.type != "cpu":
            return False
        stages = (self.config.optimisation.first, self.config.optimisation.next)
        batch = max(stage.batch_size for stage in stages)
        return batch * multiplications(self.method.backbone, self.preprocessing.shape) < LIGHT

    def threads(self) -> AbstractContextManager[None]:
        """Inside, torch uses as many threads as the network is worth."""
        return one_thread_if(self.light)

    # --- learning

    def task_data(self, info: TaskInfo, images: ImageSet, members: tuple[Tensor, Tensor]) -> TaskData:
        """The training images of a task: numbers and labels of its members among `images`."""
        return TaskData(info, images, members, pipeline=self.pipeline, seed=self.config.seed, device=self.device)

    def learn(
        self, data: TaskData, run: Circumstances, *, resumed: Resumed | None = None,
        end: Callable[[TaskData], None] | None = None,
    ) -> None:  # fmt: skip
        """Train a task and let the method end it; then its images are gone. `Interrupted` if a stop was asked for,
        `Diverged` if training or a statistic leaves the finite numbers.

        `end` takes the place of the method's `end_task`, which it must call.
        """
        if self.device.type == "cpu":
            keep_freed_memory()
        task = data.info.index
        data.extracted = lambda images, of: run.listener(FeaturesExtracted(task=task, images=images, of=of))
        with self.threads():
            if data.info.index == 0 and resumed is None:
                start_bottleneck(self.method.backbone, self.config.backbone, data)
            train_task(
                self.method, data, self.fabric,
                listener=run.listener, resumed=resumed, save=run.save, stop=run.stop, save_every=run.save_every,
                taken=lambda phase: run.networks is not None and self._take(phase, partial(run.networks, task)),
                done=partial(self._give, run),
            )  # fmt: skip
            run.listener(Trained(task=data.info.index))
            self._end(data, end or self.method.end_task)
        data.close()

    def _parts(self, phase: Phase) -> list[tuple[str, nn.Module]]:
        """What a phase leaves behind that another run could take, by its place in the method; nothing if it does not
        train the network."""
        if "backbone" not in phase.modules:
            return []
        places = {id(module): name for name, module in self.method.named_modules()}
        return [(places[id(module)], module) for module in (*phase.modules.values(), *phase.follows.values())]

    def _take(self, phase: Phase, networks: Callable[[], dict[str, Tensor]]) -> bool:
        """Put into a phase what another run has trained in it, if that is the network; says whether it is."""
        parts = self._parts(phase)
        tensors = networks() if parts else {}
        for place, module in parts:
            with _fitting():
                module.load_state_dict(under(tensors, f"{place}."))
        return bool(parts)

    def _give(self, run: Circumstances, phase: Phase) -> None:
        """Hand on what a phase has trained, if somebody keeps it."""
        if run.trained is not None and (parts := self._parts(phase)):
            run.trained({
                f"{place}.{name}": value.detach().clone()
                for place, module in parts
                for name, value in module.state_dict().items()
            })  # fmt: skip

    def _end(self, data: TaskData, end: Callable[[TaskData], None]) -> None:
        self.method.eval()
        with noticing(partial(self.diverged, data.info.index, "statistics"), self.method.state_dict().values):
            end(data)
            check_finite(self.method.state_dict())
        distributed.take_from_first(self.method.state_dict().values())

    def diverged(self, task: int, where: str, what: str) -> Diverged:
        """After training: it left the finite numbers, by the stage's rate or by one of the method's own."""
        settings = self.config.method.model_dump()
        own = {f"method.{name}": value for name, value in settings.items() if name.endswith("_lr") and value}
        return diverged(task, where, what, self.config.optimisation.stage(task), also=own)

    # --- looking

    def scored(self, images: ImageSet, members: Tensor) -> Iterator[Tensor]:
        """Scores [B, classes] of some of the images, a batch at a time."""
        self.method.eval()
        with self.method.frozen():
            for batch in views(images, members, self.pipeline, self.device):
                yield self.method.scores(batch)

    # --- saving and restoring

    def save(
        self, path: Path, meta: dict[str, Any], *, phase: int = 0, position: Position | None = None,
        optimiser: torch.optim.Optimizer | None = None, trained: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write a checkpoint, between tasks, or with an optimiser within one; with what the task has `trained` so far
        where other runs are to have it. It has the config, for `changes`."""
        position = position or Position()
        tensors = {METHOD + name: value for name, value in self.method.state_dict().items()}
        tensors |= {SUMS + name: value for name, value in position.sums.items()}
        tensors |= {TRAINED + name: value for name, value in (trained or {}).items()}
        if optimiser is not None:
            tensors |= checkpoint.flatten_optimiser(optimiser)
        place = {"phase": phase, "epoch": position.epoch, "step": position.step, "within_task": optimiser is not None}
        scaler = self.fabric.strategy.precision.state_dict()
        checkpoint.save(path, tensors, {**meta, **place, **self.described(), **({SCALER: scaler} if scaler else {})})

    def described(self) -> dict[str, Any]:
        """The config, as a checkpoint has it."""
        return {CONFIG: self.config.model_dump(mode="json")}

    def changes(self, meta: dict[str, Any]) -> list[str]:
        """What the config of a checkpoint has otherwise than this session's; nothing if it was made before checkpoints
        had it."""
        try:
            return differences(meta[CONFIG], self.config) if CONFIG in meta else []
        except (UserError, AttributeError, TypeError) as error:
            raise UserError(f"a checkpoint was made with settings that this version does not have: {error}") from None

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any], within: TaskInfo | None) -> Resumed | None:
        """Put the method where a checkpoint was; returns the place within the task, if it was within one."""
        with _fitting():
            if within is not None:
                self.method.begin_task(within)
            self.method.load_state_dict(under(tensors, METHOD))
        if within is None:
            return None
        if meta.get(SCALER) and getattr(self.fabric.strategy.precision, "scaler", None) is not None:
            self.fabric.strategy.precision.load_state_dict(meta[SCALER])
        phase, epoch, step = (whole_number(meta, name) for name in ("phase", "epoch", "step"))
        return Resumed(phase, Position(epoch, step, under(tensors, SUMS)), tensors)


@contextmanager
def _fitting() -> Iterator[None]:
    """Inside, tensors that do not fit the method are a `UserError`."""
    try:
        yield
    except (RuntimeError, LookupError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the checkpoint is not one of this method and scenario: {reason}") from None


def whole_number(meta: Mapping[str, Any], name: str) -> int:
    """A number of a checkpoint that says where training stands."""
    value = meta.get(name)
    if type(value) is not int or not 0 <= value < 2**40:
        raise UserError(f"the checkpoint does not say where training stands: its '{name}' is no such number")
    return value


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names begin so, without that."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def session_precision(config: RunConfig, shape: tuple[int, int, int]) -> tuple[str, str | None]:
    """The precision of a session with these settings here, and how `auto` was decided, if it was."""
    return chosen(
        config.precision, config.device, backbone=config.backbone, shape=shape,
        batch=config.optimisation.next.batch_size,
    )  # fmt: skip


def build_method(
    config: RunConfig, image_shape: tuple[int, int, int], backbone: nn.Module | None = None,
    notes: list[str] | None = None,
) -> Method:  # fmt: skip
    """The method with the given backbone, or the one the config names, its weights drawn from the seed or pretrained.

    What is worth saying about pretrained weights is added to `notes`.
    """
    with keyed_init(config.seed, "init", "backbone"):
        if backbone is None:
            backbone = build_backbone(config.backbone, image_shape[0], notes)
        elif config.backbone.name.startswith(PYTHON):
            backbone = given_backbone(backbone, config.backbone, image_shape)
        else:
            backbone = wrap_backbone(backbone, image_shape)
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(backbone, Wrapped) or not isinstance(backbone, Backbone):
        check_folding(backbone, image_shape)
    return method_class(config.method.name)(config.method, backbone, config.optimisation, config.seed)


def compile_backbone(backbone: nn.Module, device: torch.device, *, graphs: bool = False) -> None:
    """Have the backbone compiled when training first calls it, or say why it cannot be.

    In eval mode it runs as it is: batches of other sizes and modes would each be compiled again. With `graphs` the
    launches of a step are recorded as CUDA graphs.
    """
    if distributed.world() > 1:
        raise UserError("compile=true is for runs of one process; leave it out with several")
    if graphs and device.type != "cuda":
        raise UserError(f"compile=reduce-overhead records CUDA graphs, but device is {device.type}; use compile=true")
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise UserError("compile=true needs a C++ compiler (g++ or clang++) on the PATH")
    plain = backbone._call_impl
    compiled = torch.compile(plain, mode="reduce-overhead" if graphs else None)
    backbone._compiled_call_impl = lambda images: compiled(images) if backbone.training else plain(images)
