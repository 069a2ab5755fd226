"""Photos of twenty species of CUB-200-2011 as `gatf learn` takes them: a folder per update, in it one per species.

python docs/examples/birds.py CUB_200_2011 birds     writes birds/1 … birds/4 (to learn) and birds/test
"""

import random
import shutil
import sys
from pathlib import Path

SPECIES, PER_UPDATE, SEED = 20, 5, 1


def table(path: Path) -> dict[str, str]:
    """A text file of CUB: an image's number, and something about it."""
    return dict(line.split() for line in path.read_text().splitlines())


def main(source: Path, target: Path) -> None:
    paths, species, training = (
        table(source / name) for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt")
    )
    chosen = random.Random(SEED).sample(sorted(set(species.values()), key=int), SPECIES)
    for number, path in paths.items():
        if species[number] not in chosen:
            continue
        update = 1 + chosen.index(species[number]) // PER_UPDATE
        name = Path(path).parent.name.split(".")[1].replace("_", " ")
        folder = target / (str(update) if training[number] == "1" else "test") / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "images" / path, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
