"""Every odd kind of image file has a defined result."""

import io
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.data.augment import ResizedCrop
from gatf.data.decode import BadImage, RandomWindows, careful_pillow, centre_box, decode, plain_view


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data: bytes, size: int = 8) -> np.ndarray:
    with careful_pillow():
        return decode(data, "here.png", size, centre_box)


def test_an_image_of_the_right_size_is_left_alone(picture: Callable[..., Image.Image]) -> None:
    image = picture(0, 8, 8)
    assert np.array_equal(decoded(saved(image, "PNG")), np.asarray(image))


def test_cmyk_palette_and_grey_become_rgb() -> None:
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert np.abs(decoded(saved(red.convert("CMYK"), "TIFF")).astype(int) - [255, 0, 0]).max() <= 1
    assert np.abs(decoded(saved(red.convert("CMYK"), "JPEG", quality=100)).astype(int) - [255, 0, 0]).max() <= 3
    assert (decoded(saved(red.convert("P"), "PNG")) == [255, 0, 0]).all()
    assert (decoded(saved(Image.new("L", (8, 8), 77), "PNG")) == 77).all()
    assert (decoded(saved(Image.new("1", (8, 8), 1), "PNG")) == 255).all()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    grey = Image.fromarray(np.full((8, 8), 128 * 257, np.uint16))
    assert (decoded(saved(grey, "PNG")) == 128).all()
    assert (decoded(saved(grey, "TIFF")) == 128).all()


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(BadImage, match=r"here.png.*floating-point"):
        decoded(saved(Image.new("F", (8, 8), 0.5), "TIFF"))


def test_transparency_is_laid_on_white() -> None:
    hidden = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    assert (decoded(saved(hidden, "PNG")) == 255).all()
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert np.abs(decoded(saved(half, "PNG")).astype(int) - 127).max() <= 1
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([1, 2, 3])
    assert (decoded(saved(palette, "PNG", transparency=b"\x00")) == 255).all()


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    assert (decoded(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) == [255, 0, 0]).all()


def test_one_pixel_fills_the_image() -> None:
    assert (decoded(saved(Image.new("RGB", (1, 1), (9, 8, 7)), "PNG")) == [9, 8, 7]).all()


def test_a_photo_is_rotated_by_its_exif_tag() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4] = 255  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # must be turned a quarter clockwise to be upright
    for kind in ("JPEG", "PNG", "WEBP"):
        out = decoded(saved(Image.fromarray(pixels), kind, exif=exif))
        assert out[:3].min() > 200, kind
        assert out[5:].max() < 55, kind


@pytest.mark.parametrize("keep", [0, 3, 60, -40])
def test_a_truncated_file_is_named(keep: int, encoded: Callable[..., bytes]) -> None:
    for kind in ("JPEG", "PNG"):
        with pytest.raises(BadImage, match=r"image here\.png cannot be decoded .*on_bad_image=skip.*--skip-bad"):
            decoded(encoded(0, 64, 64, kind)[:keep])


def test_random_bytes_after_a_signature_are_bad_images_and_nothing_else() -> None:
    draws = np.random.default_rng(0)
    for signature in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"GIF89a", b"BM", b"II*\x00", b"P6", b"%!PS"):
        for _ in range(20):
            with pytest.raises(BadImage):
                decoded(signature + draws.bytes(100))


@pytest.mark.parametrize("pixels", [101, 300])  # Pillow warns above its limit and refuses above twice the limit
def test_a_bomb_is_refused(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(BadImage, match=r"here.png has more than .* refused as a decompression bomb"):
        decoded(saved(Image.new("RGB", (pixels, 1)), "PNG"))


def test_the_test_view_is_resize_256_and_centre_crop_224(picture: Callable[..., Image.Image]) -> None:
    image = picture(3, 512, 384)
    expected = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240))
    with careful_pillow():
        out = decode(saved(image, "PNG"), "x", 224, plain_view(224))
    assert np.abs(out.astype(int) - np.asarray(expected)).max() <= 3


@pytest.mark.parametrize(("share", "resized"), [(1.0, 224), (0.95, 235), (0.9, 248), (0.875, 256)])
def test_a_network_s_own_share_of_the_shorter_side(
    share: float, resized: int, picture: Callable[..., Image.Image]
) -> None:
    """timm resizes the shorter side to 224/crop_pct, rounded down, and cuts the central 224."""
    image = picture(3, 512, 384)
    wide = image.resize((resized * 512 // 384, resized), Image.Resampling.BILINEAR)
    left, top = round((wide.width - 224) / 2), round((resized - 224) / 2)
    expected = np.asarray(wide.crop((left, top, left + 224, top + 224)))
    with careful_pillow():
        out = decode(saved(image, "PNG"), "x", 224, plain_view(224, share))
    assert np.abs(out.astype(int) - expected).max() <= 3


def test_small_images_are_seen_whole_whatever_the_share() -> None:
    assert plain_view(64, 0.5)(100, 80) == centre_box(100, 80) == (10, 0, 90, 80)
    assert plain_view(65, 0.5)(100, 80) == (30, 20, 70, 60)
    assert plain_view(65)(512, 256) == (144, 16, 368, 240)


def test_a_jpeg_decoded_at_a_fraction_looks_the_same(picture: Callable[..., Image.Image]) -> None:
    data = saved(picture(4, 1000, 900), "JPEG", quality=95)
    with Image.open(io.BytesIO(data)) as image:
        box = centre_box(*image.size)
        expected = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR, box=box))
    with careful_pillow():
        out = decode(data, "x", 64, centre_box)
    assert np.abs(out.astype(int) - expected).max() <= 4


def test_random_windows_are_those_of_the_batched_crop() -> None:
    width, height, count, scale = 500, 375, 4000, (0.08, 1.0)
    boxes = np.array([RandomWindows(scale, (1, "x", 0)).box(number, width, height) for number in range(count)])
    left, top, right, bottom = boxes.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= width
    assert bottom.max() <= height
    mine = {"top": top, "left": left, "height": bottom - top, "width": right - left}
    drawn = ResizedCrop(224, *scale).draw(count, height, width, torch.Generator().manual_seed(0))
    from scipy.stats import ks_2samp

    for name, theirs in zip(("top", "left", "height", "width"), drawn, strict=True):
        assert ks_2samp(mine[name], theirs.numpy()).pvalue > 0.01, name


def test_a_window_that_cannot_fit_becomes_the_largest_centred_one() -> None:
    box = RandomWindows((1.0, 1.0), (0,)).box
    assert box(0, 1000, 10) == (493, 0, 506, 10)
    assert box(0, 10, 1000) == (0, 493, 10, 506)
    assert box(0, 1, 1) == (0, 0, 1, 1)


def test_windows_depend_on_purpose_and_number_alone() -> None:
    first = partial(RandomWindows((0.08, 1.0), (1, "train", 0, 5)).box, width=300, height=200)
    again = partial(RandomWindows((0.08, 1.0), (1, "train", 0, 5)).box, width=300, height=200)
    other = partial(RandomWindows((0.08, 1.0), (1, "train", 0, 6)).box, width=300, height=200)
    assert [first(n) for n in (3, 1, 2)] == [again(3), again(1), again(2)]
    assert first(1) != first(2)
    assert first(1) != other(1)
