"""Predictions of the ONNX file beside a model, without torch, whose import takes most of the time of one prediction."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gatf.data.decode import CENTRAL_SHARE, BadImage, careful_pillow, decode, plain_view
from gatf.io.files import is_special
from gatf.model.predictions import Predictions

CLASSES, MODEL, SHARE = "gatf.classes", "gatf.model", "gatf.central_share"
"""Entries of the ONNX file's metadata: class names as JSON, the digest of the model it was written from, and the share
of large images that it sees, where that is not the usual one."""
LONGEST_HEADER = 2**26
AT_ONCE = 32
"""Images per batch: more take more memory and no less time."""


@dataclass(frozen=True)
class Exported:
    """A model as ONNX."""

    session: Any
    labels: tuple[str | int | bool, ...]
    shape: tuple[int, int, int]
    """Channels, height, width."""
    central_share: float = CENTRAL_SHARE
    """Share of the shorter side of large images that the network gets."""

    def read(self, paths: Sequence[str], *, skip_bad: bool) -> tuple[np.ndarray, list[str], list[str]]:
        """Pixels uint8 [n, channels, height, width] in the model's shape, their files, and with `skip_bad` the
        files that cannot be decoded."""
        channels, side, _ = self.shape
        box = plain_view(side, self.central_share)
        pixels, good, bad = [], [], []
        with careful_pillow():
            for path in paths:
                try:
                    pixels.append(decode(_content(path), path, side, box))
                    good.append(path)
                except BadImage:
                    if not skip_bad:
                        raise
                    bad.append(path)
        stacked = np.stack(pixels).transpose(0, 3, 1, 2) if pixels else np.empty((0, 3, side, side), np.uint8)
        return np.ascontiguousarray(stacked if channels == 3 else _grey(stacked)), good, bad

    def predict(self, pixels: np.ndarray) -> Predictions:
        some = [pixels[start : start + AT_ONCE] for start in range(0, len(pixels), AT_ONCE)]
        found = [self.session.run(["probabilities", "class_index"], {"images": each}) for each in some]
        probabilities, numbers = (np.concatenate(each) for each in zip(*found, strict=True))
        return Predictions(np.array(self.labels)[numbers], probabilities, np.zeros(len(numbers), dtype=bool))


def own_export(model: Path) -> Path | None:
    """Where updates of a model write it as ONNX by themselves: shop.gatf.onnx; None where a user's own export would
    have that name. `gatf export shop.gatf shop.onnx` is a user's."""
    return model.with_name(f"{model.name}.onnx") if model.suffix not in ("", ".onnx") else None


def beside(model: Path) -> tuple[Exported | None, str | None]:
    """The export of this very model beside it, shop.gatf.onnx or shop.onnx; None where there is none or no
    onnxruntime, and a sentence where a user's is of another version of the model."""
    own = own_export(model)
    found = _export_of(model, own)[0] if own is not None else None
    return (found, None) if found is not None else _export_of(model, model.with_suffix(".onnx"))


def _export_of(model: Path, path: Path) -> tuple[Exported | None, str | None]:
    """The export at this path, if it is of this very model; else perhaps a sentence."""
    if not model.is_file() or not path.is_file() or path == model:
        return None, None
    try:
        import onnxruntime
    except ImportError:
        return None, None
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        about = session.get_modelmeta().custom_metadata_map
        labels = json.loads(about[CLASSES])
        channels, height, width = (int(size) for size in session.get_inputs()[0].shape[1:])
        share = float(about.get(SHARE, CENTRAL_SHARE))
        if not 0 < share <= 1:
            raise ValueError(f"there is no share of {share}")
    except Exception:  # onnxruntime has exceptions of its own, and the file may be anybody's
        return None, f"{path} is not an export of a model and is ignored"
    if about.get(MODEL) != _digest(model):
        return None, f"{path} belongs to another version of {model.name} and is ignored; renew it with gatf export"
    return Exported(session, tuple(labels), (channels, height, width), share), None


def _digest(model: Path) -> str | None:
    """The digest in the header of the model's file; the file is not checked, because nothing else of it is used."""
    with model.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= LONGEST_HEADER else b""
    try:
        return str(json.loads(header)["__metadata__"]["digest"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _content(path: str) -> bytes:
    if is_special(Path(path)):
        raise BadImage(f"{path} is a pipe, a device or a socket, not an image")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadImage(f"image {path} cannot be read ({error.strerror})") from None


def _grey(pixels: np.ndarray) -> np.ndarray:
    """As `gatf.data.inputs.grey`."""
    red, green, blue = (pixels[:, channel].astype(np.int32) for channel in range(3))
    brightness: np.ndarray = ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)[:, None]
    return brightness
