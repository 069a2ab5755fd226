"""Fixed shifts of images for domain-incremental scenarios: the same classes, in other light, colours or quality."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gatf.data.image_ops import Op, apply_operations
from gatf.errors import UserError
from gatf.settings import Domain

AT_ONCE = 4096
SHIFTS: dict[Domain, tuple[tuple[Op, float], ...]] = {
    "original": (),
    "night": ((Op.BRIGHTNESS, 0.35), (Op.COLOR, 0.5)),
    "fog": ((Op.CONTRAST, 0.35), (Op.BRIGHTNESS, 1.4)),
    "grey": ((Op.COLOR, 0.0),),
    "blur": ((Op.SHARPNESS, 0.0),) * 3,
    "posterize": ((Op.POSTERIZE, 2.0),),
    "solarize": ((Op.SOLARIZE, 128.0),),
    "invert": ((Op.INVERT, 0.0),),
    "equalize": ((Op.EQUALIZE, 0.0),),
}
"""Operations of each domain, in order, with Pillow's values."""


def shifted(images: Tensor, domains: Tensor, names: Sequence[Domain]) -> Tensor:
    """uint8 [N, C, H, W] with image i as it looks in the domain `names[domains[i]]`."""
    if images.ndim != 4:
        raise UserError("scenario.domains shifts images; these are vectors")
    result = images.clone()
    for number, name in enumerate(names):
        for rows in torch.nonzero(domains == number)[:, 0].split(AT_ONCE):
            part = images[rows]
            for op, value in SHIFTS[name]:
                part = apply_operations(part, torch.full((len(rows),), int(op)), torch.full((len(rows),), value))
            result[rows] = part
    return result
