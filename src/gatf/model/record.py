"""The record of an update: numbers that the model keeps, and sentences for users."""

import json
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, SerializerFunctionWrapHandler, model_serializer

from gatf.io.text import harmless
from gatf.settings import Strict

RECORDS_KEPT = 100
"""Records that a model keeps, the first and the newest ones: a file with all of them would grow for ever."""
ITEMS_KEPT, LETTERS_KEPT = 2_000, 2**17
"""Names and warnings that the records may have together, as items and letters of JSON: a model file's header is
limited. The newest records keep theirs; older ones have counts instead of names."""


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
    """How many classes were added and revisited, where their names are not kept; not written where they are."""
    images: PositiveInt
    """Training images."""
    held_out: NonNegativeInt
    """Images that were held out for measuring."""
    duplicates: NonNegativeInt = 0
    """Images that are exact copies of another image of the update; no copy of a held-out image is trained on."""
    epochs: NonNegativeInt
    seconds: NonNegativeFloat
    accuracy_new: float | None
    """Percent of the held-out images that are classified correctly, among all known classes."""
    accuracy_by_class: float | None = None
    """The same, averaged over the classes with held-out images."""
    held_out_evenly: NonNegativeFloat | None = None
    """Number of equally distributed images that would give `accuracy_by_class` the same standard error."""
    expected_old: float | None = None
    """Forecast of the accuracy on older classes in percent; see `statistics.forecast_old`."""
    expected_old_low: float | None = None
    expected_old_high: float | None = None
    """The range of that forecast."""
    foretold_new: tuple[float, ...] | None = None
    """Accuracy on points drawn from the Gaussians of the added classes at each of `statistics.SPREADS`, to compare with
    `accuracy_by_class`."""
    taken_for_old: float | None = None
    """Percent of the held-out images of new classes that are predicted as an older class."""
    drift: float | None = None
    """How far older classes moved in feature space, as a fraction of their own spread."""
    transport_error: float | None = None
    """Theorem 2's η_μ, measured on the new classes, in units of a class's own spread in one direction."""
    rejection: Literal["promised", "estimated", "withdrawn"] | None = None
    """The status of the rate of wrong rejections (`unknown`) from this update on. Promised: images of every class were
    held out with this network. Estimated: for older classes it is derived from the movement of new ones. Withdrawn: no
    held-out image showed how far older classes moved. None: not recorded, or the method has no rejection."""
    class_mean_error: NonNegativeFloat | None = None
    """The same by each class's own covariance; not measured where a class was revisited."""
    class_covariance_error: NonNegativeFloat | None = None
    """Theorem 2's η_Σ likewise."""
    chosen: Literal["frozen", "adapted"] | None = None
    """The candidate that was chosen, where a frozen and an adapted backbone were compared."""
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

    @model_serializer(mode="wrap")
    def _without_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without entries that most records do not have."""
        found: dict[str, Any] = dump(self)
        return {name: value for name, value in found.items() if value is not None or name not in ("unnamed", "job")}

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
        lines += [f"Warning: {warning}." for warning in self.warnings]
        return "\n".join(line for line in lines if line)

    def _what(self) -> str:
        verb = "First fit" if self.number == 0 else f"Update {self.number}"
        added, revisited = self.classes_added, self.classes_revisited
        parts = [f"added {_listed(self.added, added)}"] if added else []
        parts += [f"added images of {_listed(self.revisited, revisited)}"] if revisited else []
        return f"{verb}: {' and '.join(parts)}, from {self.images} images in {self.seconds:.0f} s."

    def _how_well(self) -> str:
        if self.accuracy_new is None:
            return "No images were held out, so the accuracy was not measured."
        return f"Accuracy on {self.held_out} held-out images: {self.accuracy_new:.1f} %."

    def _choice(self) -> str:
        kept = "The pretrained backbone stays frozen" if self.chosen == "frozen" else "The backbone was adapted"
        if self.not_adapted is not None:
            return f"{kept}: {self.not_adapted}."
        if self.other_accuracy_new is None:
            return f"{kept}."
        other = "frozen"
        if self.chosen == "frozen":
            other = "adapted" if self.other_seconds is None else f"adapted (in {self.other_seconds:.0f} s)"
        old = self.other_expected_old
        older = "" if old is None else f", about {old:.0f} % expected on older classes"
        return f"{kept}; {other}, its accuracy on held-out images is {self.other_accuracy_new:.1f} %{older}."


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
