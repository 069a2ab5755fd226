"""How good would a transport have to be for Theorem 2 to certify answers? From the last network of a finished run.

python tools/certified.py RUN [OUT]    OUT is results/<name>/certified.json for a run of a bench of that name

What is stored of classes is compared with what is true of them, as `--diagnostics` does; then all errors are divided by
2, 10, 100 and so on, and the share of test images whose answer is proved safe is counted again, in every form.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from update_docs import ROOT

from gatf.errors import UserError
from gatf.evaluation.diagnostics import certified_share
from gatf.evaluation.observer import MOMENT_IMAGES, DiagnosticsData
from gatf.experiment import reopen
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import class_moments
from gatf.io.files import write_text

DIVISORS = (1, 2, 3, 10, 30, 100, 300)


@torch.no_grad()
def shares(folder: Path) -> list[dict[str, Any]]:
    """A row for every divisor; the first is what `certified.csv` has after the last task."""
    experiment = reopen(folder, {"device": "cpu"})
    method, last = experiment.method, len(experiment.scenario) - 1
    experiment.go_to(folder, last)
    stored = method.stored()
    if stored is None:
        raise UserError(f"{folder}: method '{method.name}' stores no Gaussians")
    door = DiagnosticsData(experiment.scenario, experiment.session.pipeline, experiment.session.device)
    with method.frozen():
        seen, labels = door.train(method.backbone, last, MOMENT_IMAGES, mirror=True)
        test, _ = door.test(method.backbone, last)
    found = class_moments(seen, labels, classes=len(stored))
    means, covs = found.mean - stored.means, found.covariance() - stored.covs
    rows = []
    for divisor in DIVISORS:
        true = Gaussians(stored.means + means / divisor, stored.covs + covs / divisor)
        (row,) = certified_share(test, stored, true)
        rows.append({"divisor": divisor, **{name: float(f"{value:.5g}") for name, value in row.items()}})
    return rows


def main(folder: Path, out: Path) -> None:
    rows = shares(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, json.dumps({"run": folder.name, "rows": rows}, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    main(place, Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "results" / place.parent.name / "certified.json")
