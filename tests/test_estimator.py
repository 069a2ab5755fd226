"""A classifier that keeps learning: what it knows after updates, how sure it is, what it says about itself."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from gatf import IncrementalClassifier
from gatf.errors import UserError
from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import Moments
from gatf.geometry.readout import mahalanobis_readout
from gatf.incremental.defaults import first_config, next_config
from gatf.incremental.statistics import accuracy_by_class, merge
from gatf.model.calibration import (
    calibration_sums,
    fitted_temperature,
    softmax_with_temperature,
    temperature_at_even_odds,
)
from gatf.model.certificate import CLASS_SHRINK, Certifier
from gatf.model.novelty import NoveltyScorer, combined_novelty, rejection_threshold
from gatf.model.state import ForwardOutput, Model

Digits = tuple[np.ndarray, np.ndarray]
Tiny = Callable[..., Any]


def some_digits(digits: Digits, *names: str, test: bool = False, most: int | None = None) -> Digits:
    """Training images (four of five) or test images of some digits."""
    images, labels = digits
    chosen = np.isin(labels, names) & ((np.arange(len(labels)) % 5 == 0) == test)
    return images[chosen][:most], labels[chosen][:most]


# --- learning ---------------------------------------------------------------------------------------------------------


def test_classes_are_added_and_old_ones_are_remembered(grown: Any, digit_images: Digits) -> None:
    assert grown.classes_.tolist() == ["d0", "d1", "d2", "d3", "d4", "d5", "d6"]
    old = some_digits(digit_images, "d0", "d1", "d2", "d3", test=True)
    new = some_digits(digit_images, "d4", "d5", "d6", test=True)
    assert grown.score(*old) > 0.8
    assert grown.score(*new) > 0.6
    assert len(grown.history_) == 2


def test_gatf_beats_fine_tuning_over_all_classes(tiny_classifier: Tiny, digit_images: Digits, grown: Any) -> None:
    plain = tiny_classifier(method="finetune", epochs=20, width=16, feature_dim=16)
    plain.fit(*some_digits(digit_images, "d0", "d1", "d2", "d3"))
    plain.partial_fit(*some_digits(digit_images, "d4", "d5", "d6"))
    everything = some_digits(digit_images, *grown.classes_, test=True)
    assert plain.score(*everything) < grown.score(*everything) - 0.15


def test_a_known_class_is_merged_and_not_duplicated(grown: Any, digit_images: Digits) -> None:
    again = IncrementalClassifier.from_model(grown.model_, device="cpu")
    again.set_params(epochs=2, settings={"method.samples": 100})
    again.partial_fit(*some_digits(digit_images, "d1", "d7"))
    assert again.classes_.tolist() == ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"]
    assert len(again.model_.method.stored()) == 8
    counts = dict(zip(again.classes_.tolist(), again.model_.counts.tolist(), strict=True))
    before = dict(zip(grown.classes_.tolist(), grown.model_.counts.tolist(), strict=True))
    assert counts["d1"] > before["d1"]
    assert counts["d2"] == before["d2"]
    assert again.report_.added == ("d7",)
    assert again.report_.revisited == ("d1",)
    assert grown.classes_.tolist()[-1] == "d6", "the model an update starts from stays as it was"


def test_a_loaded_model_learns_more_of_known_classes(grown: Any, digit_images: Digits) -> None:
    again = IncrementalClassifier.from_model(grown.model_, device="cpu").set_params(epochs=1)
    again.partial_fit(*some_digits(digit_images, "d5", most=30))
    assert again.classes_.tolist() == grown.classes_.tolist()
    assert again.score(*some_digits(digit_images, "d0", "d5", test=True)) > 0.6


def test_merging_gives_the_moments_of_all_images_together() -> None:
    draws = torch.Generator().manual_seed(0)
    first, second = (torch.randn(2, 2 * n, 3, generator=draws, dtype=torch.float64) + n for n in (5, 9))
    gaussians = [Gaussians(Moments.of(z).mean, Moments.of(z).covariance()) for z in (first, second)]
    merged = merge(gaussians[0], torch.tensor([5, 5]), gaussians[1], torch.tensor([9, 9]))
    both = torch.cat([first, second], dim=1)
    torch.testing.assert_close(merged.means, both.mean(1))
    torch.testing.assert_close(merged.covs, torch.stack([torch.cov(z.T) for z in both]))


@pytest.mark.parametrize("choice", [{"method": "finetune"}, {"method": "lwf"}])
def test_a_method_with_heads_refuses_known_classes(
    choice: dict[str, str], tiny_classifier: Tiny, digit_images: Digits
) -> None:
    settings = {f"method.{name}": value for name, value in choice.items() if name != "method"}
    learner = tiny_classifier(method=choice["method"], epochs=1, settings=settings)
    learner.fit(*some_digits(digit_images, "d0", "d1", most=60))
    with pytest.raises(UserError, match="cannot learn more images of known classes"):
        learner.partial_fit(*some_digits(digit_images, "d1", "d2", most=60))


@pytest.mark.parametrize("method", ["finetune", "efc"])
def test_nothing_is_certified_where_the_transports_error_is_not_measured(
    method: str, tiny_classifier: Tiny, digit_images: Digits
) -> None:
    learner = tiny_classifier(method=method, epochs=1).fit(*some_digits(digit_images, "d0", "d1", most=60))
    with pytest.raises(UserError, match="keeps Gaussians only"):
        learner.predict(digit_images[0][:2], return_certificate=True)


def test_a_failed_update_changes_nothing(tiny_classifier: Tiny, digit_images: Digits, monkeypatch: Any) -> None:
    learner = tiny_classifier(epochs=1).fit(*some_digits(digit_images, "d0", "d1", most=80))
    before = learner.predict_proba(digit_images[0][:20])
    state = {name: value.clone() for name, value in learner.model_.method.state_dict().items()}
    monkeypatch.setattr("gatf.incremental.update.calibration_sums", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.partial_fit(*some_digits(digit_images, "d2", most=40))
    assert learner.classes_.tolist() == ["d0", "d1"]
    assert (learner.predict_proba(digit_images[0][:20]) == before).all()
    assert all(torch.equal(value, state[name]) for name, value in learner.model_.method.state_dict().items())


def test_the_same_seed_gives_the_same_classifier(tiny_classifier: Tiny, digit_images: Digits) -> None:
    data = some_digits(digit_images, "d0", "d1", most=80)
    one, same, other = (tiny_classifier(epochs=1, random_state=seed).fit(*data) for seed in (3, 3, 4))
    images = digit_images[0][:20]
    assert (one.predict_proba(images) == same.predict_proba(images)).all()
    assert (one.predict_proba(images) != other.predict_proba(images)).any()


@pytest.mark.parametrize("method", ["adagauss", "lwf"])
def test_other_methods_fit_too(method: str, tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(method=method, epochs=2).fit(*some_digits(digit_images, "d0", "d1", most=80))
    learner.partial_fit(*some_digits(digit_images, "d2", "d3", most=80))
    assert learner.predict_proba(digit_images[0][:5]).shape == (5, 4)


def test_a_method_that_needs_old_images_is_refused(tiny_classifier: Tiny, digit_images: Digits) -> None:
    with pytest.raises(UserError, match="needs all earlier images"):
        tiny_classifier(method="joint").fit(*some_digits(digit_images, "d0", "d1", most=40))


def test_a_setting_without_effect_is_refused(tiny_classifier: Tiny, digit_images: Digits) -> None:
    with pytest.raises(UserError, match=r"data\.test_crop is for runs alone"):
        tiny_classifier(settings={"data.test_crop": 6}).fit(*some_digits(digit_images, "d0", "d1", most=40))


# --- conventions ------------------------------------------------------------------------------------------------------


def test_clone_params_pickle_pipeline_and_cross_validation(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=2, unknown=0.2)
    assert clone(learner).get_params() == learner.get_params()
    assert pickle.loads(pickle.dumps(learner)).get_params() == learner.get_params()
    images, labels = some_digits(digit_images, "d0", "d1", most=120)
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows.reshape(-1, 8, 8)), tiny_classifier(epochs=8))
    scores = cross_val_score(pipeline, images.reshape(-1, 64), labels, cv=2, error_score="raise")
    assert scores.min() > 0.75


def test_a_fitted_classifier_survives_pickling(grown: Any, digit_images: Digits) -> None:
    images = digit_images[0][:30]
    assert (pickle.loads(pickle.dumps(grown)).predict_proba(images) == grown.predict_proba(images)).all()


@pytest.mark.parametrize("labels", [[0, 1], [True, False], ["ja", "nein"], [7, -3]])
def test_labels_come_back_as_they_were(labels: list[Any], tiny_classifier: Tiny, digit_images: Digits) -> None:
    images, names = some_digits(digit_images, "d0", "d1", most=60)
    answers = np.where(names == "d0", np.array(labels)[0], np.array(labels)[1])
    learner = tiny_classifier(epochs=2).fit(images, answers)
    assert learner.classes_.tolist() == sorted(labels)
    assert learner.predict(images).dtype.kind == answers.dtype.kind
    assert set(learner.predict(images).tolist()) <= set(labels)


def test_batches_do_not_change_predictions(grown: Any, digit_images: Digits) -> None:
    images = digit_images[0][:40]
    one_by_one = np.concatenate([grown.predict_proba(images[at : at + 1]) for at in range(40)])
    np.testing.assert_allclose(one_by_one, grown.predict_proba(images), atol=1e-4)


def test_defaults_come_from_the_data_and_are_printed(digit_images: Digits, capsys: Any) -> None:
    learner = IncrementalClassifier(epochs=1, verbose=1, device="cpu")
    learner.fit(*some_digits(digit_images, "d0", "d1", most=40))
    reported = capsys.readouterr().out
    assert "backbone small (width 32, features 32), 8×8 grey pixels, method gatf; 40 images, 1 epochs" in reported
    assert "First fit: added 2 classes (d0, d1)" in reported


# --- how sure it is ---------------------------------------------------------------------------------------------------


def test_probabilities_sum_to_one_and_are_calibrated(grown: Any, digit_images: Digits) -> None:
    images, labels = some_digits(digit_images, *grown.classes_, test=True)
    chances = grown.predict_proba(images)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-12)
    assert (grown.classes_[chances.argmax(1)] == grown.predict(images)).all()
    right, best = grown.predict(images) == labels, chances.max(1)
    assert abs(right.mean() - best.mean()) < 0.16, "confidence must be close to accuracy"
    plain = softmax_with_temperature(torch.from_numpy(grown.decision_function(images)), 1.0).numpy().max(1)
    assert abs(right.mean() - best.mean()) < abs(right.mean() - plain.mean())


def test_temperature_is_recovered_from_calibrated_scores() -> None:
    draws = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, 5, generator=draws, dtype=torch.float64) * 3
    labels = torch.multinomial(torch.softmax(scores / 2.5, dim=1), 1, generator=draws)[:, 0]
    assert fitted_temperature(calibration_sums(scores, labels)) == pytest.approx(2.5, rel=0.05)
    halves = calibration_sums(scores[:1000], labels[:1000]) + calibration_sums(scores[1000:], labels[1000:])
    torch.testing.assert_close(halves, calibration_sums(scores, labels))


def test_temperature_of_perfect_scores_stays_finite() -> None:
    scores = torch.eye(4, dtype=torch.float64) * 10
    chances = softmax_with_temperature(scores, fitted_temperature(calibration_sums(scores, torch.arange(4))))
    assert 0.7 < float(chances.max()) < 0.95, "four right answers do not make certain"


def test_temperature_without_held_out_images_makes_nobody_certain() -> None:
    scores = torch.eye(4, dtype=torch.float64) * 1000
    chances = softmax_with_temperature(scores, temperature_at_even_odds(scores, torch.arange(4)))
    assert chances.diagonal().tolist() == pytest.approx([0.5] * 4, abs=0.02)


def test_two_images_per_class_leave_probabilities_open(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=3).fit(*some_digits(digit_images, "d0", "d1", "d2", most=2))
    images, _ = some_digits(digit_images, "d0", "d1", "d2", most=2)
    assert learner.report_.held_out == 0
    assert learner.predict_proba(images).max() < 0.8, "nothing was kept back that could make certain"
    assert any("not calibrated" in warning for warning in learner.report_.warnings)
    learner.partial_fit(*some_digits(digit_images, "d3", most=2))
    assert learner.report_.expected_old is None


def test_certificate_by_hand() -> None:
    """Two classes at ±2 on a line, in a metric of variance 2 (1, shrunk by 1): at z, d = (z ∓ 2)²/2."""
    stored = Gaussians(torch.tensor([[-2.0], [2.0]]), torch.ones(2, 1, 1))
    error = 0.2
    certifier = Certifier(stored, torch.full((2,), error, dtype=torch.float64))
    points = torch.tensor([[-2.0], [-0.5], [-0.1], [1.5]])
    near, far = [((points[:, 0] + sign * 2).abs() / 2**0.5).double() for sign in (1, -1)]
    bound = sum(2 * distance * error + error**2 for distance in (near, far))
    expected = (near.square() - far.square()).abs() > bound
    nearest = (points[:, 0] > 0).long()
    assert certifier.certificates(points, nearest).tolist() == expected.tolist() == [True, True, False, True]
    assert not certifier.certificates(points, 1 - nearest).any(), (
        "another answer than the nearest mean's is not certified"
    )


def test_a_shared_covariance_scores_like_copies_of_it() -> None:
    draws = torch.Generator().manual_seed(0)
    means, points = (torch.randn(n, 3, generator=draws, dtype=torch.float64) for n in (4, 20))
    factor = torch.randn(3, 3, generator=draws, dtype=torch.float64)
    shared = Gaussians.sharing(means, factor @ factor.T)
    copies = Gaussians(means, shared.covs.clone())
    one, other = (NoveltyScorer(stored).scores(points) for stored in (shared, copies))
    torch.testing.assert_close(one, other)
    one, other = (Certifier(stored, torch.zeros(4)).metric(points) for stored in (shared, copies))
    torch.testing.assert_close(one, other)


def test_certificate_by_class_covariance_by_hand() -> None:
    """A wide class at 0, carried, and a narrow new one at 10, variances 16 and 1, times 4 for the shrinkage of 3 in one
    dimension. At z = 4: d̂ = 16/64 and 36/4, r = 1/2 and 3. With η_μ = 1/2 and η_Σ = 1/2 the first lies in [0, 2]."""
    stored = Gaussians(torch.tensor([[0.0], [10.0]]), torch.tensor([[[16.0]], [[1.0]]]))
    errors = torch.tensor([9.0, 0.0], dtype=torch.float64)  # so large in the common metric that nothing follows
    points, answers = torch.tensor([[4.0], [7.5], [9.0]]), torch.tensor([0, 0, 1])
    # at 7.5: the first class is nearer, 0.88 against 1.56, but may be as far as 1.4375²/0.5 = 4.1
    # at 9: the second is nearer, 0.25, and the first at least 0.625²/1.5 = 0.26 away, or 0.625²/1.6 = 0.24
    assert not Certifier(stored, errors).certificates(points, answers).any()
    certifier = Certifier(stored, errors, (0.5, 0.5))
    assert certifier.certificates(points, answers).tolist() == [True, False, True]
    assert Certifier(stored, errors, (0.5, 0.6)).certificates(points, answers).tolist() == [True, False, False]
    assert not Certifier(stored, errors, (0.5, 1.0)).certificates(points, answers)[0], "the range has no upper end"


def test_certified_predictions_survive_the_error(grown: Any, digit_images: Digits) -> None:
    """Whatever moves old classes within the measured errors changes no certified answer of the rule that gave it."""
    images, _ = some_digits(digit_images, *grown.classes_, test=True)
    answers, certified = grown.predict(images, return_certificate=True)
    assert 0 < certified.mean() < 1
    assert (answers == grown.predict(images)).all()
    model = grown.model_
    features = torch.from_numpy(grown.transform(images))
    numbers = torch.from_numpy(np.searchsorted(grown.classes_, answers))
    common = Certifier(model.certifier.stored, model.errors).certificates(features, numbers)
    by_class = model.certifier.certified_by_class(features, numbers)
    assert torch.equal(common | by_class, torch.from_numpy(certified))
    assert bool((by_class & ~common).any()), "the second rule certifies some that the first does not"
    metric = model.certifier.metric
    means, points = metric(model.certifier.stored.means), metric(features)
    shrunk = spd.shrink(model.certifier.stored.covs, CLASS_SHRINK)
    lower = torch.linalg.cholesky(shrunk)
    eta_mean, eta_cov = model.certifier.class_errors
    transported = (model.errors > 0).double()
    assert eta_cov < 1
    draws = torch.Generator().manual_seed(0)
    for _ in range(20):
        shift = torch.randn(means.shape, generator=draws, dtype=torch.float64)
        shift = shift / shift.norm(dim=1, keepdim=True)
        nearest = torch.cdist(points, means + model.errors[:, None] * shift).argmin(1)
        assert (nearest == numbers)[common].all()
        turn = spd.symmetrise(torch.randn(shrunk.shape, generator=draws, dtype=torch.float64))
        turn = turn / torch.linalg.matrix_norm(turn, ord=2)[:, None, None]
        covs = lower @ (torch.eye(len(turn[0])) + eta_cov * transported[:, None, None] * turn) @ lower.mT
        moved = model.certifier.stored.means + eta_mean * (lower @ (transported[:, None] * shift)[..., None])[..., 0]
        distances = mahalanobis_readout(Gaussians(moved, covs), 0.0).distances(features)
        assert (distances.argmin(1) == numbers)[by_class].all()


def test_a_first_fit_has_no_transport_error(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=2).fit(*some_digits(digit_images, "d0", "d1", most=80))
    assert learner.model_.errors.tolist() == [0, 0]
    assert learner.report_.transport_error is None


def test_accuracy_by_class_by_hand() -> None:
    """Of fifty images of one class 49 are right, of one image of another none."""
    labels = torch.tensor([3] * 50 + [7])
    predicted = torch.tensor([3] * 49 + [0, 0])
    accuracy, images = accuracy_by_class(predicted, labels)
    assert accuracy == pytest.approx((98 + 0) / 2)
    assert images == pytest.approx(4 / (1 / 50 + 1 / 1)), "one image leaves the doubt of one image"
    assert accuracy_by_class(labels[:10], labels[:10]) == pytest.approx((100, 10))


def test_rejection_threshold_by_hand() -> None:
    distances = torch.arange(1.0, 20.0)  # 1 … 19: of 20 equally likely ranks, one lies beyond 19
    assert rejection_threshold(distances, 0.05) == 19.0
    assert rejection_threshold(distances, 0.5) == 10.0
    assert rejection_threshold(distances, 0.04) == float("inf")


def test_unknown_images_are_rejected_at_the_stated_rate(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=15, unknown=0.1).fit(*some_digits(digit_images, "d0", "d1", "d2", "d3"))
    known, _ = some_digits(digit_images, "d0", "d1", "d2", "d3", test=True)
    strange = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
    assert (learner.predict(known) == "unknown").mean() < 0.2
    assert (learner.predict(strange) == "unknown").mean() > 0.8
    labels, certified = learner.predict(strange, return_certificate=True)
    assert not certified[labels == "unknown"].any()
    learner.set_params(unknown_label="d0")
    with pytest.raises(UserError, match="name of a class"):
        learner.predict(known)
    learner.set_params(unknown=1e-4, unknown_label=None)
    with pytest.raises(UserError, match="too few images were held out"):
        learner.predict(known)


def test_blank_and_noisy_images_are_rejected_wherever_their_features_are() -> None:
    """Two classes at ±4 on the first axis, of unit covariance, which shrinkage makes 1.1: distances by hand."""
    means = torch.tensor([[-4.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    scorer = NoveltyScorer(Gaussians(means, torch.eye(2, dtype=torch.float64).expand(2, 2, 2)))
    points = torch.tensor([[4.0, 0.0], [4.0, 3.0], [0.5, 0.0], [4.0, 30.0]], dtype=torch.float64)
    squares = torch.tensor([0.0, 9.0, 3.5**2, 900.0], dtype=torch.float64)
    quotients = squares / torch.tensor([16.0, 25.0, 0.25, 916.0], dtype=torch.float64)
    torch.testing.assert_close(scorer.scores(points), torch.stack([quotients, squares / 2 / 1.1], 1))
    known = torch.tensor([[0.2, 2.0]] * 20)
    assert combined_novelty(scorer.scores(points), known).tolist() == pytest.approx(
        [0, 4.5 / 1.1 / 2, 49 / 0.2, 450 / 1.1 / 2]
    )


@pytest.mark.parametrize("method", ["lwf", "ncm"])
def test_methods_without_gaussians_reject_by_energy(method: str, tiny_classifier: Tiny, digit_images: Digits) -> None:
    names = ("d0", "d1", "d2", "d3")
    learner = tiny_classifier(method=method, epochs=6, unknown=0.1).fit(*some_digits(digit_images, *names))
    assert learner.report_.rejection == "promised"
    known, _ = some_digits(digit_images, *names, test=True)
    others, _ = some_digits(digit_images, "d5", "d6", "d7", test=True)
    assert (learner.predict(known) == "unknown").mean() < 0.25
    rejected = [(learner.predict(images) == "unknown").mean() for images in (known, others)]
    assert rejected[1] > rejected[0] + 0.15
    learner.partial_fit(*some_digits(digit_images, "d4", most=60))
    assert learner.report_.rejection == ("estimated" if method == "ncm" else "withdrawn"), "only a frozen network stays"


def test_the_rate_of_rejections_is_withdrawn_when_a_known_class_comes_back(
    tiny_classifier: Tiny, digit_images: Digits
) -> None:
    """The network moved, and no image shows where the other classes went: rejecting on would reject nearly all."""
    names = ("d0", "d1", "d2", "d3")
    learner = tiny_classifier(epochs=15, unknown=0.1).fit(*some_digits(digit_images, *names))
    known, _ = some_digits(digit_images, *names, test=True)
    assert learner.report_.rejection == "promised"
    learner.partial_fit(*some_digits(digit_images, "d1", most=20))
    assert learner.report_.rejection == "withdrawn"
    assert any("unknown images are no longer rejected" in warning for warning in learner.report_.warnings)
    with pytest.warns(UserWarning, match="no image is rejected as unknown.* an update with images of every class"):
        assert not (learner.predict(known) == "unknown").any()
    # nor can a new class tell how far the others have moved by now
    learner.partial_fit(*some_digits(digit_images, "d4"))
    assert learner.report_.rejection == "withdrawn"
    # images of every class kept back by one update: the promise again, from these alone
    learner.partial_fit(*some_digits(digit_images, *names, "d4"))
    assert learner.report_.rejection == "promised"
    assert len(learner.model_.novelty) == learner.report_.held_out
    rejected = (learner.predict(known) == "unknown").mean()
    assert rejected < 0.1 + 3 * (0.1 * 0.9 * (1 / len(known) + 1 / learner.report_.held_out)) ** 0.5


def test_the_rate_of_rejections_is_called_an_estimate_when_classes_were_added(grown: Any, digit_images: Digits) -> None:
    learner = IncrementalClassifier.from_model(grown.model_, device="cpu").set_params(unknown=0.1)
    assert learner.report_.rejection == "estimated"
    known, _ = some_digits(digit_images, *learner.classes_, test=True)
    with pytest.warns(UserWarning, match="estimated, not guaranteed, for classes older than the last update"):
        rejected = learner.predict(known) == "unknown"
    assert 0 < rejected.mean() < 0.3


@pytest.mark.parametrize("method", ["gatf", "lwf"])
def test_features_and_log_probabilities(method: str, tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(method=method, epochs=2).fit(*some_digits(digit_images, "d0", "d1", "d2", most=90))
    images = digit_images[0][:6]
    features = learner.transform(images)
    assert features.shape == (6, len(learner.get_feature_names_out()))
    assert learner.get_feature_names_out()[1] == "incrementalclassifier1"
    assert learner.image_shape_ == (1, 8, 8)
    np.testing.assert_allclose(np.exp(learner.predict_log_proba(images)), learner.predict_proba(images), rtol=1e-9)
    pixels = torch.from_numpy(images[:, None].astype(np.float32) / 255)
    seen = learner.model_.preprocessing
    normalised = (pixels - seen.mean[0]) / seen.std[0]
    with torch.no_grad():
        by_hand = learner.model_.method.eval().backbone(normalised)
    np.testing.assert_allclose(features, by_hand.numpy(), atol=1e-4)


def test_a_dotted_setting_is_a_parameter_of_its_own(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=1)
    learner.set_params(**{"settings__method.ridge": 0.5, "epochs": 2})
    assert learner.settings == {"method.samples": 100, "method.ridge": 0.5}
    assert learner.get_params()["settings__method.ridge"] == 0.5
    assert clone(learner).settings == learner.settings
    with pytest.raises(ValueError, match="Invalid parameter 'setting'"):
        learner.set_params(setting__x=1)
    grid = GridSearchCV(learner, {"settings__method.ridge": [0.1, 0.2]}, cv=2, error_score="raise")
    grid.fit(*some_digits(digit_images, "d0", "d1", most=60))
    assert grid.best_estimator_.model_.config.method.anchor.ridge in (0.1, 0.2)


def test_a_notebook_shows_its_contents(grown: Any, tiny_classifier: Tiny) -> None:
    page = grown._repr_mimebundle_()["text/html"]
    for words in ("7 classes, 2 updates", "8×8 grey", "d0, d1, d2", "Older classes: expected accuracy about"):
        assert words in page
    assert "bytes per class" not in tiny_classifier()._repr_mimebundle_()["text/html"]


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_the_report_is_true_and_plain(grown: Any, digit_images: Digits) -> None:
    text = str(grown.report_)
    for words in (
        "Update 1: added 3 classes (d4, d5, d6)",
        "held-out images",
        "moved the older classes by",
        "Older classes: expected accuracy about",
    ):
        assert words in text
    accuracy = 100 * grown.score(*some_digits(digit_images, "d0", "d1", "d2", "d3", test=True))
    assert grown.report_.expected_old == pytest.approx(accuracy, abs=15)
    assert grown.report_.transport_error > 0
    assert grown.report_.held_out + grown.report_.images == len(some_digits(digit_images, "d4", "d5", "d6")[0])


def test_few_images_are_warned_about(tiny_classifier: Tiny, digit_images: Digits) -> None:
    learner = tiny_classifier(epochs=1).fit(*some_digits(digit_images, "d0", "d1", most=20))
    assert any("fewer than 20 training images" in warning for warning in learner.report_.warnings)
    assert "Warning: " in str(learner.report_)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"method.readout": "nmc"}},
        {"settings": {"method.preset": "plus"}},
        {"width": 64},
        {"backbone": "resnet18"},
    ],
)
def test_settings_of_the_first_fit_cannot_change_later(change: Any, grown: Any, digit_images: Digits) -> None:
    again = IncrementalClassifier.from_model(grown.model_, device="cpu").set_params(**change)
    with pytest.raises(UserError, match="was fixed when the model was first fitted"):
        again.partial_fit(*some_digits(digit_images, "d7", most=40))


def test_settings_are_given_once_and_hold_for_updates(tiny_classifier: Tiny, digit_images: Digits) -> None:
    settings = {"method.readout": "nmc", "backbone.stem": "3x3", "optimisation.next.lr": 0.05, "method.samples": 100}
    learner = tiny_classifier(epochs=1, settings=settings).fit(*some_digits(digit_images, "d0", "d1", most=60))
    learner.partial_fit(*some_digits(digit_images, "d2", most=40))
    assert learner.model_.config.optimisation.next.lr == 0.05
    assert learner.model_.method.memory.rule == "nmc"


def test_the_anchor_of_a_classifier_is_shrunk_towards_the_identity_unless_asked_otherwise() -> None:
    made = partial(first_config, method="gatf", shape=(1, 8, 8), images=500, device="cpu", seed=0)
    assert made(overrides={}).method.anchor.kind == "identity"
    assert made(overrides={"method.anchor.kind": "sylvester"}).method.anchor.kind == "sylvester"


def test_a_preset_holds_for_updates_with_its_epochs() -> None:
    chosen = {"method.preset": "pycil", "method.distill": 6.0, "optimisation.next.lr": 0.02}
    first = first_config(method="lwf", shape=(1, 8, 8), images=500, device="cpu", seed=0, overrides=chosen)
    stages = first.optimisation
    assert (stages.first.epochs, stages.next.epochs, stages.next.batch_size) == (200, 250, 128)
    for overrides in ({}, {"method.preset": "pycil"}):  # naming the preset again changes nothing
        later = next_config(first, images=300, overrides=overrides)
        assert later.optimisation == stages
        assert later.method == first.method


def test_no_advice_to_train_longer_without_training(
    tiny_classifier: Callable[..., Any], digit_images: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digit_images
    mixed = np.random.default_rng(0).permutation(labels[:300])  # nothing to be learnt
    for method, settings in (("ncm", {"method.train_first": False}), ("gatf", {"method.samples": 100})):
        dims = {"feature_dim": 8} if method == "gatf" else {"feature_dim": None}
        classifier = tiny_classifier(method=method, settings=settings, epochs=1, **dims).fit(images[:300], mixed)
        (advice,) = [text for text in classifier.report_.warnings if "fewer than half" in text]
        assert ("more epochs" in advice) == (method == "gatf")
        assert ("add images" in advice) == (method == "ncm")


@pytest.mark.parametrize("image", [0, 2])
def test_one_score_that_is_not_finite_is_an_error(
    image: int, tiny_classifier: Tiny, digit_images: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a single image and class, as in a file with a damaged weight that only some images reach."""
    learner = tiny_classifier(epochs=1).fit(*some_digits(digit_images, "d0", "d1", most=60))
    plain = Model.forward

    def damaged(self: Model, *args: Any, **options: Any) -> ForwardOutput:
        outputs = plain(self, *args, **options)
        outputs.scores[image, 1] = torch.inf
        return outputs

    monkeypatch.setattr(Model, "forward", damaged)
    with pytest.raises(UserError, match="scores are not finite"):
        learner.predict(digit_images[0][:3])
