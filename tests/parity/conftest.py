"""What the official code computed: one file of numbers for each method, read by that method's test."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from gatf.data.augment import Pipeline
from gatf.data.base import ImageSet
from gatf.data.loader import Batch, TaskData, TaskInfo
from gatf.io.events import Epoch, Event
from gatf.methods.parts.compensation import DriftCompensated
from gatf.methods.parts.stages import LWF_OPTIMISATION
from gatf.settings import OptimisationConfig
from gatf.training.loop import Position, train_phase
from gatf.training.optim import clip_gradients
from gatf.training.phase import Phase

Recorded = Callable[..., dict[str, Tensor]]
Net = Callable[[dict[str, Tensor]], nn.Module]
Tasks = Callable[..., list[TaskData]]
Steps = tuple[dict[str, Tensor], dict[str, Tensor]]


LWF_STAGES = OptimisationConfig.model_validate(
    {
        "first": LWF_OPTIMISATION["first"] | {"epochs": 10, "batch_size": 128},
        "next": LWF_OPTIMISATION["next"] | {"epochs": 20, "batch_size": 128},
    }
)
"""How ADC's and LDC's cases were trained: their releases' LwF, in few epochs."""


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name begins so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def check_lwf_task(
    method: DriftCompensated[Any], task: int, expected: dict[str, Tensor], test_images: Tensor, *, atol: float
) -> None:
    """After a task: weights of backbone and head, prototypes, and distances of the test images."""
    trained = under(expected, f"trained{task}/")
    for name, weights in under(trained, "backbone.").items():
        assert_close(method.backbone.state_dict()[name], weights, rtol=1e-11, atol=1e-13)
    for name, weights in under(trained, "head.").items():
        assert_close(method.base.heads.state_dict()[name], weights, rtol=1e-11, atol=1e-13)
    assert_close(method.prototypes.means.double(), expected[f"prototypes{task}"], rtol=0, atol=atol)
    with torch.no_grad():
        scores = method.eval().scores(test_images * (1 / 255))
    assert_close(-scores, expected[f"distances{task}"], rtol=0, atol=atol)


class RecordedRun:
    """A recorded run of a method with heads again, by this package's code: what it was in and after each task."""

    def __init__(
        self, method: Any, case: dict[str, Tensor], tasks: list[TaskData], train: Callable[[Phase, TaskData], Steps],
        begin: Callable[[int, dict[str, Tensor], pytest.MonkeyPatch], None],
    ) -> None:  # fmt: skip
        """`begin` gets each task's recorded input, to set weights and replace random draws."""
        self.terms: list[dict[str, Tensor]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.states: list[dict[str, Tensor]] = []
        self.memories: list[Any] = []
        self.scores: list[Tensor] = []
        for task, data in enumerate(tasks):
            given = under(case, f"task{task}/input/")
            method.begin_task(data.info)
            method.heads.layers[-1].load_state_dict(under(given, "head."))
            (phase,) = method.phases(data.info)
            with pytest.MonkeyPatch.context() as patch:
                begin(task, given, patch)
                terms, gradients = train(phase, data)
                method.eval()
                method.end_task(data)
            self.terms.append(terms)
            self.gradients.append(gradients)
            self.states.append({name: value.clone() for name, value in method.state_dict().items()})
            self.memories.append(method.memory.get() if hasattr(method, "memory") else None)
            with torch.no_grad():
                self.scores.append(method.scores(case["input/test_images"] / 255))


class ConvNet(nn.Module):
    """The network that the recorded weights of EWC and LwF belong to."""

    feature_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(hidden))).mean((2, 3))


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """`recorded("fecam")`: the tensors of fecam.safetensors by name; `recorded("fecam", "head/")`: only head/…."""

    def load(method: str, prefix: str = "") -> dict[str, Tensor]:
        tensors = load_file(Path(__file__).parent / f"{method}.safetensors")
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return load


@pytest.fixture(scope="session")
def traced_steps() -> Callable[[Phase, TaskData], Steps]:
    """`traced_steps(phase, data)`: the loop of a run over the images in the order they are stored. Returns each term of
    every step, and the gradients of the last step by name."""

    def run(phase: Phase, data: TaskData) -> Steps:
        terms: dict[str, list[Tensor]] = {}
        gradients: dict[str, Tensor] = {}
        loss = phase.loss

        def traced(batch: Batch) -> dict[str, Tensor]:
            found = loss(batch)
            for name, term in found.items():
                terms.setdefault(name, []).append(term.detach())
            return found

        named = {f"{part}.{name}": p for part, net in phase.modules.items() for name, p in net.named_parameters()}
        hooks = [
            p.register_post_accumulate_grad_hook(lambda p, name=name: gradients.update({name: p.grad.clone()}))
            for name, p in named.items()
            if p.requires_grad
        ]
        phase.loss, phase.order = traced, lambda labels, draws: torch.arange(len(labels))
        train_phase(
            phase, data, Fabric(accelerator="cpu", devices=1), listener=lambda event: None,
            position=Position(), save=lambda *args: None, restore=None, stop=lambda: False, save_every=None,
        )  # fmt: skip
        for hook in hooks:
            hook.remove()
        return {name: torch.stack(values) for name, values in terms.items()}, gradients

    return run


