"""How small must the transport error be for Theorem 2 to certify predictions?

python experiments/certified.py RUN    a finished run; writes results/<bench>/certified.json

Compares the stored Gaussians after the last task with the true ones, as `--diagnostics` does. Then divides all errors
by 2, 10, 100 and so on, and counts the certified test images again.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from common import beside_bench, one_thread, rounded, save

from gatf.errors import UserError
from gatf.evaluation.diagnostics import certified_share
from gatf.evaluation.observer import MOMENT_IMAGES, DiagnosticsData
from gatf.experiment import reopen
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import class_moments

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
        rows.append(rounded({"divisor": divisor, **row}))
    return rows


if __name__ == "__main__":
    run = Path(sys.argv[1]).resolve()
    one_thread()
    save(beside_bench(run, "certified"), {"run": run.name, "rows": shares(run)})
