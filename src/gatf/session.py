"""A session: settings, method, pipeline and engine in one object. It learns tasks and scores images.

A run loops over the tasks of a scenario on one session. An update of a classifier is one more task on a session."""

import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.config import RunConfig, differences
from gatf.data.base import ImageSet
from gatf.data.loader import Batch, TaskData, TaskInfo, views
from gatf.data.preprocessing import Preprocessing
from gatf.devices import available_device, check_float64, set_determinism
from gatf.errors import Diverged, UserError
from gatf.io.events import FeaturesExtracted, Trained
from gatf.methods import Method, method_class
from gatf.methods.parts.bottleneck import start_bottleneck
from gatf.nets import build_backbone, python_backbone, wrap_backbone
from gatf.nets.base import Backbone
from gatf.nets.folding import check_folding
from gatf.nets.foreign import Wrapped
from gatf.nets.shared_norm import share_batch_norm
from gatf.seeding import keyed_init
from gatf.settings import PYTHON
from gatf.training import checkpoint
from gatf.training.context import RunContext
from gatf.training.divergence import check_finite, diverged, noticing
from gatf.training.loop import Position
from gatf.training.phase import Phase
from gatf.training.precision import chosen
from gatf.training.processes import open_alone, open_fabric
from gatf.training.task import Resumed, train_task
from gatf.training.threads import LIGHT, multiplications, one_thread_if

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CONFIG, SCALER = "config", "scaler"
"""In the description of a checkpoint: the settings, and the loss scale of 16-mixed."""
METHOD, SUMS, TRAINED = "method.", "sums.", "trained."
"""Prefixes of tensors in a checkpoint; the optimiser's are `checkpoint.flatten_optimiser`'s."""


class Session:
    """A method with everything it needs for training and scoring."""

    def __init__(
        self, config: RunConfig, preprocessing: Preprocessing, *, backbone: nn.Module | None = None,
        alone: bool = False,
    ) -> None:  # fmt: skip
        """`alone`: train in this process only, even if a launcher started others."""
        self.config = config
        self.warnings: list[str] = []
        self._precision, how = chosen(config.precision, config.device)
        if how is not None:
            self.warnings.append(how)
        self._alone = alone or distributed.launched() == 1
        if not self._alone:
            _ = self.fabric  # the other processes wait for this one
        check_float64(self.device)
        set_determinism(config.deterministic, self.device)
        self.method = build_method(config, preprocessing.shape, backbone, self.warnings).to(self.device)
        self.preprocessing = preprocessing.suited_to(self.method.backbone)
        self.pipeline = self.preprocessing.pipeline(config.data)
        if config.compile:
            compiled = _Compiled(self.method, self.device, graphs=config.compile == "reduce-overhead")
            phases = self.method.phases
            self.method.phases = lambda task: compiled.within_steps(phases(task))  # type: ignore[method-assign]
        if distributed.world() > 1:
            self.method.backbone = share_batch_norm(self.method.backbone, self.device)

    @cached_property
    def fabric(self) -> "Fabric":
        """The engine of training, opened when it is first needed: importing it takes longer than a small update."""
        return (open_alone if self._alone else open_fabric)(self.config.device, self._precision)

    @property
    def device(self) -> torch.device:
        if not self._alone:
            return self.fabric.device
        name = available_device(self.config.device)
        return torch.device(name, 0) if name == "cuda" else torch.device(name)

    @cached_property
    def light(self) -> bool:
        """Whether a step is too little work for several threads."""
        if self.device.type != "cpu":
            return False
        stages = (self.config.optimisation.first, self.config.optimisation.next)
        batch = max(stage.batch_size for stage in stages)
        return batch * multiplications(self.method.backbone, self.preprocessing.shape) < LIGHT

    def threads(self) -> AbstractContextManager[None]:
        """Inside, torch uses one thread for light networks."""
        return one_thread_if(self.light)

    # --- learning

    def task_data(self, info: TaskInfo, images: ImageSet, members: tuple[Tensor, Tensor]) -> TaskData:
        """The training images of a task: numbers and labels of its members among `images`."""
        return TaskData(info, images, members, pipeline=self.pipeline, seed=self.config.seed, device=self.device)

    def learn_task(
        self, data: TaskData, context: RunContext, *, resumed: Resumed | None = None,
        end: Callable[[TaskData], None] | None = None,
    ) -> None:  # fmt: skip
        """Train a task, end it and close its data. `Interrupted` if a stop was requested, `Diverged` if training or a
        statistic is no longer finite.

        `end` replaces the method's `end_task`, which it must call.
        """
        task = data.info.index
        data.extracted = lambda images, of: context.listener(FeaturesExtracted(task=task, images=images, of=of))
        with self.threads():
            if data.info.index == 0 and resumed is None:
                start_bottleneck(self.method.backbone, self.config.backbone, data)
            train_task(
                self.method, data, lambda: self.fabric,
                listener=context.listener, resumed=resumed, save=context.save, stop=context.stop,
                save_every=context.save_every,
                taken=lambda phase: context.networks is not None and self._take(phase, partial(context.networks, task)),
                done=partial(self._give, context),
            )  # fmt: skip
            context.listener(Trained(task=data.info.index))
            self._end(data, end or self.method.end_task)
        data.close()

    def _parts(self, phase: Phase) -> list[tuple[str, nn.Module]]:
        """The modules of a phase that another run could reuse, by their names in the method; none if the phase does not
        train the backbone."""
        if "backbone" not in phase.modules:
            return []
        places = {id(module): name for name, module in self.method.named_modules()}
        return [(places[id(module)], module) for module in (*phase.modules.values(), *phase.follows.values())]

    def _take(self, phase: Phase, networks: Callable[[], dict[str, Tensor]]) -> bool:
        """Load the networks of another run if the phase trains the backbone; returns whether it does."""
        parts = self._parts(phase)
        tensors = networks() if parts else {}
        for place, module in parts:
            with _fitting():
                module.load_state_dict(under(tensors, f"{place}."))
        return bool(parts)

    def _give(self, context: RunContext, phase: Phase) -> None:
        """Pass on the networks of a phase, if the context keeps them."""
        if context.trained is not None and (parts := self._parts(phase)):
            context.trained({
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
        """The error for a divergence after training, with the stage's and the method's learning rates."""
        settings = self.config.method.model_dump()
        own = {f"method.{name}": value for name, value in settings.items() if name.endswith("_lr") and value}
        return diverged(task, where, what, self.config.optimisation.stage(task), also=own)

    # --- scoring

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
        """Write a checkpoint, between tasks, or with an optimiser within one. `trained` has networks that other runs
        may reuse. The checkpoint contains the config, for `changes`."""
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
        """Differences between a checkpoint's config and this session's; none for old checkpoints without a config."""
        try:
            return differences(meta[CONFIG], self.config) if CONFIG in meta else []
        except (UserError, AttributeError, TypeError) as error:
            raise UserError(f"a checkpoint was made with settings that this version does not have: {error}") from None

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any], within: TaskInfo | None) -> Resumed | None:
        """Restore the method from a checkpoint; returns the position within the task, if it was written within one."""
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
    """A non-negative number in a checkpoint: a position in training."""
    value = meta.get(name)
    if type(value) is not int or not 0 <= value < 2**40:
        raise UserError(f"the checkpoint does not say where training stands: its '{name}' is no such number")
    return value


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names start with a prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def build_method(
    config: RunConfig, image_shape: tuple[int, ...], backbone: nn.Module | None = None,
    notes: list[str] | None = None,
) -> Method:  # fmt: skip
    """The method with the given backbone, or the one the config names, its weights drawn from the seed or pretrained.

    Remarks on pretrained weights are added to `notes`.
    """
    with keyed_init(config.seed, "init", "backbone"):
        if backbone is None:
            backbone = build_backbone(config.backbone, image_shape[0], notes, side=image_shape[-1])
        elif config.backbone.name.startswith(PYTHON):
            backbone = python_backbone(backbone, config.backbone, image_shape)
        else:
            backbone = wrap_backbone(backbone, image_shape)
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(backbone, Wrapped) or not isinstance(backbone, Backbone):
        check_folding(backbone, image_shape)
    return method_class(config.method.name)(config.method, backbone, config.optimisation, config.seed)


