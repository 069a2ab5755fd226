"""Write the generated parts of the documentation.

python tools/update_docs.py                  README.md and every page in docs/
python tools/update_docs.py performance.md   one page
python tools/update_docs.py --figures        also the figures in docs/img that are drawn from results

`pages.py` renders recorded results. This module renders what comes from the code: equations, settings, methods, events.
"""

import argparse
import ast
import json
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pages
import yaml
from pages import ROOT, filled, table
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

PLACE = re.compile(r"(Eq\. \d+|Theorem \d+|Thm \d+|Alg\. \d+|Sec\. \d+(?:\.\d+)?)")


def paper_map() -> str:
    """A row for every function or class whose docstring names a place in a paper."""
    rows = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for name, node in definitions(tree):
            text = ast.get_docstring(node) or ""
            places = list(dict.fromkeys(PLACE.findall(text)))
            if places:
                rows.append((f"{module}.{name}", ", ".join(places), first_sentence(text)))
    lines = [
        "# From equation to function",
        "",
        "Generated from docstrings by `python tools/update_docs.py`.",
        "",
        "| function | place | what |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {places} | {what} |" for name, places, what in sorted(rows)]
    return "\n".join(lines) + "\n"


def definitions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Functions, classes and their methods, with dotted names."""
    found: list[tuple[str, ast.FunctionDef | ast.ClassDef]] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append((node.name, node))
        if isinstance(node, ast.ClassDef):
            found += [(f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef)]
    return found


def method_table() -> str:
    """A row for every method: its paper, what it trains, what it keeps."""
    from gatf.methods import METHODS

    lines = ["| method | paper | trains | keeps for each class | bytes per class |", "|---|---|---|---|---:|"]
    for name, method in METHODS.items():
        kept = memory(name)
        lines.append(f"| `{name}` | {method.card.citation()} | {method.card.trains} | {method.card.keeps} | {kept} |")
    return "\n".join(lines) + "\n"


def memory(name: str) -> str:
    """Bytes that a method keeps for each class, for the features of ResNet-18."""
    from gatf.cli.catalogue import bytes_kept
    from gatf.methods import METHODS

    kept = f"{bytes_kept(name, pooled=512, bottleneck=64):,}"
    return kept if METHODS[name].exemplar_free else f"{kept} and the images"


def which_table() -> str:
    """A row for every method: when to choose it, and what it reached and took in the tables of this repository."""
    from gatf.methods import METHODS

    stored = [{row["row"]: row for row in pages.read(pages.RESULTS / bench, "table")} for bench in ("digits", "glyphs")]
    birds = {row["row"]: row for row in pages.aggregate(each.run.result for each in pages.collected(pages.PHOTOS))
             if row["setting"] == pages.PHOTOS}  # fmt: skip
    benches = [*stored, pages.aggregated(pages.MAIN), birds]
    rows = []
    for name in (name for name in METHODS if name in stored[0]):  # gatf-release has no results
        accuracies = [pages.fixed(bench.get(name, {}).get("a_last")) for bench in benches]
        seconds = stored[1].get(name, {}).get("total_seconds")
        minutes = pages.fixed(None if seconds is None else seconds / 60)
        rows.append([f"`{name}`", METHODS[name].card.when, *accuracies, minutes, memory(name)])
    head = ["method", "choose it", "digits", "characters", "CIFAR-100", "birds", "minutes", "bytes per class"]
    return table(head, rows, left=2)


def first_sentence(text: str) -> str:
    return in_cell(text.split("\n\n")[0])


def in_cell(text: str) -> str:
    """A text as a table's cell: one line, in which a bar is no border."""
    return " ".join(text.split()).replace("|", "\\|")


# docs/settings.md

