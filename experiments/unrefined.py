"""What does refining GATF's map gain on identical networks? (Different machines train different ones from one seed.)

python experiments/unrefined.py RUN [RUN ...]   finished runs with method.refine=true and keep_networks=true

Repeats each run on its own networks with the map before refinement, without training. Writes
results/<bench>/unrefined.json.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import beside_bench, one_thread, save

from gatf.config import load_config, read_recipe
from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.run_folder import RunFolder

MEASURED = ("a_last", "a_inc")


def unrefined(folder: Path) -> dict[str, Any]:
    """The accuracies of the run, and those with its map before refinement."""
    place = RunFolder(folder)
    as_it_was = load_config(read_recipe(str(place.config)))
    if not getattr(as_it_was.method, "refine", False):
        raise UserError(f"{folder} did not refine its map")
    changed = {"method.refine": False, "keep_networks": False}
    config = load_config(read_recipe(str(place.config)), overrides=changed)
    with tempfile.TemporaryDirectory() as beside:
        found = {"refined": place.read_summary(), "before": start(config, Path(beside) / "run", networks_from=folder)}
    rounded = {when: {name: round(getattr(summary, name), 4) for name in MEASURED} for when, summary in found.items()}
    return {"run": place.path.name, "seed": config.seed, **rounded}


def main(folders: list[Path], out: Path) -> None:
    one_thread()
    known = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else []
    for folder in folders:
        row = unrefined(folder)
        known = sorted([*(other for other in known if other["run"] != row["run"]), row], key=lambda each: each["seed"])
        save(out, known)
        print(json.dumps(row))


if __name__ == "__main__":
    given = [Path(each).resolve() for each in sys.argv[1:]]
    main(given, beside_bench(given[0], "unrefined"))