class _Compiled:
    """Has backbone and teachers compiled when a training step first calls them, or says why they cannot be.

    Outside a step they run as they are: batches of other sizes and modes would each be compiled again. With `graphs`
    the launches of a step are recorded as CUDA graphs, whose outputs the next step overwrites.
    """

    def __init__(self, method: Method, device: torch.device, *, graphs: bool = False) -> None:
        if distributed.world() > 1:
            raise UserError("compile=true is for runs of one process; leave it out with several")
        if graphs and device.type != "cuda":
            raise UserError(
                f"compile=reduce-overhead records CUDA graphs, but device is {device.type}; use compile=true"
            )
        if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            raise UserError("compile=true needs a C++ compiler (g++ or clang++) on the PATH")
        mode = "reduce-overhead" if graphs else None
        self._graphs, self._in_step = graphs, False
        self._replace_call(torch.compile(lambda net, images: net._call_impl(images), mode=mode), method.backbone)
        # one function for the teachers of all tasks, which have the same layers: it is compiled once
        teacher = torch.compile(lambda net, images: net._call_impl(images), mode=mode)
        method.on_frozen_copy = partial(self._replace_call, teacher)

    def _replace_call(self, compiled: Callable[[nn.Module, Tensor], Tensor], net: nn.Module) -> None:
        here = weakref.ref(net)  # a cycle would keep a dropped teacher in memory

        def call(images: Tensor) -> Tensor:
            net = here()
            assert net is not None
            return compiled(net, images) if self._in_step else net._call_impl(images)

        net._compiled_call_impl = call

    def within_steps(self, phases: list[Phase]) -> list[Phase]:
        """The phases, whose losses now run compiled networks."""
        for phase in phases:
            phase.loss = partial(self._step, phase.loss)
        return phases

    def _step(self, loss: Callable[[Batch], dict[str, Tensor]], batch: Batch) -> dict[str, Tensor]:
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self._in_step = True
        try:
            return loss(batch)
        finally:
            self._in_step = False
