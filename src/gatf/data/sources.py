"""All data sources by name: users' files, published benchmarks, embedded data. Sources do not know about tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gatf import plugins
from gatf.data.base import Card, ImageSet, OnProgress, Source, SourceEntry, rank_in_class
from gatf.data.benchmarks import BENCHMARKS, IMAGENET_MEAN, IMAGENET_STD
from gatf.data.build import Traits, build_source, listing_card, source_facts
from gatf.data.cache import cache_folder
from gatf.data.digits import load_digits
from gatf.data.glyphs import load_glyphs
from gatf.data.layouts.folder import has_class_folders, read_folder
from gatf.data.layouts.npz import find_npz, read_npz
from gatf.data.layouts.parquet import find_parquet, read_parquet
from gatf.data.listing import Layout, Listing, find_layout, problem_of
from gatf.errors import UserError
from gatf.settings import PYTHON, DataConfig

TRAITS = Traits(IMAGENET_MEAN, IMAGENET_STD)
"""Normalised as ImageNet is; grey images by the mean of its three channels."""


@dataclass(frozen=True)
class Own:
    """A file layout for users' own data."""

    summary: str
    layout: Layout
    settings: tuple[str, ...] = ()

    def open(self, config: DataConfig) -> Source:
        return build_source(config.name, self.listing(config), config, TRAITS)

    def listing(self, config: DataConfig) -> Listing:
        if config.root is None:
            raise UserError(f"'{config.name}' is for your own data: name {self.layout.name} with --data-root")
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
            self.summary, "that of your data", "your files", self.open, self.missing, self.card, settings=settings
        )


OWN: dict[str, Own] = {
    "folder": Own(
        "your images, one folder per class: train/ and test/, or class folders of which a share is for testing",
        Layout("a folder with train/<class> and test/<class>, or <class> folders", has_class_folders, read_folder),
        ("class_list",),
    ),
    "parquet": Own(
        "your parquet files with the hub's columns (image, label)",
        Layout("a folder with train*.parquet and test*.parquet, or one parquet file", find_parquet, read_parquet),
        ("label_column",),
    ),
    "npz": Own(
        "your NumPy archive of uint8 images and labels",
        Layout("an .npz file with x_train, y_train and perhaps x_test, y_test", find_npz, read_npz),
    ),
}


__all__ = [
    "SOURCES", "Card", "ImageSet", "OnProgress", "Source", "SourceEntry", "cache_folder", "fetch_source", "open_source",
    "source_card",
]  # fmt: skip


def _embedded(
    summary: str, licence: str, origin: str, load: Callable[[DataConfig], Source], *settings: str
) -> SourceEntry:
    """A source that needs no files."""
    return SourceEntry(
        summary, licence, origin, load, lambda config: None, lambda config: source_facts(load(config)),
        settings=frozenset(settings),
    )  # fmt: skip


SOURCES: dict[str, SourceEntry] = {
    "digits": _embedded(
        "10 classes, 8×8 grey, 1 797 images inside scikit-learn",
        "CC BY 4.0 (UCI); cite Alpaydin and Kaynak, 1998",
        "inside scikit-learn, no download",
        load_digits,
    ),
    "glyphs": _embedded(
        "100 classes, 32×32 colour, characters rendered from matplotlib's fonts",
        "free to use; the fonts (DejaVu, STIX) have licences of their own",
        "rendered here, no download",
        load_glyphs,
        "glyphs",
    ),
    "cifar100": BENCHMARKS["cifar100"].entry(),
    "tinyimagenet": BENCHMARKS["tinyimagenet"].entry(),
    "imagenet100": BENCHMARKS["imagenet100"].entry(),
    "cub200": BENCHMARKS["cub200"].entry(),
    "folder": OWN["folder"].entry(),
    "parquet": OWN["parquet"].entry(),
    "npz": OWN["npz"].entry(),
}


SPECIAL = frozenset[str]().union(*(entry.settings for entry in SOURCES.values()))
"""Settings that only some sources use."""


