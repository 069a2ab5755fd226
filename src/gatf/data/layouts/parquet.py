"""Parquet files with the columns of the Hugging Face hub: an image as {bytes, path} and a label."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gatf.data.encoded import ParquetRows, readable_parquet
from gatf.data.listing import Listing, Part, listing_of, some
from gatf.errors import UserError, extra, near_misses
from gatf.settings import DataConfig

TEST_NAMES = ("test", "validation", "valid", "val")
LABEL_COLUMNS = ("fine_label", "label")


def find_parquet(folder: Path, *, deep: bool = True) -> dict[str, tuple[Path, ...]]:
    """Files by part: `train…` and `test…` (or validation) in their name or their folder's.

    They lie in the folder itself or in its `data/`; with `deep`, else in one other folder inside it. The first of these
    that has training images counts, so that files of two data sets are never taken for one.
    """
    if folder.is_file():
        return {"train": (folder,)} if folder.suffix == ".parquet" else {}
    for place in (folder, folder / "data"):
        if found := _parts_in(place):
            return found
    inside = {place.name: _parts_in(place) for place in sorted(folder.glob("*/"))} if deep else {}
    several = [name for name, found in inside.items() if found]
    if len(several) > 1:
        raise UserError(f"{folder} has parquet files in several folders ({some(several)}); name one with --data-root")
    return inside[several[0]] if several else {}


def _parts_in(place: Path) -> dict[str, tuple[Path, ...]]:
    """Files in this folder, and in folders that are called train… or test…; nothing without a training part."""
    parts: dict[str, list[Path]] = {}
    for path in sorted((*place.glob("*.parquet"), *place.glob("*/*.parquet"))):
        words = path.relative_to(place).parts
        name = next((name for name in ("train", *TEST_NAMES) if words[0].startswith(name)), None)
        if name is not None:
            parts.setdefault(name, []).append(path)
    test = next((parts[name] for name in TEST_NAMES if name in parts), None)
    chosen = {"train": parts.get("train"), "test": test}
    return {name: tuple(files) for name, files in chosen.items() if files} if "train" in parts else {}


def has_both_parts(folder: Path) -> bool:
    return len(find_parquet(folder)) == 2


def has_both_parts_here(folder: Path) -> bool:
    """In the folder itself or its `data/`: not in a folder below it that may be another data set's."""
    return len(find_parquet(folder, deep=False)) == 2


def read_parquet(folder: Path, config: DataConfig) -> Listing:
    """Names come from the hub's class labels where the files have them, else they are the labels themselves."""
    extra("pyarrow")
    files = find_parquet(folder)
    schema = _schema(files["train"][0])
    image, label = _image_column(schema, files["train"][0]), _label_column(schema, config, files["train"][0])
    names = _hub_names(schema, label, files["train"][0])
    parts = [_labels(part, label, names) for part in files.values()]
    known = parts[0][1]
    if any(part_names != known for _, part_names in parts):
        known = tuple(sorted({name for _, part_names in parts for name in part_names or ()}))
        parts = [_labels(part, label, known) for part in files.values()]
    rows = [
        Part(ParquetRows.whole(part, image), labels) for part, (labels, _) in zip(files.values(), parts, strict=True)
    ]
    return listing_of(rows, known, config.test_fraction, folder)


def _schema(file: Path) -> Any:
    from pyarrow import parquet

    with readable_parquet(file):
        return parquet.read_schema(file)


def _image_column(schema: Any, file: Path) -> str:
    from pyarrow import types

    for field in schema:
        if types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
        if types.is_binary(field.type) or types.is_large_binary(field.type):
            return str(field.name)
    raise UserError(f"{file} has no column of encoded images; its columns are {some(schema.names)}")


def _label_column(schema: Any, config: DataConfig, file: Path) -> str:
    if config.label_column is not None:
        if config.label_column not in schema.names:
            hint = near_misses(config.label_column, schema.names)
            raise UserError(f"{file} has no column '{config.label_column}' (data.label_column){hint}")
        return config.label_column
    for name in LABEL_COLUMNS:
        if name in schema.names:
            return name
    raise UserError(
        f"{file} has no column 'label'; name the column of the labels with data.label_column, "
        f"one of {some(schema.names)}"
    )


def _hub_names(schema: Any, column: str, file: Path) -> tuple[str, ...] | None:
    """Class names that `datasets` wrote into the schema's metadata."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])
        names = info["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file} has class names that are no text, for column '{column}'; get it again")
    return tuple(names)


def _labels(
    files: Sequence[Path], column: str, names: tuple[str, ...] | None
) -> tuple[torch.Tensor, tuple[str, ...] | None]:
    """Class numbers of one part, and the names they stand for: labels that are text are numbered in sorted order."""
    import pyarrow as pa
    from pyarrow import parquet, types

    tables = []
    for file in files:
        with readable_parquet(file):
            tables.append(parquet.read_table(file, columns=[column]))
    with readable_parquet(files[0]):
        values = pa.concat_tables(tables).column(0)
    if values.null_count:
        raise UserError(f"{files[0]} has {values.null_count} rows without a value in '{column}'; remove them")
    if types.is_string(values.type) or types.is_large_string(values.type):
        words = values.to_pylist()
        names = names or tuple(sorted(set(words)))
        number = {name: place for place, name in enumerate(names)}
        for word in words:
            if word not in number:
                problem = f"has {word[:80]!r}, which is none of its {len(names)} class names"
                raise UserError(f"column '{column}' of {files[0]} {problem}")
        return torch.tensor([number[word] for word in words]), names
    if not types.is_integer(values.type):
        raise UserError(f"column '{column}' of {files[0]} holds {values.type}, not class numbers or names")
    numbers = torch.from_numpy(values.to_numpy().astype("int64"))
    if names is not None and len(numbers) and int(numbers.max()) >= len(names):
        raise UserError(f"column '{column}' of {files[0]} has label {int(numbers.max())}, but {len(names)} class names")
    return numbers, names
