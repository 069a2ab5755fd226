"""The truth of an update's report: copies do not flatter it, damage is named, names that look alike are refused."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.data.class_names import spelled_as_known
from gatf.data.inputs import read_class_folders, read_images
from gatf.errors import UserError
from gatf.incremental.split import split_update

Tiny = Callable[..., Any]
Digits = tuple[np.ndarray, np.ndarray]


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)


class TestDuplicates:
    def test_copies_do_not_flatter_the_accuracy(self, tiny_classifier: Tiny) -> None:
        """Noise with random labels: a network can remember it, so copies of trained images are classified correctly."""
        images, labels = noise(40), np.array(["a", "b"] * 20)
        learner = tiny_classifier(epochs=60, width=16, held_out=0.3)
        learner.fit(np.repeat(images, 5, axis=0), np.repeat(labels, 5))
        assert learner.report_.duplicates == 160
        assert learner.report_.held_out == 12, "one copy of each held-out image"
        assert learner.report_.images == 140, "the other copies of held-out images are not trained on"
        assert learner.report_.accuracy_new < 90
        (warning,) = [text for text in learner.report_.warnings if "copies" in text]
        assert warning.startswith("160 of 200 images are exact copies of others")

    def test_one_image_in_two_classes_is_named(self, tiny_classifier: Tiny) -> None:
        images = noise(60)
        images[1], images[3] = images[0], images[2]
        learner = tiny_classifier(epochs=1).fit(images, np.array(["cat", "dog"] * 30))
        assert learner.report_.duplicates == 2
        assert any(
            "2 images have more than one label (cat, dog): check the labels" in text
            for text in learner.report_.warnings
        )

    def test_no_copy_is_on_the_other_side(self, grown: Any) -> None:
        labels = np.array(["x"] * 40)
        copies = torch.arange(40) // 2 * 2
        split = split_update(grown.model_, labels, 0.25, 0, copies)
        sides = [set(copies[side].tolist()) for side in (split.trained, split.held_out)]
        assert not sides[0] & sides[1]
        assert len(split.held_out) == 5
        assert len(split.trained) == 30

    def test_without_copies_the_split_is_the_same(self, grown: Any) -> None:
        labels = np.array(["x", "y"] * 20)
        plain, unique = (split_update(grown.model_, labels, 0.25, 0, copies) for copies in (None, torch.arange(40)))
        assert torch.equal(plain.held_out, unique.held_out)
        assert torch.equal(plain.trained, unique.trained)

    @pytest.mark.parametrize("side", [8, 100])
    def test_copies_are_found_in_files(self, side: int, tmp_path: Path) -> None:
        """Small pictures by their pixels, large ones, which are decoded later, by their bytes."""
        draws = np.random.default_rng(0)
        for number in range(6):
            picture = Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8))
            for twin in range(1 + number % 2):
                (tmp_path / f"c{twin}").mkdir(exist_ok=True)
                picture.save(tmp_path / f"c{twin}" / f"{number}.png")
        given, _ = read_class_folders(tmp_path)
        assert given.first_copies((3, side, side)).tolist() == [0, 1, 2, 3, 4, 5, 1, 3, 5]

    def test_copies_are_found_in_arrays(self) -> None:
        images = noise(3)[[0, 1, 0, 2, 1]]
        assert read_images(images).first_copies((1, 8, 8)).tolist() == [0, 1, 0, 3, 1]


class TestDamage:
    def wrong(self, digits: Digits) -> tuple[np.ndarray, np.ndarray]:
        """Photos of d3, labelled as d1."""
        images, labels = digits
        chosen = images[labels == "d3"]
        return chosen, np.array(["d1"] * len(chosen))

    @pytest.mark.parametrize("method", ["gatf", "slda"])
    def test_wrong_photos_of_a_known_class(self, method: str, tiny_classifier: Tiny, digit_images: Digits) -> None:
        images, labels = digit_images
        first = np.isin(labels, ("d0", "d1", "d2", "d3")) & (np.arange(len(labels)) % 2 == 0)
        test = (labels == "d3") & (np.arange(len(labels)) % 2 == 1)
        options = {"feature_dim": 16} if method == "gatf" else {"feature_dim": None}
        learner = tiny_classifier(method=method, epochs=15, width=16, **options).fit(images[first], labels[first])
        before = learner.score(images[test], labels[test])
        learner.partial_fit(*self.wrong(digit_images))
        assert learner.score(images[test], labels[test]) < before - 0.2, "the class lost"
        (warning,) = [text for text in learner.report_.warnings if "before this update" in text]
        assert re.search(r"\(d1: \d+ % as d3\), which has probably lost accuracy .*: check the labels", warning)
        assert "gatf rollback" in warning
        assert not any("add images" in text or "more epochs" in text for text in learner.report_.warnings)

    def test_a_good_update_names_nobody(self, grown: Any, digit_images: Digits) -> None:
        again = copy.deepcopy(grown)
        images, labels = digit_images
        known = np.isin(labels, grown.classes_[:2])
        again.partial_fit(images[known], labels[known])
        for learner in (grown, again):
            assert not any("before this" in text or "predicted as" in text for text in learner.report_.warnings)


class TestNames:
    def test_a_name_in_another_normal_form_is_the_same_class(self, tiny_classifier: Tiny, digit_images: Digits) -> None:
        images, labels = digit_images
        names = np.where(labels == "d0", "caf\u00e9", "tea")
        learner = tiny_classifier(method="ncm", feature_dim=None, epochs=1).fit(images[:100], names[:100])
        learner.partial_fit(images[:20], np.array(["cafe\u0301"] * 20))
        assert learner.classes_.tolist() == ["caf\u00e9", "tea"]
        assert learner.report_.revisited == ("caf\u00e9",)

    @pytest.mark.parametrize(
        "twin", ["c\u0430f\u00e9", "cafe\u0301", "caf\u00e9 ", "caf\u00e9\u200b", "\u2060caf\u00e9", "caf\u00e9\u00a0"]
    )
    def test_two_names_that_look_the_same_are_refused(self, twin: str, tiny_classifier: Tiny) -> None:
        names = np.array(["caf\u00e9", twin] * 10)
        with pytest.raises(UserError, match="look the same; rename one") as caught:
            tiny_classifier(epochs=1).fit(noise(20), names)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("twin", "name"), [("\u0261ate", "gate"), ("\u0501og", "dog"), ("e\u2010bike", "e-bike"), ("\u04cfamp", "lamp")]
    )
    def test_letters_and_hyphens_that_look_the_same(self, twin: str, name: str) -> None:
        with pytest.raises(UserError, match="look the same"):
            spelled_as_known(np.array([twin]), [name])

    def test_a_name_that_looks_like_a_known_one_is_refused(self, grown: Any) -> None:
        with pytest.raises(UserError, match=r"'d1\\u200b' and 'd1' look the same; rename one"):
            split_update(grown.model_, np.array(["d1\u200b"] * 10), 0.1, 0)
