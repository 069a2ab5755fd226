"""What does refining GATF's map gain on one and the same networks? Two machines train different ones from one seed.

python tools/unrefined.py RUN [RUN ...]   RUN: a finished run with method.refine=true and keep_networks=true

Each run is repeated on its own networks with the map as it was before it was refined; nothing is trained. Results go to
results/<bench>/unrefined.json, and from there into docs/results.md.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from gatf.config import load_config, read_recipe
from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.files import write_text
from gatf.io.run_folder import RunFolder
from results import RESULTS, UNREFINED

MEASURED = ("a_last", "a_inc")


def unrefined(folder: Path) -> dict[str, Any]:
    """The run's accuracies, and those with its map before it was refined."""
    place = RunFolder(folder)
    as_it_was = load_config(read_recipe(str(place.config)))
    if not getattr(as_it_was.method, "refine", False):
        raise UserError(f"{folder} has not refined its map")
    changed = {"method.refine": False, "keep_networks": False}
    config = load_config(read_recipe(str(place.config)), overrides=changed)
    with tempfile.TemporaryDirectory() as beside:
        found = {"refined": place.read_summary(), "before": start(config, Path(beside) / "run", networks_from=folder)}
    rounded = {when: {name: round(getattr(summary, name), 4) for name in MEASURED} for when, summary in found.items()}
    return {"run": place.path.name, "seed": config.seed, **rounded}


def main(folders: list[Path], out: Path) -> None:
    torch.set_num_threads(1)
    known = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else []
    for folder in folders:
        row = unrefined(folder)
        known = sorted([*(other for other in known if other["run"] != row["run"]), row], key=lambda each: each["seed"])
        write_text(out, json.dumps(known, indent=1) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    given = [Path(each).resolve() for each in sys.argv[1:]]
    main(given, RESULTS / given[0].parent.name.removeprefix("bench-") / UNREFINED)
