"""Accuracy decomposition: accuracies that differ in one thing each, from the method to a network trained on all images
at once. Their differences are the accuracy gaps of transport, readout and representation."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.evaluation.linear_probe import linear_probe
from gatf.evaluation.observer import DiagnosticsData, Observed


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Accuracies in percent over the test images of all classes seen after a task, each None if it does not apply.

    Every number but `joint` is of one and the same network.
    """

    after_task: int
    own: float
    """The method itself."""
    stored: float | None
    """Its readout, rebuilt from the stored statistics; differs from `own` if it used more than is stored (DPCR)."""
    reestimated: float | None
    """Its readout with statistics of old classes re-estimated on their training images (oracle)."""
    probe: float
    """A linear classifier trained on the features of all training images of seen classes."""
    joint: float | None
    """Another network, trained on all these images at once."""

    @property
    def transport(self) -> float | None:
        """Accuracy gap because old statistics are transported, not re-estimated."""
        return None if self.reestimated is None or self.stored is None else self.reestimated - self.stored

    @property
    def readout(self) -> float:
        """Accuracy gap between the method's readout and a linear probe on the same features."""
        return self.probe - (self.own if self.reestimated is None else self.reestimated)

    @property
    def representation(self) -> float | None:
        """Accuracy gap because the network learnt the classes task by task."""
        return None if self.joint is None else self.joint - self.probe

    def sentences(self) -> list[str]:
        """The gaps as sentences."""
        sentences = []
        if self.transport is not None:
            sentences.append(
                f"Transport {_verb(self.transport)}: with re-estimated statistics of old classes the readout has "
                f"{self.reestimated:.1f} % instead of {self.stored:.1f} %."
            )
        if self.stored is not None and abs(self.stored - self.own) > 0.05:
            sentences.append(
                f"The method itself has {self.own:.1f} %: it also uses augmented images of the newest classes, "
                "which are not stored."
            )
        before = self.own if self.reestimated is None else self.reestimated
        sentences.append(
            f"The readout {_verb(self.readout)}: a linear probe on all training images has {self.probe:.1f} %, the "
            f"method's readout {before:.1f} %."
        )
        if self.representation is not None:
            sentences.append(
                f"The representation {_verb(self.representation)}: a network trained on all images at once has "
                f"{self.joint:.1f} %."
            )
        return sentences


def _verb(loss: float) -> str:
    """`loses 1.2 points`."""
    if abs(loss) < 0.05:
        return "loses nothing"
    return f"{'loses' if loss > 0 else 'gains'} {abs(loss):.1f} points"


@torch.no_grad()
def explain_task(method: Observed, data: DiagnosticsData, task: int, joint: float | None = None) -> Explained:
    """Evaluate the network after a task: one pass over all training images of seen classes, plain and mirrored, and two
    over their test images. `joint` is the accuracy of a joint network after the same task, if known."""
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
    reestimated = method.reestimated(plain[old], mirrored[old], of_class[old])
    probe = linear_probe(plain, of_class, classes=len(tasks))
    device = next(method.backbone.parameters()).device
    return Explained(
        after_task=task,
        own=accuracy(scores, labels),
        stored=None if rebuilt is None else accuracy(rebuilt(test.to(device)).cpu(), labels),
        reestimated=None if reestimated is None else accuracy(reestimated(test.to(device)).cpu(), labels),
        probe=accuracy(probe.scores(test), labels),
        joint=joint,
    )


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Percentage of images [N] whose label has the highest score among [N, C]."""
    return 100 * float((scores.argmax(1) == labels).double().mean())
