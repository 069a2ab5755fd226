"""Does adapting a pretrained network beat the frozen one, where statistics have the full feature width?

    python experiments/adaptation.py ACTIVATIONS     needs CUB-200 (GATF_DATA)

CUB-200 at 128 pixels in ten tasks of twenty species, EfficientNet-Lite0, training images only: 24 of 30 images per
species are learnt, the others measure. The last blocks (the two last stages and the last convolution) are trained with
cross-entropy on the task's images and their mirror images; the blocks before are frozen, so their output is stored in
the folder ACTIVATIONS. Every variant ends with the same readout: linear discriminants from class means and one shared
covariance in all 1280 dimensions (slda).

frozen            no training
first session     trained in the first task only (Panos et al., "First Session Adaptation", ICCV 2023)
every task        trained in every task, towards the old features with `distill`; means and covariance of older classes
                  stay ("not transported"), are transported by the anchor shrunk towards the identity ("anchor"), or are
                  measured again on old images ("oracle")
joint             trained once on all classes: what features could reach
"""

import json
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import photo_networks
import torch
from common import one_thread, save
from photo_networks import pictures
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.data.decode import CENTRAL_SHARE, centre_box
from gatf.data.encoded import decode_all
from gatf.geometry.anchor import Affine, fit_anchor
from gatf.geometry.leave_one_out import LeaveOneOut
from gatf.geometry.moments import PairedMoments, PooledMoments
from gatf.geometry.readout import linear_discriminant
from gatf.model.calibration import calibration_sums, fitted_temperature
from gatf.nets import build_backbone
from gatf.nets.base import Backbone, freeze_batch_norm
from gatf.settings import BackboneConfig

SIDE, CLASSES, PER_CLASS, HELD_OUT, TASKS = 128, 200, 30, 6, 10
FROZEN_BLOCKS = 11
"""Of 16: the blocks with stride 16; the last five have stride 32 and 4×4 outputs."""


class Top(nn.Module):
    """The trained part: [B, 112, 8, 8] → features [B, 1280]."""

    def __init__(self, net: Backbone) -> None:
        super().__init__()
        self.blocks, self.last = deepcopy(net.blocks[FROZEN_BLOCKS:]), deepcopy(net.last)  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(x)).mean((2, 3))


@torch.no_grad()
def activations(folder: Path, net: Backbone) -> tuple[Tensor, Tensor]:
    """Outputs of the frozen blocks for images and mirror images, float16 [N, 2, 112, 8, 8], and labels [N]."""
    file = folder / f"cub-top-{SIDE}.npz"
    if not file.is_file():
        photo_networks.CLASSES, photo_networks.PER_CLASS = CLASSES, PER_CLASS
        encoded, labels = pictures("cub")
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in net.normalisation)  # type: ignore[union-attr]
        found = []
        for start in range(0, len(encoded), 64):
            some = encoded.take(range(start, min(start + 64, len(encoded))))
            pixels, _ = decode_all(some, SIDE, choose=lambda w, h: centre_box(w, h, zoom=1 / CENTRAL_SHARE))
            images = (pixels / 255 - mean) / std
            both = [net.blocks[:FROZEN_BLOCKS](net.stem(each)) for each in (images, images.flip(3))]  # type: ignore
            found.append(torch.stack(both, 1).half().numpy())
        np.savez(file, x=np.concatenate(found), y=labels.numpy())
    with np.load(file) as stored:
        return torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"])


@torch.no_grad()
def features(top: Top, x: Tensor) -> Tensor:
    return torch.cat([top.eval()(each[:, 0].float()) for each in x.split(256)])


