"""docs/uncertainty.md and README's table of photos, from what `tools/updates.py` measured."""

import json
from pathlib import Path
from typing import Any

from results import MISSING, NOT_YET, RESULTS, table

UPDATES = RESULTS / "updates"
WAYS = ("distance", "quotient", "relative distance", "energy", "probability", "own")
COMPARED = (
    ("fine-tuning", "birds-finetune"),
    ('the pretrained network adapted in every update (`adapt="always"`, GATF)', "birds-adapted"),
    ('the pretrained network as it is, LDA (`adapt="never"`)', "birds-never"),
    ('`gatf` as it comes (`adapt="auto"`)', "birds-auto"),
)
HARD = (
    ("30 updates of one species each", "birds-singles", "birds-singles-frozen"),
    ("3 images per species", "birds-three", "birds-three-frozen"),
    ("1 image per species", "birds-one", "birds-one-frozen"),
    ("classes of 500 and of 10 images in turn", "cifar-imbalance", "cifar-imbalance-frozen"),
)


def read(name: str, folder: Path = UPDATES) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def shown(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def compared_table() -> str:
    """Accuracy over all species so far, after each update of five."""
    rows = []
    for words, name in COMPARED:
        found = read(name)
        cells = [NOT_YET, "", "", "", ""] if found is None else [shown(row["accuracy"]) for row in found["rows"]]
        if found is not None:
            cells.append(f"{sum(row['cpu_seconds'] for row in found['rows']):.0f}")
        rows.append([words, *cells])
    return table(["", "5 species", "10", "15", "20", "CPU-seconds of learning"], rows)


def hard_table() -> str:
    """The end of long, small and lopsided series of updates."""
    rows = []
    for words, auto, never in HARD:
        both = [read(name) for name in (auto, never)]
        last = [None if found is None else found["rows"][-1] for found in both]
        cells = [NOT_YET if row is None else shown(row["accuracy"]) for row in last]
        classes = next((row["classes"] for row in last if row is not None), None)
        chance = MISSING if classes is None else shown(100 / classes)
        adapted = MISSING if both[0] is None else str(both[0]["updates_adapted"])
        rows.append([words, *cells, chance, adapted])
    return table(["", "auto %", "never %", "chance %", "updates that adapted"], rows)


def forecast_table(name: str) -> str:
    found = read(name)
    if found is None:
        return f"*{NOT_YET}*\n"
    rows = []
    for row in found["rows"]:
        if row["accuracy_old"] is None:
            continue
        low, high = row["expected_old_low"], row["expected_old_high"]
        span = MISSING if low is None else f"{low:.0f} to {high:.0f}"
        inside = MISSING if low is None else "yes" if low <= row["accuracy_old"] <= high else "no"
        cells = [shown(row["accuracy"]), shown(row["accuracy_old"]), shown(row["expected_old"], 0), span, inside]
        rows.append([str(row["classes"]), *cells, shown(row["calibration_error"])])
    headings = [
        "classes",
        "accuracy %",
        "older classes: true %",
        "forecast %",
        "range",
        "inside",
        "calibration error %",
    ]
    return table(headings, rows, left=0)


def unknown_table(names: tuple[str, ...]) -> str:
    """Mean over updates of how well unknown images are told."""
    rows = []
    for name in names:
        found = read(name)
        if found is None:
            rows.append([name, NOT_YET, *[""] * len(WAYS)])
            continue
        for words, column in (
            ("classes never taught", "auroc"),
            ("noise", "auroc_noise"),
            ("one colour", "auroc_plain"),
        ):
            means = []
            for way in WAYS:
                known = [row[column][way] for row in found["rows"] if way in row[column]]
                means.append(f"{sum(known) / len(known):.3f}" if known else MISSING)
            rows.append([f"{found['what']}: {words}", *means])
    return table(["unknown images", *WAYS[:-1], "what `unknown` uses"], rows)


def rejection_table(names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        found = read(name)
        for row in [] if found is None else found["rows"]:
            if "rejected_known" in row:
                cells = [shown(row["rejected_known"]), shown(row["rejected_strangers"]), row["rejection"]]
                rows.append([name, str(row["classes"]), *cells])
    headings = ["", "classes", "known images rejected %", "of classes never taught %", "the rate was"]
    return table(headings, rows or [[NOT_YET, *[""] * 4]])


def certified_rows(names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        found = read(name)
        for row in [] if found is None else found["rows"][1:]:
            if "certified" in row:
                cells = [shown(row["accuracy"]), shown(row["certified"]), shown(row["accuracy_certified"])]
                rows.append([name, str(row["classes"]), *cells])
    return table(["", "classes", "accuracy %", "certified %", "right among them %"], rows or [[NOT_YET, *[""] * 4]])


def readme_photos() -> str:
    return compared_table()


def uncertainty_page() -> str:
    both = ("birds-frozen", "cifar")
    return PAGE.format(
        compared=compared_table(),
        hard=hard_table(),
        birds=forecast_table("birds-frozen"),
        cifar=forecast_table("cifar"),
        adapted=forecast_table("birds-adapted"),
        unknown=unknown_table(both),
        rejections=rejection_table(both),
        certified=certified_rows(both),
    )


PAGE = """\
# Photos, and how far to trust an answer

Generated from the files in `results/updates/` by `python tools/update_docs.py`. `python tools/updates.py` lists the
series of updates and runs them; each takes minutes on one core. Birds are 20 species of CUB-200-2011 that a seed
chose, at 96 pixels, about 30 training images of each, with EfficientNet-Lite0 and ImageNet's weights; CIFAR is 20
classes of CIFAR-100 with 200 training images each, at 32 pixels, with a network trained from scratch by GATF. What is
measured here is measured on test images, which no update saw.

## What to use for photos

Five species per update, accuracy over all species so far:

{compared}
Fine-tuning forgets. The frozen network with a linear discriminant forgets nothing, because nothing moves, and does not
depend on the order in which species come. `adapt="auto"` computes that first, and takes an adapted network only where
it promises clearly more over all classes.

Long, small and lopsided series, at their end (the imbalance is of CIFAR-100 photos enlarged to 96 pixels):

{hard}
## Is the forecast for older classes true?

After every update `gatf learn` says how many images of older classes should still be answered rightly, of which none
is left to measure with. It draws points from the stored Gaussians, as much farther from the means as the images kept
back in this and all earlier updates show that images lie. It is a guess, and says a range.

Birds, two species per update, the pretrained network as it is:

{birds}
CIFAR, two classes per update, a network that GATF trains:

{cifar}
Birds, five species per update, the network adapted every time:

{adapted}
The calibration error is the expected difference between an answer's probability and how often such answers are right.
A frozen network's is fitted to the images kept back by all updates, which two species per update make six more of.

## Is an unknown image told?

Area under the ROC curve for telling images of classes that were never taught, of noise and of one colour from test
images of known classes; mean over updates. 0.5 is chance.

{unknown}
Distance alone takes images of nothing for known ones on a pretrained network, because their features lie near the
centre of all classes. The quotient of the squared distance to the nearest class and that to the centre tells them, but
not all noise on a network trained from scratch. So `unknown` uses both (Mahalanobis distances by the mean covariance),
each as a multiple of what a tenth of the known images kept back exceeds, and the larger one decides; methods that keep
no Gaussians use the energy. That was decided on other species than these, on the networks of a run of `cifar100-16px`
and on digits.

With `unknown=0.05`, 5 % of known images may be rejected. After a first fit, or an update with images of every class,
that is promised; later it is an estimate:

{rejections}
So few strangers are told at so low a rate: species differ less from each other than images of one species do.

## What is certified

`predict --certificate` says which answers stand wherever the true Gaussians lie within the measured error of the stored
ones (Theorem 2). On a frozen network nothing is carried, so that nearly all are; an answer can be safe from the
transport and still be wrong.

{certified}"""
