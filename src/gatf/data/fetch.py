"""Downloads from the Hugging Face hub, kept as one parquet file per part with the hub's columns."""

from pathlib import Path
from typing import Any

from gatf.data.base import OnProgress
from gatf.data.listing import fetch_folder
from gatf.errors import UserError, extra
from gatf.io.files import new_file
from gatf.settings import DataConfig

ROWS = 1000
"""Rows written at a time."""


def fetch_from_hub(config: DataConfig, hub_id: str, on_progress: OnProgress) -> str:
    """Load a data set by its hub id (or a local folder of the same layout) and write every part by rename."""
    datasets = extra("datasets")
    folder = fetch_folder(config)
    try:
        parts = datasets.load_dataset(hub_id)
    except (OSError, ValueError) as error:  # the library's own errors, and those of the network, derive from these
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"'{hub_id}' could not be fetched from the Hugging Face hub ({reason})") from None
    try:
        for name, part in parts.items():
            _write(part, str(name), folder, datasets, on_progress)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}); choose another --data-root") from None
    return str(folder)


def _write(part: Any, name: str, folder: Path, datasets: Any, on_progress: OnProgress) -> None:
    """One part as <folder>/<name>.parquet; encoded images are copied unchanged."""
    parquet = extra("pyarrow.parquet")
    for column, feature in part.features.items():
        if isinstance(feature, datasets.Image):
            part = part.cast_column(column, datasets.Image(decode=False))
    total = len(part)
    rows = part.with_format("arrow")
    schema = part.features.arrow_schema
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / f"{name}.parquet") as partial, parquet.ParquetWriter(partial, schema) as writer:
        for start in range(0, total, ROWS):
            writer.write_table(rows[start : start + ROWS].cast(schema))
            on_progress(f"{folder.name}, {name} images", min(start + ROWS, total), total)
