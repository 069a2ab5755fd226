"""Files that appear whole or not at all."""

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then rename."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
