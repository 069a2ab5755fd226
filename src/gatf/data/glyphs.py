"""`glyphs`: coloured characters, rendered from the fonts inside matplotlib. 100 classes without a download.

Each (font, character) is drawn once as a mask; an image is a mask put through a random affine map, in a random colour
on a random, shaded background, with noise. The draws are keyed by the settings' seed and the class, so a class's images
do not depend on how many classes there are. Training and test images share no font.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gatf.data import cache
from gatf.data.base import ImageSet, Source
from gatf.seeding import generator
from gatf.settings import DataConfig, GlyphsConfig

# Characters that every font below has and that stay apart when scaled and turned: of c/C, o/O/0, s/S … one is here.
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789abdefghijmnqrtyΓΔΘΛΞΠΣΦΨΩαβγδεζηθλμξπφψωБДЖИЛЦЧШЭЮЯ@#%&?!$€£§¶+±∂"
TRAIN_FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneralBol", "STIXGeneralItalic",
)  # fmt: skip
TEST_FONTS = ("DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBolIta")
VERSION = 1
"""Part of the cache's key: raise it when the same settings would be drawn differently."""


def load_glyphs(config: DataConfig) -> Source:
    """Rendered once for the settings, then memory-mapped from the cache."""
    settings = config.glyphs
    key = cache.digest("glyphs", VERSION, settings.model_dump_json())
    made = cache.cached_tensors("glyphs", key, lambda: _render_all(settings))
    classes = torch.arange(settings.classes)
    train = ImageSet(made["train"], classes.repeat_interleave(settings.train_per_class))
    test = ImageSet(made["test"], classes.repeat_interleave(settings.test_per_class))
    return Source("glyphs", tuple(CHARACTERS[: settings.classes]), train, test, mean=(0.5,) * 3, std=(0.5,) * 3)


def _render_all(settings: GlyphsConfig) -> dict[str, Tensor]:
    parts = {"train": (TRAIN_FONTS, settings.train_per_class), "test": (TEST_FONTS, settings.test_per_class)}
    images = {}
    for part, (fonts, count) in parts.items():
        masks = glyph_masks(fonts, settings.classes, 2 * settings.size)  # [fonts, classes, 2·size, 2·size]
        images[part] = torch.cat(
            [
                render(masks[:, label], count, settings, generator(settings.seed, "glyphs", part, label))
                for label in range(settings.classes)
            ]
        )
    return images


def glyph_masks(fonts: tuple[str, ...], classes: int, side: int) -> Tensor:
    """[fonts, classes, side, side] in [0, 1]: each character centred, its larger extent two thirds of the side."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    masks = np.zeros((len(fonts), classes, side, side), np.float32)
    for row, name in enumerate(fonts):
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), side, layout_engine=ImageFont.Layout.BASIC)
        for column, character in enumerate(CHARACTERS[:classes]):
            left, top, right, bottom = font.getbbox(character)
            drawn = Image.new("L", (math.ceil(right - left), math.ceil(bottom - top)))
            ImageDraw.Draw(drawn).text((-left, -top), character, fill=255, font=font)
            scale = side * 2 / 3 / max(drawn.size)
            drawn = drawn.resize((max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale))))
            canvas = Image.new("L", (side, side))
            canvas.paste(drawn, ((side - drawn.width) // 2, (side - drawn.height) // 2))
            masks[row, column] = np.asarray(canvas, np.float32) / 255
    return torch.from_numpy(masks)


def render(masks: Tensor, count: int, settings: GlyphsConfig, draws: torch.Generator) -> Tensor:
    """uint8 [count, 3, size, size] of one character, each in one of its fonts [fonts, 2·size, 2·size]."""
    hard, size = settings.difficulty, settings.size

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=draws)

    chosen = masks[torch.randint(len(masks), (count,), generator=draws)][:, None]
    shape = F.affine_grid(_inverse_maps(hard, uniform), [count, 1, 2 * size, 2 * size], align_corners=False)
    mask = F.avg_pool2d(F.grid_sample(chosen, shape, align_corners=False), 2)  # [count, 1, size, size]

    background = uniform(0.0, 1.0, 3, 1, 1)
    away = torch.where(background < 0.5, 1.0, -1.0)  # each channel moves to its farther end
    contrast = uniform(0.7 - 0.5 * hard, 0.9 - 0.3 * hard, 1, 1, 1) * uniform(0.5, 1.0, 3, 1, 1)
    ink = background + away * contrast
    ramp = torch.linspace(-0.5, 0.5, size)
    slopes = uniform(-0.6 * hard, 0.6 * hard, 3, 2)[..., None, None]
    shading = slopes[:, :, 0] * ramp[:, None] + slopes[:, :, 1] * ramp[None, :]
    image = background * (1 - mask) + ink * mask + shading
    image = image + 0.12 * hard * torch.randn(image.shape, generator=draws)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


def _inverse_maps(hard: float, uniform: Callable[..., Tensor]) -> Tensor:
    """[count, 2, 3]: from places in the image to places in the mask, for a turn, a shear, a size and a shift."""
    angle = uniform(-hard, hard) * math.pi / 6
    shear = uniform(-0.4 * hard, 0.4 * hard)
    larger = uniform(1.3 - 0.6 * hard, 1.3)
    stretch = uniform(1 - 0.2 * hard, 1 + 0.2 * hard)
    cos, sin = angle.cos() / larger, angle.sin() / larger
    linear = torch.stack([cos * stretch, sin * stretch + shear * cos, -sin / stretch, cos / stretch], 1).view(-1, 2, 2)
    shift = uniform(-0.3 * hard, 0.3 * hard, 2)
    return torch.cat([linear, (linear @ shift[:, :, None])], 2)
