"""The record of an update: numbers that the model keeps, and sentences for users."""

import json
from typing import Any, Literal

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from gatf.io.text import harmless
from gatf.settings import Strict

FEWEST_TO_REPORT = 20
"""Images without which no percentage is reported and no warning given."""
RECORDS_KEPT = 100
"""Records that a model keeps, the first and the newest ones: a file with all of them would grow for ever."""
ITEMS_KEPT, LETTERS_KEPT = 2_000, 2**17
"""Names and warnings that the records may have together, as items and letters of JSON: a model file's header is
limited. The newest records keep theirs; older ones have counts instead of names."""


class EncoderUpgrade(Strict):
    """How a model was moved to another encoder (`gatf upgrade`)."""

    source: str
    target: str
    pairs: PositiveInt
    map: str
    """The kind of map."""
    ridge: NonNegativeFloat
    measured: bool
    """Whether the accuracies were measured on labelled pairs; else they are forecasts from the old probabilities."""
    before: float
    after: float
    low: float
    high: float
    """Accuracy in percent on items like the pairs, before and after, with the range of the latter."""
    enough: PositiveInt | None
    """Pairs with which the loss would be small; None: these pairs do not show it."""
    recall: float
    """Share of the ten nearest neighbours among re-embedded vectors that mapped vectors find, on left-out pairs."""

    @property
    def loss(self) -> float:
        return self.before - self.after

    def __str__(self) -> str:
        how = "measured" if self.measured else "expected"
        more = (
            "" if self.enough is None or self.enough <= self.pairs else f"; about {self.enough} pairs would be enough"
        )
        return (
            f"Encoder upgrade from {self.source} to {self.target} with {self.pairs} pairs ({self.map} map).\n"
            f"Accuracy on items like the pairs, {how}: {self.before:.0f} % before, {self.after:.0f} % after (between "
            f"{self.low:.0f} and {self.high:.0f}){more}.\n"
            f"Moved vectors find {100 * self.recall:.0f} % of the ten nearest neighbours of re-embedded ones."
        )


