"""A model moves to another encoder: synthetic encoders are random linear views of the same items."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from gatf import EmbeddingClassifier
from gatf.cli import app
from gatf.errors import UserError
from gatf.incremental.upgrade import load_map, map_path, read_pairs
from gatf.model.calibration import TEMPERATURES, calibration_sums, expected_calibration_sums

CLASSES, INNER, OLD, NEW = 6, 8, 12, 10


class World:
    """Items of some classes, and two encoders that see them."""

    def __init__(self, seed=0):
        self.draws = np.random.default_rng(seed)
        self.centres = 4 * self.draws.normal(size=(CLASSES, INNER))
        self.old_view, self.new_view = self.draws.normal(size=(INNER, OLD)), self.draws.normal(size=(INNER, NEW))

    def items(self, each, classes=range(CLASSES)):
        labels = np.repeat(list(classes), each)
        inner = self.centres[labels] + self.draws.normal(size=(len(labels), INNER))
        views = self.old_view, self.new_view
        old, new = (inner @ view + 0.1 * self.draws.normal(size=(len(labels), view.shape[1])) for view in views)
        order = self.draws.permutation(len(labels))
        return old[order], new[order], np.array([f"kind {n}" for n in labels])[order]


@pytest.fixture
def world():
    return World()


def learnt(world, each=60, **parameters):
    old, _, labels = world.items(each)
    return EmbeddingClassifier(normalize=False, encoder="a@1", **parameters).fit(old, labels)


@pytest.mark.parametrize("method", ["slda", "ncm", "ranpac", "klda"])
def test_every_vector_method_classifies_with_the_new_encoder(world, method):
    settings = {"method.projections": 64} if method in ("ranpac", "klda") else None
    model = learnt(world, method=method, settings=settings)
    old, new, labels = world.items(80)
    before = model.score(old, labels)
    pair_old, pair_new, _ = world.items(40)
    model.upgrade(pair_old, pair_new, encoder="b@1")
    assert model.n_features_in_ == NEW
    assert model.score(new, labels) > before - 0.05
    assert model.model_.config.backbone.encoder == "b@1"


def test_pairs_of_classes_that_the_model_never_learnt_are_enough():
    world = World(3)
    old, _, labels = world.items(60, classes=range(4))
    model = EmbeddingClassifier(normalize=False).fit(old, labels)
    pair_old, pair_new, _ = world.items(150, classes=(4, 5))
    model.upgrade(pair_old, pair_new)
    _, new, labels = world.items(50, classes=range(4))
    assert model.score(new, labels) > 0.9
    _, more, names = world.items(30, classes=(4, 5))
    model.partial_fit(more, names)  # learns on in the new space
    _, new, labels = world.items(50)
    assert model.score(new, labels) > 0.9


def test_forecast_covers_the_accuracy_and_probabilities_stay_calibrated(world):
    world.centres /= 3  # classes overlap
    model = learnt(world, each=500)
    pair_old, pair_new, _ = world.items(80)
    model.upgrade(pair_old, pair_new)
    _, new, labels = world.items(300)
    found, accuracy = model.report_.upgrade, 100 * model.score(new, labels)
    assert found.low - 3 <= accuracy <= found.high + 3
    assert 50 < accuracy < 97
    assert 100 * model.predict_proba(new).max(1).mean() == pytest.approx(accuracy, abs=8)
    assert "recalibrated on the pairs" in str(model.report_)


def test_labelled_pairs_measure_the_accuracy(world):
    model = learnt(world)
    pair_old, pair_new, labels = world.items(40)
    labels[:30] = "something else"
    found = model.upgrade(pair_old, pair_new, labels).report_.upgrade
    assert found.measured
    assert found.after > 90


def test_unknown_items_are_rejected_after_the_upgrade(world):
    model = learnt(world, unknown=0.05)
    model.upgrade(*world.items(80)[:2])
    assert model.report_.rejection == "estimated"
    far = 30 * world.draws.normal(size=(50, INNER)) @ world.new_view
    with pytest.warns(UserWarning, match="estimate"):
        assert (model.predict(far) == "unknown").mean() > 0.9
    with pytest.warns(UserWarning, match="estimate"):
        assert (model.predict(world.items(40)[1]) == "unknown").mean() < 0.2


def test_chain_of_upgrades_keeps_the_classes():
    world = World(1)
    model = learnt(world)
    for _ in range(3):
        pair_old, pair_new, _ = world.items(100)
        model.upgrade(pair_old, pair_new)
        world.old_view, world.new_view = world.new_view, world.draws.normal(size=(INNER, NEW))
    world.new_view = world.old_view
    _, new, labels = world.items(50)
    assert model.score(new, labels) > 0.9


def test_mistakes_are_one_sentence(world):
    model = learnt(world)
    old, new, labels = world.items(20)
    with pytest.raises(UserError, match="row i of both must be the same item"):
        model.upgrade(old, new[:-1])
    with pytest.raises(UserError, match="at least 20 pairs"):
        model.upgrade(old[:5], new[:5])
    with pytest.raises(UserError, match="the model learnt 12"):
        model.upgrade(new, old)
    with pytest.raises(UserError, match="are equal"):
        model.upgrade(old, np.ones_like(new))
    with pytest.raises(UserError, match="row 0 of the new vectors contains NaN"):
        model.upgrade(old, np.full_like(new, np.nan))
    with pytest.raises(UserError, match="give one for each pair"):
        model.upgrade(old, new, labels[:3])
    with pytest.raises(UserError, match=r"an array \(120, 1\) of labels"):
        model.upgrade(old, new, labels[:, None])
    assert model.n_features_in_ == OLD


def test_expected_sums_are_those_of_labels_for_certain_probabilities():
    scores = torch.randn(20, 4, dtype=torch.float64)
    labels = torch.arange(20) % 4
    certain = torch.nn.functional.one_hot(labels, 4).double()
    assert torch.allclose(expected_calibration_sums(scores, certain), calibration_sums(scores, labels))


# --- the command


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def shop(tmp_path, world):
    path = tmp_path / "shop.gatf"
    learnt(world).save(path)
    old, new, _ = world.items(60)
    np.savez(tmp_path / "pairs.npz", old=old, new=new)
    return path


def test_command_upgrades_writes_the_map_and_rolls_back(shop, world):
    before = shop.read_bytes()
    found = run("upgrade", shop, shop.parent / "pairs.npz", "--encoder", "b@1")
    assert found.exit_code == 0, found.output
    assert "360 pairs" in found.output
    assert "Probabilities were recalibrated on the pairs" in found.output
    _, new, labels = world.items(40)
    assert EmbeddingClassifier.load(shop).score(new, labels) > 0.9
    assert load_map(shop).affine.weight.shape == (NEW, OLD)
    assert "Encoder upgrade" in run("inspect", shop).output
    assert run("rollback", shop).exit_code == 0
    assert shop.read_bytes() == before


def test_command_moves_stored_vectors(shop, world):
    import pyarrow.parquet as pq

    old, new, labels = world.items(30)
    np.savez(shop.parent / "stored.npz", embedding=old, label=labels, encoder="a@1")
    out = shop.parent / "moved.parquet"
    assert run("upgrade", shop, shop.parent / "pairs.npz", "--encoder", "b@1").exit_code == 0
    found = run("upgrade", shop, "--vectors", shop.parent / "stored.npz", "--out", out)
    assert found.exit_code == 0, found.output
    table = pq.read_table(out)
    assert run("evaluate", shop, out).exit_code == 0  # the file names the new encoder
    assert table.schema.metadata[b"encoder"] == b"b@1"
    moved = np.array(table["embedding"].to_pylist())
    assert table["label"].to_pylist() == labels.tolist()
    assert np.square(moved - new).sum() < 0.05 * np.square(new - new.mean(0)).sum()


def test_vectors_that_cannot_be_moved_change_nothing(shop, world):
    before, out = shop.read_bytes(), shop.parent / "moved.parquet"
    old, _, labels = world.items(30)
    np.savez(shop.parent / "narrow.npz", embedding=old[:, 1:], label=labels)
    np.savez(shop.parent / "other.npz", embedding=old, label=labels, encoder="c@1")
    for name, message in (("narrow", "vectors of 11 columns"), ("other", "of encoder 'c@1'"), ("none", "no file")):
        words = "upgrade", shop, shop.parent / "pairs.npz", "--vectors", shop.parent / f"{name}.npz", "--out", out
        with pytest.raises(UserError, match=message):
            raise run(*words).exception
    assert shop.read_bytes() == before
    assert not out.exists()
    assert not map_path(shop).exists()


def test_the_map_of_an_undone_upgrade_moves_nothing(shop, world):
    np.savez(shop.parent / "stored.npz", embedding=world.items(3)[0])
    assert run("upgrade", shop, shop.parent / "pairs.npz").exit_code == 0
    assert run("rollback", shop).exit_code == 0
    found = run("upgrade", shop, "--vectors", shop.parent / "stored.npz", "--out", shop.parent / "moved.parquet")
    assert "is not of the model's last upgrade" in str(found.exception)


def test_a_large_loss_is_refused_unless_forced(shop, world):
    old, new, _ = world.items(10)
    np.savez(shop.parent / "wrong.npz", old=old, new=world.draws.permutation(new))
    before = shop.read_bytes()
    found = run("upgrade", shop, shop.parent / "wrong.npz")
    assert isinstance(found.exception, UserError)
    assert "--force" in str(found.exception)
    assert shop.read_bytes() == before
    assert not map_path(shop).exists()
    assert run("upgrade", shop, shop.parent / "wrong.npz", "--force").exit_code == 0


def test_pairs_that_are_not_there_or_not_pairs(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        read_pairs(tmp_path / "none.npz")
    np.savez(tmp_path / "odd.npz", old=np.zeros((3, 2)))
    with pytest.raises(UserError, match="has no 'new'"):
        read_pairs(tmp_path / "odd.npz")
    np.savez(tmp_path / "whole.npz", old=np.zeros((30, 2)), new=np.zeros((30, 2)))
    whole = (tmp_path / "whole.npz").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros((30, 2)))
    halves = ("text.npz", b"no arrays"), ("empty.npz", b""), ("cut.npz", whole[: len(whole) // 2]), ("e.parquet", b"")
    for name, content in halves:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="damaged, or neither"):
            read_pairs(tmp_path / name)
    with pytest.raises(UserError, match="damaged, or neither"):
        read_pairs(tmp_path / "array.npy")


@pytest.mark.parametrize("words", [(), ("--vectors", "a.parquet"), ("pairs.npz", "--out", "b.parquet")])
def test_options_that_do_not_fit(shop, words):
    found = run("upgrade", shop, *words)
    assert isinstance(found.exception, UserError)


def test_calibration_sums_are_those_of_softmax_in_little_memory():
    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, kinds, given=(), named=None):
            found = function(*given, **(named or {}))
            if isinstance(found, torch.Tensor):
                Largest.numbers = max(Largest.numbers, found.numel())
            return found

    scores = 100 * torch.randn(600, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(600)
    with Largest():
        sums = calibration_sums(scores, labels)
    assert Largest.numbers <= 2**18
    places = range(0, len(TEMPERATURES), 12)
    losses = [
        torch.nn.functional.cross_entropy(scores / TEMPERATURES[place], labels, reduction="sum") for place in places
    ]
    assert torch.allclose(sums[1 : 1 + len(TEMPERATURES)][list(places)], torch.stack(losses), rtol=1e-12)
