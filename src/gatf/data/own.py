"""People's own images: class folders, parquet files, NumPy archives."""

from dataclasses import dataclass
from pathlib import Path

from gatf.data.base import Card, Source, SourceEntry
from gatf.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD
from gatf.data.build import Traits, build_source
from gatf.data.cards import listing_card
from gatf.data.layouts.folder import has_class_folders, read_folder
from gatf.data.layouts.npz import has_npz, read_npz
from gatf.data.layouts.parquet import has_parquet, read_parquet
from gatf.data.listing import Listing
from gatf.data.places import Layout, find_layout, problem_of
from gatf.errors import UserError
from gatf.settings import DataConfig

TRAITS = Traits(IMAGENET_MEAN, IMAGENET_STD)
"""Normalised as ImageNet is; grey images by the mean of its three channels."""


@dataclass(frozen=True)
class Own:
    """A kind of files that anyone's data can lie in."""

    summary: str
    layout: Layout
    settings: tuple[str, ...] = ()

    def open(self, config: DataConfig) -> Source:
        return build_source(config.name, self.listing(config), config, TRAITS)

    def listing(self, config: DataConfig) -> Listing:
        if config.root is None:
            raise UserError(f"'{config.name}' is your own data: name {self.layout.name} with --data-root")
        found = find_layout(config, (self.layout,))
        if found is None:
            where = "is not there" if not Path(config.root).expanduser().exists() else f"is not {self.layout.name}"
            raise UserError(f"{config.root} {where}; give '{config.name}' such a place with --data-root")
        return self.layout.read(found[0], config)

    def missing(self, config: DataConfig) -> str | None:
        return problem_of(self.listing, config)

    def card(self, config: DataConfig) -> Card:
        return listing_card(config, (self.layout,), TRAITS, self.listing)

    def entry(self) -> SourceEntry:
        settings = frozenset({"image_size", "test_fraction", *self.settings})
        return SourceEntry(
            self.summary, "yours to know", "your files", self.open, self.missing, self.card, settings=settings
        )


OWN: dict[str, Own] = {
    "folder": Own(
        "your images, one folder per class: train/ and test/, or class folders of which a share is for testing",
        Layout("a folder with train/<class> and test/<class>, or <class> folders", has_class_folders, read_folder),
        ("class_list",),
    ),
    "parquet": Own(
        "your parquet files with the hub's columns (image, label)",
        Layout("a folder with train*.parquet and test*.parquet, or one parquet file", has_parquet, read_parquet),
        ("label_column",),
    ),
    "npz": Own(
        "your NumPy archive of uint8 images and labels",
        Layout("an .npz file with x_train, y_train and perhaps x_test, y_test", has_npz, read_npz),
    ),
}
