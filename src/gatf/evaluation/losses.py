"""Where do the points go? Accuracies of one network that differ in one thing each, from the method's own answer up to a
network trained on all images at once; the steps between them are what transport, readout and representation lose."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.evaluation.linear_probe import linear_probe
from gatf.evaluation.observer import DiagnosticsData, Observed


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Accuracies in percent over the test images of all classes seen after a task, each None where it makes no sense.

    Every number but `joint` is of one and the same network.
    """

    after_task: int
    own: float
    """The method's own answers."""
    stored: float | None
    """Its rule, rebuilt from what is stored; differs from `own` where a rule saw more than is kept (DPCR)."""
    anew: float | None
    """Its rule, with old classes measured anew on their training images."""
    probe: float
    """A linear classifier trained on the features of all training images so far."""
    joint: float | None
    """Another network, trained on all these images at once."""

    @property
    def transport(self) -> float | None:
        """Points lost because old statistics are carried and not measured."""
        return None if self.anew is None or self.stored is None else self.anew - self.stored

    @property
    def readout(self) -> float:
        """Points lost because the method's rule is not the best one on these features."""
        return self.probe - (self.own if self.anew is None else self.anew)

    @property
    def representation(self) -> float | None:
        """Points lost because the network saw the classes task by task."""
        return None if self.joint is None else self.joint - self.probe

    def sentences(self) -> list[str]:
        """The losses in plain words."""
        told = []
        if self.transport is not None:
            told.append(
                f"Transport {_verb(self.transport)}: with old classes measured anew the same rule has {self.anew:.1f} %"
                f" instead of {self.stored:.1f} %."
            )
        if self.stored is not None and abs(self.stored - self.own) > 0.05:
            told.append(
                f"Its own answers have {self.own:.1f} %: they rest on augmented images of the newest classes too, "
                "which are not kept."
            )
        before = self.own if self.anew is None else self.anew
        told.append(
            f"The readout {_verb(self.readout)}: a linear probe on all training images has {self.probe:.1f} %, this "
            f"method's rule {before:.1f} %."
        )
        if self.representation is not None:
            told.append(
                f"The representation {_verb(self.representation)}: a network trained on all images at once has "
                f"{self.joint:.1f} %."
            )
        return told


def _verb(loss: float) -> str:
    """`loses 1.2 points`."""
    if abs(loss) < 0.05:
        return "loses nothing"
    return f"{'loses' if loss > 0 else 'gains'} {abs(loss):.1f} points"


@torch.no_grad()
def explain_task(method: Observed, data: DiagnosticsData, task: int, joint: float | None = None) -> Explained:
    """Ask the network as it stands after a task: one pass over all training images so far, plain and mirrored, and two
    over their test images. `joint` is the accuracy of a joint network after the same task, where one is known."""
    with method.frozen():
        method.eval()
        seen, of_class = data.train(method.backbone, task, sys.maxsize, mirror=True)
        test, labels = data.test(method.backbone, task)
        scores, _ = data.test(method.scores, task)
    plain, mirrored = seen.chunk(2)
    of_class = of_class[: len(plain)]
    tasks = data.task_of_class(task)
    old = tasks[of_class] < task
    rebuilt = method.reestimated(plain[:0], mirrored[:0], of_class[:0])
    anew = method.reestimated(plain[old], mirrored[old], of_class[old])
    probe = linear_probe(plain, of_class, classes=len(tasks))
    device = next(method.backbone.parameters()).device
    return Explained(
        after_task=task,
        own=accuracy(scores, labels),
        stored=None if rebuilt is None else accuracy(rebuilt(test.to(device)).cpu(), labels),
        anew=None if anew is None else accuracy(anew(test.to(device)).cpu(), labels),
        probe=accuracy(probe.scores(test), labels),
        joint=joint,
    )


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share of images [N] whose own class scores best among [N, C], in percent."""
    return 100 * float((scores.argmax(1) == labels).double().mean())
