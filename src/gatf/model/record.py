"""What an update did, as numbers to keep in the model and as sentences to read."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from gatf.io.text import harmless
from gatf.settings import Strict


class UpdateRecord(Strict):
    """One fit or partial_fit. `str` of it says the same in plain words."""

    number: NonNegativeInt
    """0 for the first fit."""
    date: str
    added: tuple[str | int | bool, ...]
    """Classes that are new."""
    revisited: tuple[str | int | bool, ...] = ()
    """Classes known before, whose Gaussian took up the new images."""
    images: PositiveInt
    """Images learnt from."""
    held_out: NonNegativeInt
    """Images kept back to measure with."""
    epochs: NonNegativeInt
    seconds: NonNegativeFloat
    accuracy_new: float | None
    """Percent of the held-out images that are answered rightly, among all classes known."""
    expected_old: float | None = None
    """Percent of images of older classes that should be answered rightly; see `update.expected_accuracy`."""
    taken_for_old: float | None = None
    """Percent of the held-out images that are taken for an older class."""
    drift: float | None = None
    """How far older classes moved in feature space, as a fraction of their own spread."""
    transport_error: float | None = None
    """Theorem 2's η_μ, measured on the new classes, in units of a class's own spread in one direction."""
    temperature: float
    bytes_per_class: NonNegativeInt
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self._what(), self._how_well()]
        if self.drift is not None:
            lines.append(
                f"Learning the new images moved the older classes by {100 * self.drift:.0f} % of their own spread; "
                "what is stored of them was carried along."
            )
        if self.expected_old is not None:
            lines.append(f"Older classes: about {self.expected_old:.0f} % should still be answered rightly.")
        lines += [f"Warning: {warning}." for warning in self.warnings]
        return "\n".join(line for line in lines if line)

    def _what(self) -> str:
        verb = "First fit" if self.number == 0 else f"Update {self.number}"
        parts = [f"added {_listed(self.added)}"] if self.added else []
        parts += [f"went on with {_listed(self.revisited)}"] if self.revisited else []
        return f"{verb}: {' and '.join(parts)}, from {self.images} images in {self.seconds:.0f} s."

    def _how_well(self) -> str:
        if self.accuracy_new is None:
            return "No images were kept back, so nothing was measured."
        return f"Of {self.held_out} images kept back, {self.accuracy_new:.1f} % are answered rightly."


def _listed(labels: tuple[str | int | bool, ...], most: int = 8) -> str:
    names = ", ".join(harmless(label) for label in labels[:most])
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"{len(labels)} class{'es' if len(labels) != 1 else ''} ({names}{more})"
