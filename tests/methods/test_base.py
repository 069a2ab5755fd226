"""What the contract itself does: a class that leaves something out, modules that live for a task."""

from typing import Any, get_args

import pytest
import torch
from torch import nn

from gatf.methods import METHODS, Method
from gatf.methods.base import ForTask, MethodCard
from gatf.settings import MethodConfig

WORDS: dict[str, Any] = {
    "name": "mine",
    "Config": MethodConfig,
    "card": MethodCard(summary="a line", when="never", keeps="nothing", trains="nothing"),
}


class TestDeclarations:
    def test_a_complete_method_is_a_class(self) -> None:
        assert type("Mine", (Method,), WORDS).name == "mine"

    @pytest.mark.parametrize("missing", WORDS)
    def test_a_class_without_one_of_them_does_not_come_to_be(self, missing: str) -> None:
        words = {name: value for name, value in WORDS.items() if name != missing}
        with pytest.raises(
            TypeError, match=f"^method class Mine lacks {missing}: docs/add-a-method.md has an example$"
        ):
            type("Mine", (Method,), words)

    def test_all_that_is_missing_is_named_at_once(self) -> None:
        with pytest.raises(TypeError, match="lacks name, Config, card:"):
            type("Mine", (Method,), {})

    @pytest.mark.parametrize("method", METHODS)
    def test_class_registry_and_settings_agree(self, method: str) -> None:
        kind = METHODS[method]
        assert kind.name == method == kind.Config.model_fields["name"].default
        assert get_args(kind.__dict__["__orig_bases__"][0]) == (kind.Config,)


class Learner(nn.Module):
    head = ForTask[nn.Linear]()


class TestForTask:
    def test_reading_it_outside_a_task_is_reported(self) -> None:
        learner = Learner()
        with pytest.raises(RuntimeError, match="Learner has no 'head' now"):
            learner.head(torch.zeros(1, 2))
        learner.head = None
        learner.head = nn.Linear(2, 3)
        learner.head = None
        with pytest.raises(RuntimeError, match="Learner has no 'head' now"):
            learner.head(torch.zeros(1, 2))

    def test_within_a_task_it_is_a_module_like_any_other(self) -> None:
        learner = Learner()
        learner.head = layer = nn.Linear(2, 3)
        assert learner.head is layer
        assert list(learner.state_dict()) == ["head.weight", "head.bias"]
        assert learner.double().head.weight.dtype == torch.float64
        learner.head = None
        assert not learner.state_dict()

    def test_each_learner_has_its_own(self) -> None:
        one, other = Learner(), Learner()
        one.head, other.head = nn.Linear(2, 3), nn.Linear(2, 4)
        assert (one.head.out_features, other.head.out_features) == (3, 4)