class ToyNet(nn.Module):
    """Images [B, 3, 2, 2] → features [B, S]: a linear layer, batch-norm (so that its mode matters) and ReLU."""

    def __init__(self, weights: dict[str, Tensor], rectified: bool = True) -> None:
        super().__init__()
        self.feature_dim, inputs = weights["linear.weight"].shape
        self.rectified = rectified
        self.linear = nn.Linear(inputs, self.feature_dim, bias=False)
        self.norm = nn.BatchNorm1d(self.feature_dim)
        self.load_state_dict(weights, strict=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.linear(images.flatten(1)))
        return features.relu() if self.rectified else features


@pytest.fixture(scope="session")
def toy_net() -> Callable[..., ToyNet]:
    """`toy_net(recorded("fecam", "input/net/"))`: the little network that the official code was given, in eval mode."""

    def build(weights: dict[str, Tensor], rectified: bool = True) -> ToyNet:
        return ToyNet(weights, rectified).eval()

    return build


@pytest.fixture(scope="session")
def exact_net() -> Callable[[dict[str, Tensor]], ToyNet]:
    """`exact_net(weights)`: the little network in float64, to which images come in float32."""

    def in_float64(net: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        return (given[0].double(),)

    def build(weights: dict[str, Tensor]) -> ToyNet:
        net = ToyNet(weights).double().eval()
        net.load_state_dict(weights, strict=False)  # the first time they were rounded
        net.register_forward_pre_hook(in_float64)
        return net

    return build


@pytest.fixture(scope="session")
def train() -> Callable[[Phase, TaskData], None]:
    """`train(phase, data)`: the loop of a run, saving and telling nothing."""

    def ignore(*reported: Any) -> None:
        pass

    def run(phase: Phase, data: TaskData) -> None:
        train_phase(
            phase, data, Fabric(accelerator="cpu", devices=1), listener=ignore, position=Position(), save=ignore,
            restore=None, stop=lambda: False, save_every=None,
        )  # fmt: skip

    return run


def mirror(images: Tensor, draws: torch.Generator) -> Tensor:
    """An augmentation without chance: it tells whether training or test images were looked at."""
    return images.flip(-1)


@pytest.fixture(scope="session")
def toy_tasks() -> Callable[..., list[TaskData]]:
    """`toy_tasks(images, labels, [3, 2, 2])`: images uint8 [N, 3, 2, 2] as tasks of so many classes. Pixels are divided
    by 255; training images are mirrored."""

    def cut(images: Tensor, labels: Tensor, sizes: list[int]) -> list[TaskData]:
        pipeline, tasks = Pipeline((mirror,), mean=(0.0,), std=(1.0,)), []
        for index, new in enumerate(sizes):
            old = sum(sizes[:index])
            (rows,) = torch.where((labels >= old) & (labels < old + new))
            info, members = TaskInfo(index, old, new, len(rows)), (rows, labels[rows])
            pixels = ImageSet(images, labels)
            tasks.append(TaskData(info, pixels, members, pipeline=pipeline, seed=0, device=torch.device("cpu")))
        return tasks

    return cut


class BottleneckNet(nn.Module):
    """Images [B, 3, 2, 2] → features [B, S] in float64: a hidden layer with batch-norm and ReLU, then a linear layer.

    Pixels are made whole numbers again before they are divided by 255, so that nothing is left of float32.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.feature_dim, hidden = weights["bottleneck.weight"].shape
        self.first = nn.Linear(weights["first.weight"].shape[1], hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.bottleneck = nn.Linear(hidden, self.feature_dim)
        self.double().load_state_dict(weights, strict=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels = (images.double() * 255).round() / 255
        return self.bottleneck(self.norm(self.first(pixels.flatten(1))).relu())


@pytest.fixture(scope="session")
def bottleneck_net() -> type[BottleneckNet]:
    """`bottleneck_net(recorded("adagauss", "input/net/"))`: what methods that keep Gaussians were given."""
    return BottleneckNet


Trace = tuple[dict[str, list[float]], list[dict[str, Tensor]]]


@pytest.fixture(scope="session")
def traced_training() -> Callable[[Phase, TaskData], Trace]:
    """`traced_training(phase, data)`: the loop of a run. Returns each term's mean of every epoch, and the gradients of
    every step by name, as they are before they are clipped."""

    def run(phase: Phase, data: TaskData) -> Trace:
        terms: dict[str, list[float]] = {}
        gradients: list[dict[str, Tensor]] = []
        fabric = Fabric(accelerator="cpu", devices=1)

        def forward(parameters: Iterable[Tensor], limit: float) -> None:
            named = {f"{part}.{name}": p for part, net in phase.modules.items() for name, p in net.named_parameters()}
            gradients.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
            clip_gradients(parameters, limit)

        def listen(event: Event) -> None:
            if isinstance(event, Epoch):
                for name, value in event.losses.items():
                    terms.setdefault(name, []).append(value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gatf.training.loop.clip_gradients", forward)
            train_phase(
                phase, data, fabric, listener=listen, position=Position(), save=lambda position, optimiser: None,
                restore=None, stop=lambda: False, save_every=None,
            )  # fmt: skip
        return terms, gradients

    return run
