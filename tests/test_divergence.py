"""Training that leaves the finite numbers stops within the epoch, says so in one sentence, and spoils nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.config import RunConfig
from gatf.errors import Diverged, UserError
from gatf.experiment import Experiment, start
from gatf.incremental.update_file import update_model_file
from gatf.io.run_folder import RunFolder
from gatf.methods import METHODS
from gatf.model import file as model_file
from gatf.training.divergence import all_finite

Tiny = Callable[..., RunConfig]
RATE = 1e12
"""With a weight decay of 5e-4, weights grow by some eight digits a step: float32 overflows within an epoch."""
STAGE = {"lr": RATE, "warmup": 0.0, "optimiser": "sgd", "weight_decay": 5e-4}


FROZEN_AFTER_THE_FIRST = ("fetril", "fecam", "joint", "ncm", "aper", "slda", "ranpac", "klda", "acil", "ds-al")


def at(stage: str) -> dict[str, Any]:
    return {f"optimisation.{stage}.{name}": value for name, value in STAGE.items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_reports_what_diverged_and_what_to_change(method: str, tmp_path: Path, tiny_config: Tiny) -> None:
    """In the second task, or in the first for methods whose network stays as it is after that, or begins anew."""
    stage, task = ("first", 1) if method in FROZEN_AFTER_THE_FIRST else ("next", 2)
    folder = tmp_path / "run"
    with pytest.raises(Diverged) as caught:
        start(tiny_config(method, checkpoint_every=None, **at(stage)), folder)
    said = str(caught.value)
    assert "\n" not in said
    assert re.search(
        rf"task {task}, phase '\w+', epoch \d \([^)]+\): lower optimisation.{stage}.lr, now 1e\+12, or ", said
    )
    assert f"optimisation.{stage}.clip" in said
    assert f"gatf run --resume {folder} --force-config --set optimisation.{stage}.lr=1e+11" in said
    left = RunFolder(folder)
    assert not left.finished
    assert not left.model.exists()
    assert len(left.saved_checkpoints()) == task - 1
    assert "NaN" not in left.events.read_text(encoding="utf-8")


def test_the_resume_command_can_be_pasted() -> None:
    said = str(Diverged("training diverged", "optimisation.next.lr", 5.0).offer(Path("my runs/a")))
    assert said.endswith("gatf run --resume 'my runs/a' --force-config --set optimisation.next.lr=0.5")


def test_a_phase_with_a_rate_of_its_own_names_it(tmp_path: Path, tiny_config: Tiny) -> None:
    with pytest.raises(Diverged, match=r"task 2, phase 'adapter', epoch \d .*: lower method.adapter_lr, now 1e\+30"):
        start(tiny_config("adagauss", **{"method.adapter_lr": 1e30, "optimisation.next.epochs": 8}), tmp_path / "run")


def test_a_statistic_that_is_not_finite_is_named(tmp_path: Path, tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("gatf"))
    end_task = experiment.method.end_task

    def spoil(data: Any) -> None:
        end_task(data)
        experiment.method.state_dict()["memory.means"][0, 0] = torch.inf

    experiment.method.end_task = spoil  # type: ignore[method-assign]
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(Diverged, match=r"task 1, statistics \(memory.means: not finite\): lower method.adapter_lr"):
        experiment.run(tmp_path, ())
    assert not any("task001" in file.name for file in RunFolder(tmp_path).saved_checkpoints())


def test_scores_that_are_not_finite_are_no_result(tmp_path: Path, tiny_config: Tiny) -> None:
    """Weights can be finite and so large that what they are multiplied with is not."""
    experiment = Experiment(tiny_config("finetune"))
    end_task = experiment.method.end_task

    def enlarge(data: Any) -> None:
        end_task(data)
        for weight in experiment.method.heads.parameters():  # type: ignore[union-attr,operator]
            weight.data.fill_(3e38)

    experiment.method.end_task = enlarge  # type: ignore[method-assign]
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(Diverged, match=r"task 1, evaluation \(scores not finite\)"):
        experiment.run(tmp_path, ())


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path, tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("finetune"))

    def fail(data: Any) -> None:
        raise RuntimeError("a bug")

    experiment.method.end_task = fail  # type: ignore[method-assign]
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        experiment.run(tmp_path, ())


def write_folders(root: Path, images: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == name][:12]):
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def test_an_update_that_diverges_leaves_the_model_and_no_plan(
    tmp_path: Path, digit_images: tuple[np.ndarray, np.ndarray]
) -> None:
    first = write_folders(tmp_path / "first", *digit_images, ("d0", "d1"))
    more = write_folders(tmp_path / "more", *digit_images, ("d2", "d3"))
    path = tmp_path / "shop.gatf"
    new: dict[str, Any] = {"device": "cpu", "epochs": 12, "batch_size": 8}
    small = new | {"method": "finetune", "width": 4}
    with pytest.raises(Diverged, match=r"task 1, phase 'train', epoch \d .*; no model was written$"):
        update_model_file(path, first, parameters=small | {"settings": at("first")})
    assert {file.name for file in tmp_path.iterdir()} == {"first", "more"}
    update_model_file(path, first, parameters=small)
    before = path.read_bytes()
    with pytest.raises(Diverged, match=r"task 2, phase 'train', epoch \d .*shop.gatf has not changed"):
        update_model_file(path, more, parameters=new | {"settings": at("next")})
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"first", "more", "shop.gatf"}
    outcome = update_model_file(path, more, parameters=new)
    assert not outcome.resumed
    assert len(outcome.model.labels) == 4


def test_a_model_that_does_not_predict_is_not_written(tmp_path: Path, tiny_classifier: Any, digit_images: Any) -> None:
    images, labels = digit_images
    classifier = tiny_classifier(method="finetune").fit(images[:100], labels[:100])
    path = tmp_path / "shop.gatf"
    classifier.save(path)
    before = path.read_bytes()
    weights = next(classifier.model_.method.heads.parameters()).data
    for value, why in ((3e38, "scores are not finite"), (torch.nan, "values that are not finite")):
        weights.fill_(value)
        with pytest.raises(UserError, match=f"{why}.*not written"):
            model_file.save(classifier.model_, path)
        assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["shop.gatf"]


def test_infinite_numbers_are_no_more_finite_than_nan() -> None:
    good = torch.tensor([1.0, -1e30])
    assert all_finite([good, torch.tensor([3]), torch.zeros(0)])
    assert all_finite([torch.full((4,), 3e38)])  # whose sum would not be
    assert all_finite([])
    for bad in (torch.inf, -torch.inf, torch.nan):
        assert not all_finite([good, torch.tensor([0.0, bad])])