def source_entry(name: str) -> SourceEntry:
    """A source by name. A plugin is a function `DataConfig -> Source`, which may use all settings, or a whole entry."""
    if name.startswith(PYTHON):
        raise UserError(
            f"the scenario '{name.removeprefix(PYTHON)}' comes from Python and must be given again, as scenario=…"
        )
    found = plugins.find("data source", name, SOURCES)
    if isinstance(found, SourceEntry):
        return found

    def load(config: DataConfig) -> Source:
        source = plugins.call("data source", name, found, config)
        if not isinstance(source, Source):
            raise UserError(f"data source '{name}' returns {type(source).__name__}, not a gatf.data.base.Source")
        return source

    summary = (found.__doc__ or "no description").strip().splitlines()[0]
    return _embedded(summary, "not stated", "a plugin", load, *SPECIAL)


def open_source(config: DataConfig) -> Source:
    """Open the source of a config and apply its limits and validation split. Never uses the network."""
    entry = source_entry(config.name)
    problem = useless_setting(config, entry)
    if problem:
        raise UserError(problem)
    return limit_training(entry.open(config), config)


def useless_setting(config: DataConfig, entry: SourceEntry) -> str | None:
    """An error sentence for a setting that this source would ignore, else None."""
    for name in sorted(SPECIAL - entry.settings):
        if getattr(config, name) != DataConfig.model_fields[name].default:
            users = ", ".join(source for source, entry in SOURCES.items() if name in entry.settings)
            return f"data.{name} has no meaning for '{config.name}', only for {users}; leave it out"
    return None


def source_card(name: str, config: DataConfig) -> Card:
    """Headings and lines for `gatf data show`; for missing data, how to get it."""
    entry = source_entry(name)
    config = config.model_copy(update={"name": name})
    problem = entry.missing(config)
    return [
        ("name", name),
        ("what", entry.summary),
        *entry.card(config),
        ("cache", str(cache_folder())),
        ("licence", entry.licence),
        ("origin", entry.origin),
        *([("missing", problem)] if problem else []),
    ]


def fetch_source(name: str, config: DataConfig, on_progress: OnProgress) -> str:
    """Download a source for `gatf data get`; returns its folder."""
    entry = source_entry(name)
    if entry.fetch is None:
        raise UserError(f"'{name}' needs no download: {entry.origin}")
    return entry.fetch(config.model_copy(update={"name": name}), on_progress)


def limit_training(source: Source, config: DataConfig) -> Source:
    """Limit the training images of each class, in file order, to the first `max_per_class` and to the long tail, and
    hold out the last `val_fraction`. With `evaluate_on=validation` the held-out images replace the test images."""
    labels = source.train.labels
    counts = torch.bincount(labels, minlength=source.classes)
    kept = counts if config.max_per_class is None else counts.clamp(max=config.max_per_class)
    if config.imbalance is not None:
        kept = torch.minimum(kept, long_tail(int(kept.max()), source.classes, config.imbalance))
    trained = kept - (kept * config.val_fraction).long()
    if torch.equal(trained, counts):
        return source
    rank = rank_in_class(labels, counts)
    train = source.train.take(torch.nonzero(rank < trained[labels]).squeeze(1))
    if config.evaluate_on == "test":
        return source.with_parts(train, source.test)
    held_out = (rank >= trained[labels]) & (rank < kept[labels])
    return source.with_parts(train, source.train.take(torch.nonzero(held_out).squeeze(1)))


def long_tail(largest: int, classes: int, ratio: float) -> Tensor:
    """[classes]: n·ratio^(−c/(C−1)) images for class c, rounded down, at least one; the first class has n, the last
    n/ratio (Cui et al., CVPR 2019, as in long-tailed class-incremental learning, Liu et al., ECCV 2022)."""
    position = torch.arange(classes, dtype=torch.float64) / max(classes - 1, 1)
    return (largest * ratio**-position + 1e-9).floor().clamp(min=1).long()
