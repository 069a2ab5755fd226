"""Arrays and tensors as uint8 images [N, C, H, W] and labels."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.errors import UserError

CHANNELS = (1, 3)


def stacked(items: list[Any]) -> Any:
    if not items:
        raise UserError("there are no images: found array with 0 sample(s), at least 1 is needed")
    if all(isinstance(item, Tensor) for item in items):
        shapes = {tuple(item.shape) for item in items}
        return torch.stack(items) if len(shapes) == 1 else _refuse_shapes(shapes)
    arrays = [np.asarray(item) for item in items]
    shapes = {array.shape for array in arrays}
    return np.stack(arrays) if len(shapes) == 1 else _refuse_shapes(shapes)


def _refuse_shapes(shapes: set[tuple[int, ...]]) -> Any:
    raise UserError(f"the images have different shapes ({', '.join(map(str, sorted(shapes)[:3]))}); make them alike")


def as_pixels(given: Any) -> Tensor:
    """uint8 [N, C, H, W] of an array or tensor: [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    if type(given).__module__.startswith("scipy.sparse"):
        raise UserError("the images are a sparse matrix, but dense data is required; convert them with X.toarray()")
    if not isinstance(given, (np.ndarray, Tensor)):
        raise UserError(
            f"images of type {type(given).__name__} are not understood; give an array, a tensor, a list of paths or "
            "PIL images, or a folder"
        )
    values = given.detach().cpu() if isinstance(given, Tensor) else _from_numpy(given)
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim != 4:
        shape = tuple(values.shape)
        raise UserError(
            f"the images have shape {shape}: expected [N, H, W], [N, H, W, C] or [N, C, H, W]. Reshape your data, e.g. "
            "rows of 64 pixels with X.reshape(-1, 8, 8)"
        )
    elif _channels_last(tuple(values.shape), prefer=isinstance(given, np.ndarray)):
        values = values.permute(0, 3, 1, 2)
    if len(values) == 0:
        raise UserError(f"there are no images: found array with 0 sample(s) (shape={tuple(values.shape)})")
    return _as_bytes(values).contiguous()


def _from_numpy(given: np.ndarray) -> Tensor:
    if given.dtype.kind not in "uif":
        problem = "Complex data not supported: " if given.dtype.kind == "c" else ""
        raise UserError(f"{problem}pixels of type {given.dtype} are not numbers between 0 and 255")
    if given.dtype.kind == "u" and given.dtype.itemsize > 1:
        given = given.astype(np.int64)
    return torch.from_numpy(np.array(given, dtype=given.dtype.newbyteorder("="), order="C"))


def _channels_last(shape: tuple[int, ...], *, prefer: bool) -> bool:
    """Where the channels are: arrays usually have them last, tensors second; the sizes decide where they can."""
    second, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if not second and not last:
        raise UserError(f"images of shape {shape} have neither 1 nor 3 channels; give grey or colour images")
    return prefer if second and last else last


def _as_bytes(values: Tensor) -> Tensor:
    if values.dtype == torch.uint8:
        return values
    if values.is_complex() or values.dtype == torch.bool:
        raise UserError(f"pixels of type {values.dtype} are not numbers between 0 and 255")
    if values.is_floating_point():
        if not bool(values.isfinite().all()):
            raise UserError("the images have pixels that are NaN or infinity; repair or leave out those images")
        top, range_ = 1.0, "as floating-point numbers they must lie between 0 and 1: divide them by their largest value"
    else:
        top, range_ = 255.0, "as whole numbers they must lie between 0 and 255"
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > top:
        raise UserError(f"the pixels run from {low:g} to {high:g}; {range_}")
    return (values * 255).round().to(torch.uint8) if values.is_floating_point() else values.to(torch.uint8)


def as_labels(labels: Any) -> np.ndarray:
    """One label per image: whole numbers, text or booleans."""
    answers = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if answers.dtype.kind == "U" and isinstance(labels, (list, tuple)):  # NumPy turns the numbers of a list into text
        answers = np.array(labels, dtype=object)
    if answers.ndim == 2 and answers.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn("A column-vector y was passed when a 1d array was expected", DataConversionWarning, stacklevel=2)
        answers = answers[:, 0]
    if answers.ndim != 1:
        raise UserError(f"labels of shape {answers.shape} are not one label per image")
    if answers.dtype.kind == "O":
        if not all(isinstance(item, str) for item in answers):
            raise UserError("Unknown label type: objects; labels must be all text or all whole numbers")
        answers = answers.astype(str)
    if answers.dtype.kind == "f":
        if not np.isfinite(answers).all():
            raise UserError("the labels contain NaN or infinity")
        if (answers != np.rint(answers)).any():
            raise UserError("Unknown label type: continuous numbers; labels must be whole numbers or text")
        answers = answers.astype(np.int64)
    if answers.dtype.kind not in "iubU":
        raise UserError(f"Unknown label type: {answers.dtype}; labels must be whole numbers or text")
    return answers
