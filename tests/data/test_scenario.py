"""Class orders, splits and fewer images."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image

from gatf.config import load_config
from gatf.data.base import ImageSet, LazyImages, Source
from gatf.data.domains import SHIFTS
from gatf.data.encoded import Pictures
from gatf.data.image_ops import grey
from gatf.data.published import IMAGENET100, cifar100_order, imagenet100_wnids
from gatf.data.scenario import build_scenario, class_order, read_order, split_classes
from gatf.data.sources import limit_training, long_tail
from gatf.errors import UserError
from gatf.settings import DataConfig, Domain, ScenarioConfig


def toy(classes: int = 6, per_class: int = 10) -> Source:
    """Images whose only pixel is their place within the class."""
    labels = torch.arange(classes).repeat(per_class)
    place = torch.arange(per_class).repeat_interleave(classes)
    images = place.to(torch.uint8).view(-1, 1, 1, 1)
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:classes])
    return Source("toy", names, ImageSet(images, labels), ImageSet(images, labels), (0.5,), (0.5,))


def order(source: Source, wanted: object, seed: int = 0) -> tuple[int, ...]:
    return build_scenario(source, ScenarioConfig(tasks=1, order=wanted), seed).order  # type: ignore[arg-type]


def list_digest(items: Iterable[object]) -> str:
    """SHA-256 of the items, one per line."""
    return hashlib.sha256("".join(f"{item}\n" for item in items).encode()).hexdigest()


def test_cifar100s_published_order() -> None:
    published = cifar100_order()
    assert published[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert published[-4:] == (29, 49, 57, 33)
    assert sorted(published) == list(range(100))
    assert list_digest(published) == "3ed9d1df4b73f082597c3a6283ecea3c20dc3424b121e05caf58c56093feacbf"


@pytest.mark.parametrize(
    ("name", "first", "last", "digest"),
    [
        ("adagauss", ("n03710193", "n03089624", "n04152593"), "n02168699", "451c586a78df3fc4e6a762ebb56b0b45"),
        ("cmc", ("n02869837", "n01749939", "n02488291"), "n02090622", "79f3f1552ccc478ce24bd934b4573625"),
    ],
)
def test_imagenet100s_published_lists(name: str, first: tuple[str, ...], last: str, digest: str) -> None:
    wnids = imagenet100_wnids(name)
    assert len(set(wnids)) == 100
    assert (wnids[:3], wnids[-1]) == (first, last)
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdecimal() for wnid in wnids)
    assert list_digest(wnids).startswith(digest)


def test_adagauss_orders_its_sorted_list_as_cifar100s_classes_are() -> None:
    wnids = imagenet100_wnids("adagauss")
    assert list_digest(sorted(wnids)) == "bbfc1ad00af3270b8a99afd7d8542caf909c1d52820b6dbad6a50b9b20d7e340"
    assert [sorted(wnids).index(wnid) for wnid in wnids] == list(cifar100_order())


def test_the_lists_share_seven_classes() -> None:
    assert len(set(imagenet100_wnids("adagauss")) & set(imagenet100_wnids("cmc"))) == 7
    assert imagenet100_wnids() == imagenet100_wnids("adagauss")
    assert set(IMAGENET100) == {"adagauss", "cmc"}


def test_published_seed_and_natural() -> None:
    source = toy()
    assert order(source, "natural") == (0, 1, 2, 3, 4, 5)
    assert order(source, "seed", 3) != order(source, "seed", 4)
    assert order(source, "published", 3) == order(source, "seed", 3)  # none is published
    known = replace(source, published_order=(5, 4, 3, 2, 1, 0))
    assert order(known, "published", 3) == (5, 4, 3, 2, 1, 0)
    assert order(known, "seed", 3) == order(source, "seed", 3)


def test_drawn_orders_are_those_of_adagauss() -> None:
    """The first classes of 200 that AdaGauss's loader (grypesc/AdaGauss at 2487d07) gave for seeds 0 and 1."""
    source = replace(toy(1), class_names=tuple(map(str, range(200))))
    drawn = [class_order(source, ScenarioConfig(order="seed"), seed) for seed in (0, 1)]
    assert [order[:8] for order in drawn] == [(18, 170, 107, 98, 177, 182, 5, 146), (58, 40, 34, 102, 184, 198, 95, 4)]
    assert [order[-3:] for order in drawn] == [(117, 47, 172), (72, 140, 37)]


