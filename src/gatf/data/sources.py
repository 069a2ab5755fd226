"""Where images come from, by name. A source is images, labels and names; it knows nothing of tasks."""

from collections.abc import Callable

from gatf.data.base import Card, ImageSet, Progress, Source, SourceEntry
from gatf.data.benchmarks import BENCHMARKS
from gatf.data.cache import cache_folder
from gatf.data.cards import source_facts
from gatf.data.digits import load_digits
from gatf.data.glyphs import load_glyphs
from gatf.data.own import OWN
from gatf.data.subset import limit_training
from gatf.errors import UserError, near_misses
from gatf.settings import DataConfig

__all__ = [
    "SOURCES", "Card", "ImageSet", "Progress", "Source", "SourceEntry", "cache_folder", "fetch_source", "open_source",
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


def source_entry(name: str) -> SourceEntry:
    if name not in SOURCES:
        raise UserError(f"no data source is called '{name}'{near_misses(name, SOURCES)}")
    return SOURCES[name]


def open_source(config: DataConfig) -> Source:
    """Load the source a config names, capped and held out as it says. Never touches the network."""
    entry = source_entry(config.name)
    problem = useless_setting(config)
    if problem:
        raise UserError(problem)
    return limit_training(entry.open(config), config)


def useless_setting(config: DataConfig) -> str | None:
    """A setting that was given and that this source would silently ignore, as a sentence."""
    special = frozenset[str]().union(*(entry.settings for entry in SOURCES.values()))
    for name in sorted(special - SOURCES[config.name].settings):
        if getattr(config, name) != DataConfig.model_fields[name].default:
            users = ", ".join(source for source, entry in SOURCES.items() if name in entry.settings)
            return f"data.{name} has no meaning for '{config.name}', only for {users}; leave it out"
    return None


def source_card(name: str, config: DataConfig) -> Card:
    """Headings and lines for `gatf data show`; where the data is missing, what there is to do."""
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


def fetch_source(name: str, config: DataConfig, on_progress: Progress) -> str:
    """Download a source for `gatf data get`; returns the folder it is in now."""
    entry = source_entry(name)
    if entry.fetch is None:
        raise UserError(f"'{name}' needs no download: {entry.origin}")
    return entry.fetch(config.model_copy(update={"name": name}), on_progress)
