"""The same small search for the best methods of the leaderboard: learning rate of later tasks × stability weight.

python experiments/tuning.py [--methods dpcr adc] [--folder RUNS]

Nine settings per method, three tasks of cifar100-16px-v2. Accuracy over all seen classes is measured on a fifth of the
training images, held out. Every finished run is written to experiments/results/tuning.json; a repeated command runs
what is missing. Runs share the networks that would be the same, such as those of adc, ldc and dpcr.
"""

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from common import load, one_thread, save

from gatf.config import load_config
from gatf.experiment import resume
from gatf.io.run_folder import RunFolder
from gatf.network_reuse import network_source_beside
from gatf.settings import flat

NAME, RECIPE = "tuning", "cifar100-16px-v2"
WEIGHTS: dict[str, str] = {
    "gatf": "method.topology",
    "gatf plus": "method.topology",
    "adagauss": "method.distill",
    "dpcr": "method.distill",
    "adc": "method.base.distill",
    "ldc": "method.base.distill",
}
"""Methods and their stability weights."""
RATES, FACTORS = (0.01, 0.02, 0.05), (1 / 3, 1.0, 3.0)
HELD_OUT = {"data.val_fraction": 0.2, "data.evaluate_on": "validation", "scenario.stop_after": 3, "keep_networks": True}


def settings(row: str, rate: float, factor: float) -> tuple[str, dict[str, Any]]:
    """The method of a row, and the settings of one run."""
    method, _, preset = row.partition(" ")
    chosen = {"method.preset": preset} if preset else {}
    weight = flat(load_config(RECIPE, method=method, overrides=chosen).model_dump(mode="json"))[WEIGHTS[row]]
    return method, chosen | HELD_OUT | {"optimisation.next.lr": rate, WEIGHTS[row]: float(f"{factor * weight:.3g}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--folder", type=Path, help="where the runs are kept; the same folder continues them")
    given = parser.parse_args()
    one_thread()
    folder = given.folder or Path(tempfile.mkdtemp())
    for row, rate, factor in product(given.methods, RATES, FACTORS):
        method, changes = settings(row, rate, factor)
        key = {"row": row, "rate": rate, "weight": changes[WEIGHTS[row]]}
        records = load(NAME, [])
        if any(key.items() <= one.items() for one in records):
            continue
        config = load_config(RECIPE, method=method, overrides=changes | {"device": "cpu"})
        place = folder / "-".join(map(str, key.values())).replace(" ", "-")
        RunFolder(place).create(config.to_yaml())
        summary = resume(place, networks_from=network_source_beside(place))
        found = {name: round(getattr(summary, name), 2) for name in ("a_last", "a_inc", "forgetting")}
        save(NAME, [*records, key | found])
        sys.stdout.write(f"{key} {found}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