def test_a_list_of_numbers_or_names() -> None:
    assert order(toy(), (3, 1)) == (3, 1)
    assert order(toy(), ("d", "a", 2)) == (3, 0, 2)
    numbered = replace(toy(), class_names=("5", "4", "3", "2", "1", "0"))
    assert order(numbered, ("5", 5)) == (0, 5)  # a word is a name first


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((0, 6), "lists 6, which is no class of 'toy': give numbers from 0 to 5"),
        ((0, -1), "lists -1"),
        (("a", "zebra"), "lists 'zebra'"),
        (("a", 0), "each at most once"),
        ((), "at least one class"),
        ("publishd", "'publishd' is not a file nor one of .*did you mean 'published'"),
    ],
)
def test_a_list_that_does_not_fit(wanted: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        order(toy(), wanted)


def test_a_file_of_classes(tmp_path: Path) -> None:
    text, listed = tmp_path / "order.txt", tmp_path / "order.yaml"
    text.write_text("# mine\nc\n 0 \n\nf\n")
    listed.write_text("[2, a, f]")
    assert order(toy(), str(text)) == order(toy(), str(listed)) == (2, 0, 5)
    listed.write_text("a: 1")
    with pytest.raises(UserError, match=r"order.yaml must be a list"):
        order(toy(), str(listed))
    listed.write_text("[a")
    with pytest.raises(UserError, match=r"order.yaml cannot be read"):
        order(toy(), str(listed))


def test_stopping_early_and_unequal_tasks() -> None:
    scenario = build_scenario(toy(), ScenarioConfig(task_sizes=(3, 1, 2), stop_after=2, order="natural"), 0)
    assert scenario.task_sizes == (3, 1)
    assert scenario.order == (0, 1, 2, 3)
    assert "task 1: 1 classes (d), 10 training and 10 test images" in str(scenario)


def places(part: ImageSet, label: int) -> list[int]:
    assert isinstance(part.images, torch.Tensor)
    return part.images[part.labels == label].flatten().tolist()


def test_the_first_images_are_kept_and_the_last_of_these_held_out() -> None:
    source = limit_training(toy(), DataConfig(max_per_class=5, val_fraction=0.4))
    assert places(source.train, 2) == [0, 1, 2]
    assert len(source.test) == 60
    tuned = limit_training(toy(), DataConfig(max_per_class=5, val_fraction=0.4, evaluate_on="validation"))
    assert places(tuned.train, 2) == [0, 1, 2]
    assert places(tuned.test, 2) == [3, 4]


def test_nothing_is_copied_when_nothing_is_left_out() -> None:
    source = toy()
    assert limit_training(source, DataConfig(max_per_class=10)) is source


def test_validation_needs_a_fraction() -> None:
    with pytest.raises(ValueError, match="evaluate_on=validation needs val_fraction above 0"):
        DataConfig(evaluate_on="validation")


def test_the_long_tail() -> None:
    assert long_tail(100, 3, 100.0).tolist() == [100, 10, 1]
    assert long_tail(500, 5, 16.0).tolist() == [500, 250, 125, 62, 31]
    assert long_tail(10, 1, 100.0).tolist() == [10]
    assert long_tail(3, 4, 100.0).tolist() == [3, 1, 1, 1]  # no class disappears
    source = limit_training(toy(3), DataConfig(imbalance=9.0))
    assert torch.bincount(source.train.labels).tolist() == [10, 3, 1]
    assert places(source.train, 1) == [0, 1, 2]
    assert torch.bincount(source.test.labels).tolist() == [10, 10, 10]  # the test set stays balanced
    capped = limit_training(toy(3), DataConfig(imbalance=4.0, max_per_class=8))
    assert torch.bincount(capped.train.labels).tolist() == [8, 4, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pycil.txt", "[2, 0, 1]"),
        ("pycil.log", "[2,\n 0, 1]\n"),
        ("facil.txt", "2 0 1\n"),
        ("plain.txt", "2, 0,\n1\n"),
        ("lines.txt", "# mine\n2\n0\n1\n"),
        ("continuum.yaml", "class_order:\n- 2\n- 0\n- 1\nincrement: 1\n"),
        ("order.json", '{"class_order": [2, 0, 1]}'),
    ],
)
def test_orders_of_other_frameworks(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [int(item) for item in read_order(str(tmp_path / name))] == [2, 0, 1]


def test_an_order_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("increment: 2\n", encoding="utf-8")
    with pytest.raises(UserError, match="or have one as class_order"):
        read_order(str(tmp_path / "x.yaml"))


def test_earlier_tasks_get_one_class_more_where_a_split_is_not_even() -> None:
    assert split_classes(11, ScenarioConfig(tasks=3)) == (4, 4, 3)
    assert split_classes(11, ScenarioConfig(tasks=3, first_task_classes=4)) == (4, 4, 3)
    assert split_classes(10, ScenarioConfig(tasks=4)) == (3, 3, 2, 2)


def test_few_shot_tasks_have_the_first_images_of_each_class() -> None:
    """Six classes of ten images, in the order f … a: three in task 0 with all images, then three with four each."""
    config = ScenarioConfig(tasks=4, first_task_classes=3, shots=4, order=tuple(range(5, -1, -1)))
    scenario = build_scenario(toy(), config, 0)
    assert [scenario.task_info(task).images for task in range(4)] == [30, 4, 4, 4]
    for task, label in ((1, 2), (2, 1), (3, 0)):
        members, labels = scenario.members(scenario.source.train, task, task)
        taken = scenario.source.train.take(members)
        assert taken.labels.tolist() == [label] * 4
        assert sorted(taken.images[:, 0, 0, 0].tolist()) == [0, 1, 2, 3]  # type: ignore[index]
        assert labels.tolist() == [2 + task] * 4
        assert len(scenario.members(scenario.source.test, task, task)[0]) == 10, "all test images"
    assert "task 1: 1 classes (c), 4 training and 10 test images" in str(scenario)


@pytest.mark.parametrize(
    ("recipe", "classes"),
    [
        ("cifar100-16px-fscil", [60] + [5] * 8),
        ("cifar100-16px-longtail", [10] * 10),
        ("cifar100-16px-returning", [10] * 10),
        ("cifar100-16px-domains", [100, 0, 0, 0, 0]),
    ],
)
def test_recipes_of_scenarios(recipe: str, classes: list[int]) -> None:
    """On images of one pixel with CIFAR-100's classes and counts."""
    each = 50 if recipe.endswith("domains") else 500
    labels = torch.arange(100).repeat_interleave(each)
    blank = ImageSet(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    names = tuple(f"class {number}" for number in range(100))
    source = Source("toy", names, blank, blank, (0.5,), (0.5,), published_order=cifar100_order())
    config = load_config(recipe, method="ncm")
    scenario = build_scenario(limit_training(source, config.data), config.scenario, 0)
    assert list(scenario.task_sizes) == classes
    per_class = torch.bincount(scenario.source.train.labels)
    if recipe.endswith("fscil"):
        assert per_class[list(scenario.order[:60])].unique().tolist() == [500]
        assert per_class[list(scenario.order[60:])].unique().tolist() == [5]
    elif recipe.endswith("returning"):
        assert scenario.task_info(0).images < 5000 < scenario.task_info(9).images
        assert len(scenario.returning(9)) == 45
    elif recipe.endswith("domains"):
        assert [scenario.task_info(task).images for task in range(5)] == [1000] * 5
    else:
        assert (int(per_class[0]), int(per_class[99])) == (500, 5)
        assert bool((per_class.diff() <= 0).all())


def test_returning_classes_bring_other_images() -> None:
    """Six classes of ten images in three tasks; all four classes before the last task return."""
    scenario = build_scenario(toy(), ScenarioConfig(tasks=3, returning=1.0, order="natural"), 0)
    seen: list[int] = []
    for task, counts in enumerate([[5, 5], [3, 3, 5, 5], [2, 2, 5, 5, 10, 10]]):
        members, labels = scenario.members(scenario.source.train, task, task)
        assert torch.bincount(labels).tolist() == counts
        assert scenario.task_info(task).new == 2
        assert scenario.returning(task) == tuple(range(2 * task))
        seen += members.tolist()
        assert len(scenario.members(scenario.source.test, task, task)[0]) == 20, "test images come with the class"
    assert sorted(seen) == list(range(60)), "every image once"
    own, _ = scenario.members(scenario.source.train, 0, 0)
    assert sorted(scenario.source.train.take(own).images[:, 0, 0, 0].tolist()) == sorted([0, 1, 2, 3, 4] * 2)  # type: ignore[index]
    assert "task 2: 2 classes (e, f) and 4 returning, 34 training and 20 test images" in str(scenario)


def test_the_share_of_returning_classes_and_the_draw() -> None:
    def again(seed: int) -> tuple[int, ...]:
        return build_scenario(toy(), ScenarioConfig(tasks=3, returning=0.5, order="natural"), seed).returning(2)

    assert len(again(0)) == 2
    assert again(0) == again(0)
    assert len({again(seed) for seed in range(8)}) > 1


def pictured() -> Source:
    """Images of 4 × 4 pixels."""
    images = torch.randint(0, 256, (12, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    part = ImageSet(images, torch.arange(12) % 2)
    return Source("toy", ("a", "b"), part, part, (0.5,), (0.5,))


def test_domains_have_all_classes_and_images_of_their_own() -> None:
    source = pictured()
    config = ScenarioConfig(domains=("original", "invert", "grey"), order="natural")
    scenario = build_scenario(source, config, 0)
    assert (len(scenario), [scenario.task_info(task).seen for task in range(3)]) == (3, [2, 2, 2])
    pixels = source.train.images
    assert isinstance(pixels, torch.Tensor)
    seen: list[int] = []
    for task, look in enumerate((lambda x: x, lambda x: 255 - x, lambda x: grey(x).expand_as(x).to(torch.uint8))):
        members, labels = scenario.members(scenario.source.train, task, task)
        assert torch.bincount(labels).tolist() == [2, 2]
        assert torch.equal(scenario.source.train.take(members).images, look(pixels[members]))  # type: ignore[arg-type]
        seen += members.tolist()
        tested, _ = scenario.members(scenario.source.test, task, task)
        assert torch.equal(scenario.source.test.take(tested).images, look(pixels)), "all test images in this look"  # type: ignore[arg-type]
    assert sorted(seen) == list(range(12))
    assert "task 1: all classes, invert, 4 training and 12 test images" in str(scenario)


def test_images_decoded_on_demand_are_shifted_alike() -> None:
    source = pictured()
    pixels = source.train.images
    assert isinstance(pixels, torch.Tensor)
    pictures = Pictures(tuple(Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels))
    lazy = ImageSet(LazyImages(pictures, 4, central_share=1.0), source.train.labels)
    names: tuple[Domain, ...] = ("night", "fog", "blur")
    of_image = torch.arange(12) % 3
    chosen = torch.tensor([7, 2, 2, 5])
    shifted = lazy.in_domains(of_image, names)
    assert shifted.identity() != lazy.identity()
    (found,) = shifted.take(chosen).stream([torch.arange(4)])
    assert torch.equal(found, source.train.in_domains(of_image, names).images[chosen])  # type: ignore[index]
    assert all(not torch.equal(found[i], pixels[n]) for i, n in enumerate(chosen.tolist()))


def test_every_domain_has_a_shift() -> None:
    assert tuple(SHIFTS) == get_args(Domain)


def test_domains_need_images_and_all_classes() -> None:
    vectors = ImageSet(torch.zeros(4, 3), torch.arange(4) % 2)
    source = Source("toy", ("a", "b"), vectors, vectors, (), ())
    with pytest.raises(UserError, match="these are vectors"):
        build_scenario(source, ScenarioConfig(domains=("original", "night")), 0)
    with pytest.raises(ValueError, match="shots must not be set"):
        ScenarioConfig(domains=("original", "night"), shots=5)
