"""What `gatf data show` says of a source."""

from collections.abc import Callable, Sequence

from gatf.data.base import Card, Source
from gatf.data.build import Traits, check_counts, image_size
from gatf.data.listing import Listing
from gatf.data.places import Layout, base_folder, find_layout
from gatf.errors import UserError
from gatf.settings import DataConfig


def listing_card(
    config: DataConfig, layouts: Sequence[Layout], traits: Traits, read: Callable[[DataConfig], Listing]
) -> Card:
    """Facts of files on disk: counted, not decoded. What is known beforehand where they are not there or are not those
    of the data set."""
    found = find_layout(config, layouts)
    expected = [("classes", f"{traits.classes} expected")] if traits.classes else []
    if found is None:
        return [*expected, ("looked in", f"{base_folder(config) / config.name} and {base_folder(config)}")]
    place, layout = found
    where = ("found in", f"{place} ({layout.name})")
    try:
        listing = read(config)
    except UserError:  # told as what is missing
        return [*expected, where]
    size = image_size(listing, config, traits)
    labels = [listing.train.labels, listing.test.labels]
    off = [*listing.warnings, *check_counts(config.name, listing.class_names, labels, traits)]
    return [
        *_counts(len(listing.class_names), len(listing.train), len(listing.test)),
        ("size", f"{size}×{size}"),
        where,
        ("checks", "; ".join(off) or "counts by class are as they should be"),
    ]


def source_facts(source: Source) -> Card:
    """Facts of a source that is quickly opened."""
    channels, height, width = source.image_shape
    return [
        *_counts(source.classes, len(source.train), len(source.test)),
        ("size", f"{height}×{width} {'grey' if channels == 1 else 'colour'}"),
        *[("note", warning) for warning in source.warnings],
    ]


def _counts(classes: int, train: int, test: int) -> Card:
    return [("classes", str(classes)), ("images", f"{train} for training, {test} for testing")]