SETTINGS = """\
# Settings

Every setting of a run, with its type and default. Generated from the config models by `python tools/update_docs.py`.

A path such as `data.image_size` is what `--set` takes on the command line and what `overrides` and `settings` take in
Python. Recipes and a run's `config.yaml` hold the same names as nested sections. Values are YAML: `null`, `true`, or
`[a, b]` for a list. The [quickstart](quickstart.md#settings) says what wins when several places set the same thing.
"""
WORDS: dict[Any, str] = {str: "text", bool: "`true` or `false`", type(None): "`null`"}
UNTOLD = ("method.name", "method.base.name")
"""Paths that the text before a table explains."""
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def settings_page() -> str:
    """Every setting of a run, of every method and of a bench recipe."""
    from gatf.bench.plan import BenchRecipe, Row
    from gatf.config import RunConfig
    from gatf.methods import METHODS

    parts = [SETTINGS, "## The run itself", settings_table(RunConfig)]
    described: dict[type[BaseModel], str] = {}
    for path, section in sections(RunConfig):
        model = type(section)
        values = {name: getattr(section, name) for name in model.model_fields}
        parts += [f"## `{path}`", model.__doc__ or ""]
        if model in described:
            parts.append(f"The same settings as in `{described[model]}`, with another default for")
            values = {name: value for name, value in values.items() if value != default(model.model_fields[name])}
        parts.append(settings_table(model, f"{path}.", values))
        described.setdefault(model, path)
    parts += ["## `method`", "`method.name` chooses the method, and the method the other settings of the section."]
    for name, method in METHODS.items():
        parts += [f"### `{name}`", f"{method.card.summary[0].upper()}{method.card.summary[1:]}."]
        parts.append(settings_table(method.Config, "method.") or "It has no settings of its own.")
        parts += choices(method.Config)
        if method.defaults:
            parts += ["Its own defaults in other sections:", as_yaml(method.defaults)]
        for preset, changes in method.Config.presets.items():
            parts += [f"What `method.preset={preset}` changes:", as_yaml(changes)]
    parts += ["## Bench recipes", "The keys of a [bench recipe](benches.md):", settings_table(BenchRecipe)]
    parts += ["An entry of `methods` is the name of a method, or a mapping with these keys:", settings_table(Row)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Dotted path and default of every section in a model, but for `method`, which has no default."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield prefix + name, field.default
            yield from sections(type(field.default), f"{prefix}{name}.")


def settings_table(model: type[BaseModel], prefix: str = "", values: dict[str, Any] | None = None) -> str:
    """A row for every field that is no section, with its own default; or for those in `values`, with that default."""
    from gatf.settings import descriptions

    told = descriptions(model)
    lines = ["| setting | type | default | what |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        path = prefix + name
        if is_section(field.annotation) or path in UNTOLD or (values is not None and name not in values):
            continue
        if name not in told:
            raise SystemExit(f"{path} of {model.__name__} has no description: write one under the field")
        value = default(field) if values is None else values[name]
        shown = "required" if value is PydanticUndefined else f"`{as_text(value)}`"
        lines.append(f"| `{path}` | {kind(field.annotation, field.metadata)} | {shown} | {in_cell(told[name])} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def choices(config: type[BaseModel]) -> list[str]:
    """The settings of each section that a field may hold, where it may hold one of several (`method.base`)."""
    parts = []
    for name, field in config.model_fields.items():
        for model in get_args(field.annotation):
            if is_section(model):
                chosen = model.model_fields["name"].default
                parts += [f"With `method.{name}.name={chosen}`:", settings_table(model, f"method.{name}.")]
    return parts


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def as_text(value: Any) -> str:
    """As one would write it after `--set`."""
    if isinstance(value, BaseModel):
        return str(value.model_dump()["name"])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_yaml(values: dict[str, Any]) -> str:
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    return f"```yaml\n{text}```"


def kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in words: `int > 0 or null`, `list of text`, `steps, dips or cosine`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0], [each for one in inner[1:] for each in getattr(one, "metadata", [one])])
    if origin in (Union, types.UnionType):
        if all(map(is_section, inner)):
            return (
                "mapping with " + kind(Literal[tuple(one.model_fields["name"].default for one in inner)]) + " as `name`"
            )
        return " or ".join(kind(one) for one in inner)
    if origin is Literal:
        *others, last = (f"`{one}`" for one in inner)
        return " or ".join([*([", ".join(others)] if others else []), last])
    if origin is list:
        each = kind(inner[0])
        return f"list of {f'({each})' if ' or ' in each else each.replace('list of', 'lists of', 1)}"
    if origin is tuple:
        each = kind(inner[0])
        number = "" if inner[-1] is Ellipsis else f"{len(inner)} × "
        return f"list of {number}{f'({each})' if ' or ' in each else each}"
    if origin is dict or is_section(annotation):
        return "mapping"
    limits = [(sign, getattr(one, name, None)) for one in metadata for name, sign in BOUNDS.items()]
    shown = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    return f"{WORDS.get(annotation, annotation.__name__)} {shown}".strip()


# parts of docs/formats.md


def event_sections() -> str:
    """A section for every kind of event, with its fields."""
    from gatf.io.events import KINDS

    parts = []
    for name, event in KINDS.items():
        parts += [f"### {name}", " ".join((event.__doc__ or "").split()), fields_table(event)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def summary_table() -> str:
    """The fields of a run's summary."""
    from gatf.io.run_folder import DERIVED, Summary

    properties = [getattr(Summary, name) for name in DERIVED]
    rows = [
        f"| `{name}` | {kind(found.fget.__annotations__['return'])} | {in_cell(found.__doc__)} |"
        for name, found in zip(DERIVED, properties, strict=True)
    ]
    return "\n".join([fields_table(Summary), *rows]) + "\n"


def fields_table(described: type[Any]) -> str:
    """A row for every field of a dataclass, those of its bases first, with the docstring below it."""
    rows: dict[str, str] = {}
    for base in reversed(described.__mro__):
        told = TypeAdapter(base).json_schema().get("properties", {}) if is_dataclass(base) else {}
        for field in fields(base) if is_dataclass(base) else ():
            text = told[field.name].get("description")
            if field.name not in rows and text is None:
                raise SystemExit(f"{field.name} of {base.__name__} has no description: write one under the field")
            rows.setdefault(field.name, f"| `{field.name}` | {kind(field.type)} | {in_cell(text or '')} |")
    return "\n".join(["| field | type | what |", "|---|---|---|", *rows.values()])


PAGES = {"paper-map.md": paper_map, "settings.md": settings_page}
"""Pages that are generated whole."""
PARTS: dict[str, pages.Part] = {
    **pages.PARTS,
    "methods": method_table,
    "which": which_table,
    "events": event_sections,
    "summary": summary_table,
}
"""Parts of pages, between markers of that name."""


def rendered(path: Path) -> str:
    """A page as it should be."""
    return PAGES[path.name]() if path.name in PAGES else filled(path.read_text(encoding="utf-8"), PARTS)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(names: Iterable[str] = ()) -> None:
    """Write the named pages, or all of them."""
    unknown = set(names) - {path.name for path in documents()}
    if unknown:
        raise SystemExit(f"no page is called {', '.join(sorted(unknown))}")
    for path in documents():
        if not names or path.name in names:
            path.write_text(rendered(path), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAGE")
    parser.add_argument("--figures", action="store_true")
    asked = parser.parse_args()
    if asked.figures:
        import figures

        figures.main()
    main(asked.names)
