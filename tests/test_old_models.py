"""Model files that earlier versions wrote are read, and answer as they did.

`old_models/v1-METHOD.gatf` were written by the version before format 2: digits 0 to 2, then 3 and 4, a tiny network,
three epochs; `v1-answers.safetensors` has twenty images and the probabilities that version gave them.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gatf import IncrementalClassifier
from gatf.model.upgrade import upgraded_config

HERE = Path(__file__).parent / "old_models"
FILES = sorted(HERE.glob("v1-*.gatf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_format_1_predicts_as_before(path: Path) -> None:
    recorded = load_file(HERE / "v1-answers.safetensors")
    classifier = IncrementalClassifier.load(path, device="cpu")
    found = classifier.predict_proba(recorded["images"])
    np.testing.assert_allclose(found, recorded[path.stem.removeprefix("v1-")], rtol=0, atol=1e-4)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_format_1_learns_on_and_is_saved_in_the_new_format(path: Path, tmp_path: Path) -> None:
    images = load_file(HERE / "v1-answers.safetensors")["images"]
    classifier = IncrementalClassifier.load(path, device="cpu").set_params(epochs=1)
    classifier.partial_fit(images, [7] * 10 + [8] * 10)
    classifier.save(tmp_path / "new.gatf")
    again = IncrementalClassifier.load(tmp_path / "new.gatf", device="cpu")
    assert again.classes_.tolist() == [0, 1, 2, 3, 4, 7, 8]
    assert np.array_equal(again.predict(images), classifier.predict(images))


def test_settings_of_a_base_learner_move_into_its_section() -> None:
    old = {"method": {"name": "sdc", "base": "triplet", "margin": 0.5, "temperature": 2.0, "sigma": 0.2}}
    assert upgraded_config(old)["method"] == {
        "name": "sdc", "sigma": 0.2, "base": {"name": "triplet", "margin": 0.5, "embedding_init": "small"},
    }  # fmt: skip
    new = {"method": {"name": "sdc", "base": {"name": "lwf"}}}
    assert upgraded_config(new) == new
