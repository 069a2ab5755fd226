"""The four published benchmarks: origin, file layouts and expected contents."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from gatf.data.base import Card, OnProgress
from gatf.data.build import FileSource, Traits
from gatf.data.fetch import fetch_from_hub
from gatf.data.layouts import imagenet100, originals
from gatf.data.layouts.parquet import has_both_parts, has_both_parts_here, read_parquet
from gatf.data.listing import Layout, Listing, find_layout, not_found
from gatf.data.published import IMAGENET100, cifar100_order
from gatf.errors import UserError
from gatf.settings import DataConfig

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SETTINGS = frozenset({"hub", "image_size", "label_column"})
PARQUET = Layout("parquet files with the hub's columns", has_both_parts, read_parquet, has_both_parts_here)


@dataclass(frozen=True)
class Benchmark(FileSource):
    """One published data set; its last layout is its authors' own."""

    hub: str | None = None
    hub_list: str | None = None
    """The class list (`data.class_list`) of the copy on the hub, if there are several lists."""
    first_class: str | None = None
    """A pattern for the first class's name in lower case without punctuation. None: the layouts check the classes."""

    def listing(self, config: DataConfig) -> Listing:
        """A `UserError` also if the files belong to another data set."""
        found = find_layout(config, self.layouts)
        if found is None:
            raise UserError(not_found(config, self.layouts, self._get(config)))
        place, layout = found
        listing = layout.read(place, config)
        refuse_other_classes(config.name, self, place, listing.class_names)
        return listing

    def _get(self, config: DataConfig) -> str | None:
        """The download command; empty if there is none, None for the default command."""
        if self.hub_list is not None:
            known = config.class_list == self.hub_list
            return f"gatf data get {config.name} --set data.class_list={self.hub_list}" if known else ""
        return None if self.hub or config.hub else f"gatf data get {config.name} --hub <hub id>"

    def fetch(self, config: DataConfig, on_progress: OnProgress) -> str:
        hub, original = config.hub or self.hub, self.layouts[-1].name
        if hub is None:
            raise UserError(
                f"'{config.name}' has no fixed place on the hub: name one with --hub (data.hub), or point --data-root "
                f"at {original}"
            )
        if config.hub is None and self.hub_list is not None and config.class_list != self.hub_list:
            raise UserError(
                f"the hub's {hub} holds {IMAGENET100[self.hub_list]} classes, not those of "
                f"{imagenet100.list_title(config)}: get and run it with --set data.class_list={self.hub_list}, or "
                f"point --data-root at {original}"
            )
        return fetch_from_hub(config, hub, on_progress)

    def card(self, config: DataConfig) -> Card:
        chosen = [("class list", imagenet100.list_title(config))] if self.hub_list is not None else []
        return [*chosen, *super().card(config)]


def refuse_other_classes(name: str, benchmark: Benchmark, place: Path, class_names: tuple[str, ...]) -> None:
    """Raise a `UserError` if the files contain another data set: its results would be meaningless under this name."""
    if benchmark.first_class is None:
        return
    elsewhere = (
        f"; name a folder that holds {name} with --data-root or GATF_DATA, or use data.name=parquet or folder for "
        "images of your own"
    )
    if len(class_names) != benchmark.traits.classes:
        raise UserError(
            f"{place} holds {len(class_names)} classes, but {name} has {benchmark.traits.classes}{elsewhere}"
        )
    first = " ".join(re.findall(r"[a-z0-9]+", class_names[0].lower()))
    if not first.isdecimal() and not re.fullmatch(benchmark.first_class, first):  # numbers: the files have no names
        raise UserError(f"{place} holds other classes than {name}: its first is '{class_names[0]}'{elsewhere}")


BENCHMARKS: dict[str, Benchmark] = {
    "cifar100": Benchmark(
        "100 classes, 32×32 colour, 50 000 training and 10 000 test images",
        "no licence is stated; cite Krizhevsky, 2009",
        "hub uoft-cs/cifar100, or the folder cifar-100-python",
        SETTINGS,
        (PARQUET, Layout("the folder cifar-100-python", originals.cifar_folder, originals.read_cifar_pickles)),
        Traits(
            (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), size=32, classes=100,
            train_per_class=(500, 500), test_per_class=(100, 100), published_order=cifar100_order(),
        ),
        hub="uoft-cs/cifar100",
        first_class="apple",
    ),
    "tinyimagenet": Benchmark(
        "200 classes, 64×64 colour, 100 000 training and 10 000 test (its validation) images",
        "ImageNet's terms: non-commercial research and education",
        "hub zh-plus/tiny-imagenet, or the folder tiny-imagenet-200",
        SETTINGS,
        (PARQUET, Layout("the folder tiny-imagenet-200", originals.tiny_folder, originals.read_tiny)),
        Traits(
            IMAGENET_MEAN, IMAGENET_STD, size=64, classes=200, train_per_class=(500, 500), test_per_class=(50, 50),
        ),
        hub="zh-plus/tiny-imagenet",
        first_class="n01443537|goldfish.*",
    ),
    "imagenet100": Benchmark(
        "100 classes of ImageNet at 224×224, about 126 000 training and 5 000 test (validation) images",
        "ImageNet's terms: non-commercial research and education",
        "hub clane9/imagenet-100 (CMC's classes, data.class_list=cmc), or an ImageNet folder with train/<wnid> and "
        "val/<wnid>",
        SETTINGS | {"class_list"},
        (
            replace(PARQUET, read=imagenet100.read_imagenet_parquet),
            Layout(
                "an ImageNet folder with train/<wnid> and val/<wnid>", imagenet100.imagenet_folders,
                imagenet100.read_imagenet,
            ),
        ),
        Traits(
            IMAGENET_MEAN, IMAGENET_STD, size=224, classes=100, train_per_class=(732, 1300), test_per_class=(50, 50),
            published_order=tuple(range(100)),
        ),
        hub="clane9/imagenet-100",
        hub_list="cmc",
    ),
    "cub200": Benchmark(
        "200 bird species at 224×224, 5 994 training and 5 794 test images",
        "images belong to their photographers: non-commercial research and education; cite Wah et al., 2011",
        "a hub id you name with data.hub, or the folder CUB_200_2011",
        SETTINGS,
        (PARQUET, Layout("the folder CUB_200_2011", originals.cub_folder, originals.read_cub)),
        Traits(
            IMAGENET_MEAN, IMAGENET_STD, size=224, classes=200, train_per_class=(29, 30), test_per_class=(11, 30),
        ),
        first_class="(0*1 )?black footed albatross",
    ),
}  # fmt: skip
