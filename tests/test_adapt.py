"""Updates that choose between a pretrained network as it is and the network adapted."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatf.data.inputs import read_images
from gatf.errors import Diverged, UserError
from gatf.geometry.moments import Moments, PooledMoments
from gatf.incremental import candidates, defaults
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.strategy import Parameters
from gatf.methods.slda import SLDA
from gatf.model import file as model_file
from gatf.model.record import UpdateRecord
from gatf.nets.resnet import ResNet18

SIDE = 16


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten held-out images decide, so that tests are quick."""
    monkeypatch.setattr(candidates, "FEWEST_HELD_OUT", 1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network of published layout, its weights drawn: what matters here is that they come from elsewhere."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "resnet.pth"
    torch.save(ResNet18(3, width=8, stem="3x3", bottleneck=None).state_dict(), path)
    return str(path)


def photos(*classes: int, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Coloured noise: a hue of its own for each class."""
    draws = np.random.default_rng(classes[0])
    hues = np.random.default_rng(7).integers(40, 216, (30, 3))
    labels = np.repeat(classes, count)
    pixels = hues[labels][:, None, None, :] + draws.normal(0, 25, (len(labels), SIDE, SIDE, 3))
    return pixels.clip(0, 255).astype(np.uint8), labels


@pytest.fixture
def make(weights: str) -> Any:
    def made(**parameters: Any) -> IncrementalClassifier:
        settings = {"backbone.pretrained": weights, "method.rotation": False, **parameters.pop("settings", {})}
        usual = {"backbone": "resnet18", "width": 8, "feature_dim": 8, "epochs": 1, "held_out": 0.25, "device": "cpu"}
        return IncrementalClassifier(**{**usual, "settings": {"backbone.stem": "3x3", **settings}, **parameters})

    return made


def network(classifier: IncrementalClassifier) -> dict[str, Tensor]:
    state = classifier.model_.method.backbone.state_dict()
    return {name: value.clone() for name, value in state.items() if not name.startswith("bottleneck")}


def test_moments_of_all_classes_together() -> None:
    features = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0], [6.0, 8.0], [5.0, 3.0]], dtype=torch.float64)
    found = PooledMoments.of(features, torch.tensor([0, 0, 1, 1, 1]), classes=2).overall()
    expected = Moments.of(features)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance(), expected.covariance())


class TestTheChoice:
    def test_the_frozen_candidate_is_slda_alone(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever was tried beside it: the same scores to the last bit."""
        monkeypatch.setattr(candidates, "cannot_be_beaten", lambda *args: False)
        chosen = make()
        alone = make(method="slda", feature_dim="auto")
        alone.settings = {path: value for path, value in chosen.settings.items() if not path.startswith("method.")}
        for classes in ((0, 1), (2,), (3, 4)):
            chosen.partial_fit(*photos(*classes))
            alone.partial_fit(*photos(*classes))
        assert chosen.report_.chosen == "frozen"
        assert chosen.report_.other_accuracy_new is not None, "the network was adapted and compared"
        assert chosen.report_.other_seconds is not None
        assert f"adapted (in {chosen.report_.other_seconds:.0f} s), its measured accuracy is" in str(chosen.report_)
        images, _ = photos(0, 1, 2, 3, 4, count=5)
        assert (chosen.decision_function(images) == alone.decision_function(images)).all()

    def test_an_adapted_network_that_promises_more_is_taken_and_can_be_left_again(
        self, make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        classifier = make().fit(*photos(0, 1))
        before = network(classifier)
        monkeypatch.setattr(candidates, "MARGIN", -1000.0)
        classifier.partial_fit(*photos(2, 3))
        assert classifier.report_.chosen == "adapted"
        assert classifier.model_.config.method.name == "gatf"
        assert any((network(classifier)[name] != value).any() for name, value in before.items())
        assert "The backbone was adapted; frozen, its measured accuracy is" in str(classifier.report_)
        classifier.save(tmp_path / "model.gatf")
        again = IncrementalClassifier.load(tmp_path / "model.gatf", device="cpu").set_params(
            **{name: getattr(classifier, name) for name in ("epochs", "held_out")}
        )
        images, _ = photos(0, 1, 2, 3, count=5)
        assert (again.decision_function(images) == classifier.decision_function(images)).all()
        monkeypatch.setattr(candidates, "MARGIN", 1000.0)
        again.partial_fit(*photos(4))
        assert again.report_.chosen == "frozen"
        assert again.model_.frozen is None
        assert all((network(again)[name] == value).all() for name, value in before.items())
        everything = make(adapt="never").fit(*photos(0, 1)).partial_fit(*photos(2, 3)).partial_fit(*photos(4))
        assert (again.decision_function(images) == everything.decision_function(images)).all()

    def test_a_bottleneck_may_be_wider_than_what_it_reads(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """There are not so many principal axes: the bottleneck keeps its own weights."""
        monkeypatch.setattr(candidates, "MARGIN", -1000.0)
        classifier = make(feature_dim=100, adapt="never").fit(*photos(0, 1))
        assert classifier.model_.method.backbone.feature_dim == 64
        classifier.set_params(adapt="auto").partial_fit(*photos(2, 3))
        assert classifier.report_.chosen == "adapted"

    def test_an_adapted_network_continues_from_where_it_is(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(candidates, "MARGIN", -1000.0)
        classifier = make().fit(*photos(0, 1))
        first = network(classifier)
        classifier.partial_fit(*photos(2))
        assert classifier.report_.chosen == "adapted"
        assert classifier.report_.drift is not None, "what was stored was carried"
        assert len(classifier.model_.frozen.labels) == 3
        assert any((network(classifier)[name] != value).any() for name, value in first.items())

    def test_what_the_frozen_model_knows_is_what_training_starts_from(self, make: Any) -> None:
        """In the bottleneck's features the Gaussians are the projections of the frozen ones."""
        classifier = make(adapt="never").fit(*photos(0, 1, 2))
        frozen = classifier.model_
        assert isinstance(frozen.method, SLDA)
        start_config = make().choose_strategy(read_images(photos(0, 1, 2)[0])).trained[1]
        start = candidates.trainable(frozen, start_config)
        layer = start.method.backbone.bottleneck
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        known, stored = frozen.method.stored(), start.method.stored()
        assert stored is not None
        torch.testing.assert_close(stored.means, known.means @ weight.mT + bias, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(stored.covs[0], weight @ known.covs[0] @ weight.mT, rtol=1e-3, atol=1e-3)

    def test_training_that_diverges_leaves_the_frozen_candidate(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        learn = candidates.update_model

        def diverging(model: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs["config"].method.name == "gatf":
                raise Diverged("training diverged", "optimisation.next.lr", 1.0)
            return learn(model, *args, **kwargs)

        monkeypatch.setattr(candidates, "update_model", diverging)
        monkeypatch.setattr(candidates, "cannot_be_beaten", lambda *args: False)
        classifier = make().fit(*photos(0, 1))
        assert classifier.report_.chosen == "frozen"
        assert "training failed (training diverged)" in str(classifier.report_)

    def test_one_image_of_each_class(self, make: Any) -> None:
        classifier = make().fit(*photos(0, 1, count=1)).partial_fit(*photos(2, count=1))
        assert "no images were held out" in str(classifier.report_)
        images, labels = photos(0, 1, 2, count=10)
        assert (classifier.predict(images) == labels).mean() > 0.5

    def test_no_time(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(candidates, "cannot_be_beaten", lambda *args: False)
        classifier = make(minutes=0.0).fit(*photos(0, 1))
        assert "more than the 0 allowed" in str(classifier.report_)

    def test_what_could_not_win_is_not_trained(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Were everything answered rightly, the gain would still be within what chance explains."""
        monkeypatch.setattr(candidates, "MARGIN", 50.0)
        trained = []
        learn = candidates.update_model

        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            trained.append(kwargs["config"].method.name)
            return learn(model, *args, **kwargs)

        monkeypatch.setattr(candidates, "update_model", watched)
        classifier = make().fit(*photos(0, 1))
        assert trained == ["slda"]
        gain = f"no gain over {classifier.report_.accuracy_new:.0f} % would be significant"
        assert f"stays frozen: with 10 held-out images, {gain}." in str(classifier.report_)


def record(new: int, accuracy: float, expected: float | None, held_out: int = 100) -> UpdateRecord:
    return UpdateRecord(
        number=0, date="", added=tuple(f"c{number}" for number in range(new)), images=10, held_out=held_out, epochs=1,
        seconds=1.0, accuracy_new=accuracy, expected_old=expected, temperature=1.0, bytes_per_class=1,
    )  # fmt: skip


def test_promises_by_hand() -> None:
    assert candidates.expected_accuracy(record(5, 80.0, None), 0) == 80
    assert candidates.expected_accuracy(record(5, 80.0, 60.0), 15) == 65
    lopsided = record(5, 80.0, None).model_copy(update={"accuracy_by_class": 50.0, "held_out_evenly": 4.0})
    assert candidates.expected_accuracy(lopsided, 0) == 50
    assert candidates.standard_error(lopsided) == pytest.approx(100 * (2 * 0.5 * 0.5 / 4) ** 0.5)
    assert candidates.standard_error(record(5, 80.0, None)) == pytest.approx(100 * (2 * 0.8 * 0.2 / 100) ** 0.5)
    assert candidates.standard_error(record(5, 100.0, 60.0, held_out=25)) == pytest.approx(
        100 * (2 * 0.9 * 0.1 / 25) ** 0.5
    )


@pytest.mark.parametrize(("accuracy", "images"), [(89.0, 15), (97.0, 150), (99.0, 10**6)])
def test_out_of_reach_by_hand(accuracy: float, images: int) -> None:
    """A network that answers everything rightly would be taken just below the border, and not above it."""
    perfect = record(5, 100.0, 100.0, images)
    seen = set()
    for lower in range(40):
        ours = record(5, accuracy - lower, accuracy - lower, images)
        least = candidates.expected_accuracy(ours, 5) + candidates.MARGIN + candidates.standard_error(ours, images)
        wins = candidates.expected_accuracy(perfect, 5) > least
        assert candidates.cannot_be_beaten(ours, 5, images) is not wins
        seen.add(wins)
    assert seen == {True, False}


def test_a_new_fit_is_for_the_new_images(make: Any) -> None:
    """Not for those of the model that it replaces: images of 16 and of 80 pixels are augmented in different ways."""
    classifier = make(adapt="never").fit(*photos(0, 1))
    images, labels = photos(0, 1)
    classifier.fit(images.repeat(5, axis=1).repeat(5, axis=2), labels)
    assert classifier.model_.preprocessing.shape == (3, 80, 80)
    assert list(classifier.model_.config.data.augment) == defaults.augmentation(80)


class TestTheParameter:
    def test_never(self, make: Any) -> None:
        classifier = make(adapt="never").fit(*photos(0, 1)).partial_fit(*photos(2))
        assert classifier.report_.chosen == "frozen"
        assert classifier.report_.other_accuracy_new is None
        assert classifier.model_.config.method.name == "slda"

    def test_never_speaks_of_no_epochs(self, make: Any) -> None:
        text = make(adapt="never").choose_strategy(read_images(photos(0, 1)[0])).description
        assert re.search(r"; 40 images; about \d+ s; the pretrained backbone stays frozen$", text)
        assert "epochs" not in text

    def test_frozen_unless_asked_and_the_choice_is_kept_in_the_file(self, make: Any, tmp_path: Path) -> None:
        """Parameters of training ask for it too; a later update follows without being reported again."""

        def trains(classifier: IncrementalClassifier) -> bool:
            return classifier.choose_strategy(read_images(photos(2)[0])).trained is not None

        plain = {"feature_dim": "auto", "epochs": "auto"}
        first = make(**plain)
        first.settings = {path: value for path, value in first.settings.items() if not path.startswith("method.")}
        assert not trains(first)
        assert trains(first.set_params(epochs=2))
        assert trains(first.set_params(epochs="auto", method="adagauss"))
        assert trains(first.set_params(method="gatf", adapt="auto"))
        for adapt in ("auto", "never"):
            first.set_params(adapt=adapt).fit(*photos(0, 1)).save(tmp_path / "model.gatf")
            again = IncrementalClassifier.load(tmp_path / "model.gatf", device="cpu")
            assert trains(again) == (adapt == "auto")
            assert not trains(again.set_params(adapt="never"))

    def test_nothing_is_decided_on_few_images(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(candidates, "FEWEST_HELD_OUT", 11)
        classifier = make().fit(*photos(0, 1))
        assert "stays frozen: only 10 images are held out, and the choice needs 11." in str(classifier.report_)

    def test_always(self, make: Any) -> None:
        classifier = make(adapt="always").fit(*photos(0, 1)).partial_fit(*photos(2))
        assert classifier.report_.chosen is None
        assert classifier.model_.config.method.name == "gatf"

    def test_never_needs_a_pretrained_network(self) -> None:
        with pytest.raises(UserError, match="needs a pretrained network"):
            IncrementalClassifier(adapt="never", device="cpu").fit(*photos(0, 1))

    def test_a_wrong_word(self) -> None:
        with pytest.raises(UserError, match="adapt is 'auto', 'never' or 'always'"):
            IncrementalClassifier(adapt="sometimes", device="cpu").fit(*photos(0, 1))

    def test_a_network_from_nothing_is_trained(self) -> None:
        classifier = IncrementalClassifier(width=8, epochs=1, device="cpu").fit(*photos(0, 1))
        assert classifier.model_.config.method.name == "gatf"
        assert classifier.report_.chosen is None


def test_a_second_model_that_is_not_frozen_is_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(candidates, "MARGIN", -1000.0)
    classifier = make().fit(*photos(0, 1))
    frozen = classifier.model_.frozen
    config = frozen.config.model_copy(update={"method": classifier.model_.config.method})
    monkeypatch.setattr(model_file, "_check_predicts", lambda *args, **kwargs: None)
    odd = replace(classifier.model_, frozen=replace(frozen, config=config))
    model_file.save(odd, tmp_path / "odd.gatf")
    with pytest.raises(UserError, match="second model is not a frozen one"):
        model_file.load(tmp_path / "odd.gatf")


def test_an_unknown_parameter_of_an_update_is_an_error() -> None:
    with pytest.raises(TypeError, match="unknown parameters: epoch"):
        Parameters.of(epoch=3)
    assert Parameters.of(epochs=3, verbose=1).overrides["optimisation.first.epochs"] == 3
