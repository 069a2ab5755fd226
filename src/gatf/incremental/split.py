"""The classes of an update, and which of its images are trained on."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gatf.data.class_names import spelled_as_known
from gatf.data.listing import share_of_each_class, some
from gatf.errors import UserError
from gatf.methods.parts.gaussian import transports_gaussians
from gatf.model.state import Label, Model
from gatf.seeding import generator

FEWEST_TO_SPLIT = 5
"""Different images that a class must have for one of them to be held out."""


@dataclass(frozen=True)
class Split:
    """The classes of an update, and which of its images are trained on or held out."""

    revisited: tuple[int, ...]
    """Class numbers in the model."""
    added: tuple[Label, ...]
    numbers: Tensor
    """Task class of each image, [N]: the revisited classes first, then the added ones."""
    final_numbers: Tensor
    """Class number of each image in the updated model, [N]."""
    trained: Tensor
    held_out: Tensor
    duplicates: int = 0
    """Images that are exact copies of an earlier image of the update."""
    mislabelled: tuple[Label, ...] = ()
    """Classes that share an image with another class."""
    contradictions: int = 0
    """Images with more than one label."""
    unique: Tensor | None = None
    """Which trained images have no copy in the update, bool; None: all."""
    learnt: Tensor | None = None
    """Items of each task class that are learnt, [classes], where `numbers` has a sample of them only."""

    @property
    def classes(self) -> int:
        return len(self.revisited) + len(self.added)

    @property
    def counts(self) -> Tensor:
        """Items of each task class that are learnt, [classes]."""
        return (
            torch.bincount(self.numbers[self.trained], minlength=self.classes) if self.learnt is None else self.learnt
        )


def arranged(model: Model, given_labels: np.ndarray) -> tuple[Split, tuple[Label, ...]]:
    """The classes of items with these labels, none of them held out, and the labels of the task's classes in order."""
    distinct, found = np.unique(spelled_as_known(given_labels, model.labels), return_inverse=True)
    labels: list[Label] = distinct.tolist()
    _check_kind(model.labels, labels)
    known = {label: number for number, label in enumerate(model.labels)}
    again = [label for label in labels if label in known]
    if again and not (model.method.revisits or transports_gaussians(model.method)):
        raise UserError(
            f"method '{model.config.method.name}' cannot learn more images of known classes ({some(again)}); give "
            "new classes only, or use gatf, adagauss, ncm, slda, ranpac, klda, acil or ds-al"
        )
    order = sorted(range(len(labels)), key=lambda place: (labels[place] not in known, place))
    rank = torch.empty(len(labels), dtype=torch.int64)
    rank[order] = torch.arange(len(labels))
    numbers = rank[torch.from_numpy(found.reshape(-1))]
    ordered = tuple(labels[place] for place in order)
    revisited = tuple(known[label] for label in ordered if label in known)
    added = tuple(label for label in ordered if label not in known)
    places = torch.tensor([*revisited, *range(len(known), len(known) + len(added))], dtype=torch.int64)
    everything = torch.arange(len(numbers))
    return Split(revisited, added, numbers, places[numbers], everything, everything[:0]), ordered


def split_update(
    model: Model, given_labels: np.ndarray, share: float, seed: int, copies: Tensor | None = None
) -> Split:  # fmt: skip
    """Which classes are new, and a share of each class's images to hold out: none of classes with fewer than five.

    `copies` [N] has for each image the number of the first image with the same content (None: all differ). Only first
    images are held out, and copies of a held-out image are not trained on, so no image is on both sides.
    """
    split, labels = arranged(model, given_labels)
    numbers = split.numbers
    first = torch.arange(len(numbers)) if copies is None else copies
    originals = torch.nonzero(first == torch.arange(len(numbers))).squeeze(1)
    held_out = torch.zeros(len(numbers), dtype=torch.bool)
    if share > 0:
        draws = [generator(seed, "held out", model.updates, number) for number in range(len(labels))]
        held_out[originals] = share_of_each_class(numbers[originals], share, draws, fewest=FEWEST_TO_SPLIT)
    contradicting = numbers != numbers[first]
    involved = torch.cat([numbers[contradicting], numbers[first[contradicting]]]).unique()
    return replace(
        split,
        trained=torch.nonzero(~held_out[first]).squeeze(1),
        held_out=torch.nonzero(held_out).squeeze(1),
        unique=(torch.bincount(first, minlength=len(first)) == 1)[first[~held_out[first]]],
        duplicates=len(numbers) - len(originals),
        mislabelled=tuple(labels[number] for number in involved.tolist()),
        contradictions=len(first[contradicting].unique()),
    )


def _check_kind(known: tuple[Label, ...], labels: list[Label]) -> None:
    """Refuse a mixture of text and numbers: 1 and "1" would be two classes."""
    if known and type(known[0]) is not type(labels[0]):
        kind = {str: "text", bool: "true or false"}.get(type(known[0]), "whole numbers")
        raise UserError(
            f"the labels of the model are {kind} (such as {known[0]!r}), but the new ones are like {labels[0]!r}"
        )
