"""A folder of photos through a pretrained network, as one would write it first: Pillow, batches of 64, `eval`.

python benchmarks/reference/photos.py FOLDER SIDE
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gatf.nets.mobile import EfficientNetLite0
from gatf.nets.pretrained import LITE, load_pretrained
from gatf.settings import PACKAGE

BATCH = 64


@torch.inference_mode()
def features(folder: Path, side: int) -> torch.Tensor:
    """Of every photo, [N, 1280]."""
    network = EfficientNetLite0()
    load_pretrained(network, PACKAGE)
    network.eval()
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in LITE)
    files, found = sorted(folder.iterdir()), []
    for start in range(0, len(files), BATCH):
        photos = [Image.open(file).convert("RGB").resize((side, side)) for file in files[start : start + BATCH]]
        pixels = torch.from_numpy(np.stack([np.asarray(photo) for photo in photos])).permute(0, 3, 1, 2)
        found.append(network((pixels / 255 - mean) / std))
    return torch.cat(found)


if __name__ == "__main__":
    features(Path(sys.argv[1]), int(sys.argv[2]))