class UpdateRecord(Strict):
    """The record of one fit or partial_fit; `str` gives it in sentences."""

    number: NonNegativeInt
    """0 for the first fit."""
    date: str
    added: tuple[str | int | bool, ...]
    """Classes that are new."""
    revisited: tuple[str | int | bool, ...] = ()
    """Known classes with new images, which were merged into their statistics."""
    unnamed: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """Numbers of added and revisited classes, if their names are no longer kept."""
    merged: NonNegativeInt = 0
    """Number of other models that were merged into this one."""
    forgotten: NonNegativeInt = 0
    """Number of classes that were removed."""
    images: NonNegativeInt
    """Training images."""
    kind: Literal["images", "vectors"] = "images"
    """What was learnt; "images" below stands for vectors, too."""
    held_out: NonNegativeInt
    """Images that measured the update: held out, or learnt and left out in turn."""
    left_out: bool = False
    """Whether they were learnt, and each was left out in turn (`geometry.leave_one_out`)."""
    duplicates: NonNegativeInt = 0
    """Exact copies of other images of the update. No copy of a held-out image is trained on."""
    epochs: NonNegativeInt
    seconds: NonNegativeFloat
    accuracy_new: float | None
    """Accuracy on these images in percent, among all known classes."""
    accuracy_by_class: float | None = None
    """The same, averaged over classes."""
    held_out_evenly: NonNegativeFloat | None = None
    """Equally distributed images that would give `accuracy_by_class` the same standard error."""
    expected_old: float | None = None
    """Forecast of the accuracy on older classes in percent; see `incremental.statistics.Measured`."""
    expected_old_low: float | None = None
    expected_old_high: float | None = None
    """The range of that forecast."""
    expected_all: float | None = None
    """The same over all classes, from the images of all updates."""
    expected_all_low: float | None = None
    expected_all_high: float | None = None
    measured_images: NonNegativeInt = 0
    """Images behind `expected_all`."""
    taken_for_old: float | None = None
    """Percent of the held-out images of new classes predicted as an older class."""
    drift: float | None = None
    """Movement of older classes in feature space, as a fraction of their spread."""
    transport_error: float | None = None
    """Theorem 2's η_μ, measured on the new classes, in units of a class's spread in one direction."""
    rejection: Literal["promised", "estimated", "withdrawn"] | None = None
    """Status of the rate of wrong rejections (`unknown`). Promised: images of every class were held out with this
    network. Estimated: derived from the movement of new classes. Withdrawn: unknown for older classes."""
    class_mean_error: NonNegativeFloat | None = None
    """The same by each class's own covariance."""
    class_covariance_error: NonNegativeFloat | None = None
    """Theorem 2's η_Σ likewise."""
    chosen: Literal["frozen", "adapted", "trained"] | None = None
    """The chosen candidate, if a frozen backbone was compared with an adapted or a trained one."""
    other_accuracy_new: float | None = None
    """`accuracy_new` of the other candidate."""
    other_expected_old: float | None = None
    """`expected_old` of the other candidate."""
    other_seconds: NonNegativeFloat | None = None
    """`seconds` of the other candidate."""
    not_adapted: str | None = None
    """Why no adapted candidate was trained."""
    temperature: float
    bytes_per_class: NonNegativeInt
    job: str | None = None
    """Id of the server's update that made this record."""
    warnings: tuple[str, ...] = ()
    upgrade: EncoderUpgrade | None = None
    """Where this was no update with new items, but a change of the encoder."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, values: Any) -> Any:
        """Without an entry of former versions that nothing reads."""
        if isinstance(values, dict) and "foretold_new" in values:
            return {name: value for name, value in values.items() if name != "foretold_new"}
        return values

    @model_serializer(mode="wrap")
    def _without_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without entries that most records do not have."""
        found: dict[str, Any] = dump(self)
        usual = {"unnamed": None, "job": None, "kind": "images", "merged": 0, "forgotten": 0, "upgrade": None}
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    @property
    def classes_added(self) -> int:
        return len(self.added) if self.unnamed is None else self.unnamed[0]

    @property
    def classes_revisited(self) -> int:
        return len(self.revisited) if self.unnamed is None else self.unnamed[1]

    def abridged(self) -> "UpdateRecord":
        """The same with counts instead of names, and without warnings."""
        counts = (self.classes_added, self.classes_revisited)
        return self.model_copy(update={"added": (), "revisited": (), "unnamed": counts, "warnings": ()})

    @property
    def measured(self) -> tuple[float, float | None]:
        """Number of held-out images and their accuracy in percent, with equal weights for classes (in old records, for
        images)."""
        if self.accuracy_by_class is None or self.held_out_evenly is None:
            return float(self.held_out), self.accuracy_new
        return self.held_out_evenly, self.accuracy_by_class

    @property
    def class_errors(self) -> tuple[float, float] | None:
        """Mean and covariance error of the transport, where both were measured."""
        if self.class_mean_error is None or self.class_covariance_error is None:
            return None
        return self.class_mean_error, self.class_covariance_error

    def __str__(self) -> str:
        if self.upgrade is not None:
            rejects = "" if self.rejection is None else f"\nThe rate of wrong rejections is {self.rejection}."
            return f"{self.upgrade}\nProbabilities were recalibrated on the pairs.{rejects}"
        lines = [self._what(), self._how_well()]
        if self.chosen is not None:
            lines.append(self._choice())
        if self.drift is not None:
            lines.append(
                f"Training moved the older classes by {100 * self.drift:.0f} % of their spread; their statistics were "
                "transported."
            )
        if self.expected_old is not None:
            span = ""
            if self.expected_old_low is not None and self.expected_old_high is not None:
                span = f" (between {self.expected_old_low:.0f} and {self.expected_old_high:.0f})"
            lines.append(f"Older classes: expected accuracy about {self.expected_old:.0f} %{span}.")
        if self.expected_old is not None and self.expected_all is not None:
            span = f"between {self.expected_all_low:.0f} and {self.expected_all_high:.0f}"
            lines.append(
                f"All classes: about {self.expected_all:.0f} % ({span}), from {self.measured_images} {self.kind}."
            )
        lines += [f"Warning: {warning}." for warning in self.warnings]
        return "\n".join(line for line in lines if line)

    def _what(self) -> str:
        verb = "First fit" if self.number == 0 else f"Update {self.number}"
        if self.forgotten:
            return f"{verb}: forgot {_listed((), self.forgotten)}."
        if self.merged:
            verb = f"{verb}, merged with {self.merged} other model{'s' * (self.merged > 1)}"
        added, revisited = self.classes_added, self.classes_revisited
        parts = [f"added {_listed(self.added, added)}"] if added else []
        parts += [f"added {self.kind} of {_listed(self.revisited, revisited)}"] if revisited else []
        time = f"{self.seconds:.0f} s" if self.seconds >= 1 else "less than 1 s"
        return f"{verb}: {' and '.join(parts)}, from {self.images} {self.kind} in {time}."

    def _how_well(self) -> str:
        if self.merged or self.forgotten:
            return ""
        if self.accuracy_new is None:
            return f"No {self.kind} were held out, so the accuracy was not measured."
        if self.shown_accuracy is None:
            return f"Only {self.held_out} {self.kind} measured this update: too few for a percentage."
        if self.left_out:
            return f"Accuracy on these {self.held_out} {self.kind}, each left out in turn: {self.accuracy_new:.1f} %."
        return f"Accuracy on {self.held_out} held-out {self.kind}: {self.accuracy_new:.1f} %."

    @property
    def shown_accuracy(self) -> float | None:
        """`accuracy_new`, if enough images measured it to report a percentage."""
        return self.accuracy_new if self.held_out >= FEWEST_TO_REPORT else None

    def _choice(self) -> str:
        kept = {"frozen": "The pretrained backbone stays frozen", "adapted": "The backbone was adapted"}.get(
            self.chosen or "", "A network was trained from scratch"
        )
        if self.not_adapted is not None:
            return f"{kept}: {self.not_adapted}."
        if self.other_accuracy_new is None:
            return f"{kept}."
        other = "frozen"
        if self.chosen == "frozen":
            other = "adapted" if self.other_seconds is None else f"adapted (in {self.other_seconds:.0f} s)"
        old = self.other_expected_old
        older = "" if old is None else f", about {old:.0f} % expected on older classes"
        return f"{kept}; {other}, its measured accuracy is {self.other_accuracy_new:.1f} %{older}."


def remembered(history: tuple[UpdateRecord, ...]) -> tuple[UpdateRecord, ...]:
    """The records that a model keeps; their numbers tell which are missing. Names take a bounded part of the header,
    however many classes an update has and however long their names are."""
    kept = history if len(history) <= RECORDS_KEPT else (history[0], *history[-RECORDS_KEPT + 1 :])
    items = letters = 0
    bounded: list[UpdateRecord] = []
    for record in reversed(kept):
        text = json.dumps([record.added, record.revisited, record.warnings, record.not_adapted])
        items, letters = items + text.count(",") + text.count("[") + text.count("{"), letters + len(text)
        bounded.append(record if items <= ITEMS_KEPT and letters <= LETTERS_KEPT else record.abridged())
    return tuple(reversed(bounded))


def _listed(labels: tuple[str | int | bool, ...], count: int, most: int = 8) -> str:
    classes = f"{count} class{'es' if count != 1 else ''}"
    if not labels:
        return classes
    names = ", ".join(harmless(label) for label in labels[:most])
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"{classes} ({names}{more})"