def train(top: Top, x: Tensor, y: Tensor, *, epochs: int, rate: float, distill: float, norms: bool, seed: int) -> Top:
    """A copy of the top, trained with cross-entropy on these images; `norms`: batch-norm's weights and biases alone."""
    old, top = top.eval(), deepcopy(top)
    torch.manual_seed(seed)
    classes, numbers = y.unique(return_inverse=True)
    head = nn.Linear(1280, len(classes))
    with torch.no_grad():  # starts as linear discriminants, so that the first steps do not spoil the features
        learnt = features(top, x).double()
        known = PooledMoments.of(learnt, numbers, classes=len(classes))
        share = known.noise_share()
        rule = linear_discriminant(known.means, known.covariance(), share)
        # by the temperature of left-out images: learnt ones are separated so far that their loss has no gradient
        left_out, _ = LeaveOneOut(known, share).scores(learnt, numbers)
        temperature = fitted_temperature(calibration_sums(left_out, numbers))
        head.weight.copy_(rule.weight / temperature), head.bias.copy_(rule.bias / temperature)
    for name, parameter in top.named_parameters():
        parameter.requires_grad_(not norms or ".norm." in name)
    groups = [{"params": [each for each in top.parameters() if each.requires_grad], "lr": rate}]
    steps = epochs * -(-len(x) // 64)
    optimiser = torch.optim.Adam([*groups, {"params": head.parameters(), "lr": rate}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    top.train()
    freeze_batch_norm(top)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            inputs = x[rows, torch.randint(2, (len(rows),))].float()
            new = top(inputs)
            loss = cross_entropy(head(new), numbers[rows])
            if distill:
                with torch.no_grad():
                    target = old(inputs)
                loss = loss + distill * mse_loss(new, target)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return top


def anchor(old: Tensor, new: Tensor, ridge: float) -> Affine:
    """The map of full width from pairs of one task, shrunk towards the identity; there are fewer pairs than
    dimensions."""
    pairs = PairedMoments.of(old.double(), new.double())
    return fit_anchor(pairs, ridge, kind="identity")


def run(top: Top, data: tuple[Tensor, ...], *, when: str, ridge: float = 1.0, **how: Any) -> Any:
    """Accuracy over all seen classes after each task by treatment of older classes, and CPU-seconds of training. Where
    every task trains, the three treatments share the networks."""
    x, y, held_x, held_y = data
    started = time.process_time()
    size = CLASSES // TASKS
    if when == "joint":
        top = train(top, x, y, **how)
    carries = ("none", "anchor", "oracle") if when == "every" else ("none",)
    totals: dict[str, PooledMoments] = {}
    accuracies: dict[str, list[float]] = {carry: [] for carry in carries}
    for task in range(TASKS):
        mine = (y >= task * size) & (y < (task + 1) * size)
        if (when == "first" and task == 0) or when == "every":
            new = train(top, x[mine], y[mine], **how)
            if "anchor" in totals:
                by = anchor(features(top, x[mine]), features(new, x[mine]), ridge)
                totals["anchor"] = totals["anchor"].mapped(by.weight, by.bias)
            top = new
        seen = y < (task + 1) * size
        fresh = PooledMoments.of(features(top, x[mine]), y[mine], classes=(task + 1) * size)
        asked = held_y < (task + 1) * size
        questions = features(top, held_x[asked]).double()
        for carry in carries:
            if carry == "oracle":
                total = PooledMoments.of(features(top, x[seen]), y[seen], classes=(task + 1) * size)
            else:
                total = totals[carry].merge(fresh) if carry in totals else fresh
            totals[carry] = total
            rule = linear_discriminant(total.means, total.covariance(), total.noise_share(), total.counts)
            correct = rule.scores(questions).argmax(1) == held_y[asked]
            accuracies[carry].append(round(100 * float(correct.double().mean()), 1))
    return accuracies, round(time.process_time() - started, 1)


def main() -> None:
    folder = Path(sys.argv[1])
    net = build_backbone(BackboneConfig(name="efficientnet_lite0", bottleneck=None), 3).eval()
    x, y = activations(folder, net)
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0))
    y = order[y]
    place = torch.zeros_like(y)
    for number in range(CLASSES):
        place[y == number] = torch.arange(int((y == number).sum()))
    held = place < HELD_OUT
    data = x[~held], y[~held], x[held], y[held]
    usual: dict[str, Any] = {"epochs": 10, "rate": 3e-4, "distill": 0.0, "norms": False, "seed": 0}
    variants: dict[str, dict[str, Any]] = {
        "frozen": {"when": "never"},
        "first session, last blocks": {"when": "first", **usual},
        "first session, batch-norm": {"when": "first", **usual, "rate": 1e-3, "norms": True},
        "every task, distilled": {"when": "every", **usual, "epochs": 5, "rate": 1e-4, "distill": 10.0},
        "joint, last blocks": {"when": "joint", **usual, "epochs": 6},
    }
    words = {"none": "", "anchor": ", transported", "oracle": ", oracle statistics"}
    records = []
    for name, how in variants.items():
        found, seconds = run(Top(net), data, **how)
        for carry, accuracies in found.items():
            named = name + (", not transported" if carry == "none" and len(found) > 1 else words[carry])
            records.append({"variant": named, "a_last": accuracies[-1], "accuracies": accuracies, "seconds": seconds})
            print(json.dumps(records[-1]), flush=True)
        save("adaptation", records)


if __name__ == "__main__":
    one_thread()
    main()
