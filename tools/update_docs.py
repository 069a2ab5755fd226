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
from pages import ROOT, filled, table
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gatf.settings import flat

PLACE = re.compile(r"(Eq\. \d+|Theorem \d+|Thm \d+|Alg\. \d+|Sec\. \d+(?:\.\d+)?)")


def paper_map() -> str:
    """Every function or class whose docstring names a place in a paper."""
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
    ]
    lines += [f"- `{name}` ({places}): {what}" for name, places, what in sorted(rows)]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its first sentence and its options."""
    import typer

    from gatf.cli import app

    lines = [
        "# Commands",
        "",
        "Generated from the commands by `python tools/update_docs.py`. `gatf COMMAND --help` explains every option.",
        "Errors are one sentence; the exit code is then 2.",
        "",
    ]
    pending: list[tuple[str, Any]] = [("gatf", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop(0)
        inside = getattr(command, "commands", {})
        pending = [(f"{name} {each}", found) for each, found in inside.items()] + pending
        if inside:
            continue
        arguments = [
            (each.metavar or each.name.upper()) for each in command.params if each.param_type_name == "argument"
        ]
        options = [
            max(each.opts, key=len) for each in command.params if each.param_type_name == "option" and not each.hidden
        ]
        usage = " ".join([name, *arguments])
        described = f"- `{usage}`: {first_sentence(command.help)}"
        lines.append(described + (f" Options: {', '.join(f'`{each}`' for each in options)}" if options else ""))
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
    """A row for every method: its paper, and what it keeps, in bytes too for the features of ResNet-18."""
    from gatf.cli.catalogue import bytes_kept
    from gatf.methods import METHODS

    rows = []
    for name, method in METHODS.items():
        card = method.card
        paper = f"[{card.venue} {card.year}]({card.url})" if card.authors else "–"
        rows.append([f"`{name}`", paper, card.keeps, f"{bytes_kept(name):,}"])
    return table(["method", "paper", "keeps for each class", "bytes"], rows, left=3)


def operations_table() -> str:
    """Methods by their operations per training step, as tests/accelerator counts them."""
    methods: dict[int, list[str]] = {}
    counts = json.loads((ROOT / "tests/accelerator/operations.json").read_text(encoding="utf-8"))
    for name, count in counts.items():
        methods.setdefault(count, []).append(f"`{name}`")
    return table(["methods", "operations"], [[", ".join(methods[count]), count] for count in sorted(methods)])


def rehearsal_table() -> str:
    """Peak memory of each row and processor time of all, from the output that `benchmarks/rehearsal.py` recorded."""
    memory: dict[str, dict[str, str]] = {}
    minutes: dict[str, float] = {}
    for line in (pages.BENCHMARKS / "rehearsal.txt").read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"(.+?), (.+): .+ per run, peak memory (\S+) GB(, .+)? \(.+, (\d+) CPU-s\)", line)
        assert found is not None, line
        memory.setdefault(found[2], {})[found[1]] = f"≈ {found[3]}" if found[4] else found[3]
        minutes[found[1]] = minutes.get(found[1], 0.0) + int(found[5]) / 60
    body = [[f"`{row}`", *(cells.get(setting, "–") for setting in minutes)] for row, cells in memory.items()]
    body.append(["CPU minutes of the rehearsal", *(f"{spent:.0f}" for spent in minutes.values())])
    return table(["GB at its peak", *(f"`{setting}`" for setting in minutes)], body)


def first_sentence(text: str) -> str:
    """As a table's cell; "Eq. 3" and "Sec. 4.2" do not end it."""
    return re.split(r"(?<!\bEq\.)(?<!\bSec\.)(?<!\bal\.)(?<=\.) (?=[A-Z`])", in_cell(text.split("\n\n")[0]))[0]


def in_cell(text: str) -> str:
    """A text as a table's cell: one line, in which a bar is no border."""
    return " ".join(text.split()).replace("|", "\\|")


# docs/settings.md

SETTINGS = """\
# Settings

Every setting of a run: its path, its default, other possible values, and its meaning. `python tools/update_docs.py`
generates this page from the config models.

Use a path such as `data.image_size` with `--set` on the command line, and in `overrides` or `settings` in Python.
Recipes and a run's `config.yaml` have the same names as nested sections. Values are YAML: `null`, `true`, or `[a, b]`
for a list. The [quickstart](quickstart.md#settings) explains which value is used when several places set the same name.
"""
METHOD_SETTINGS = """\
`method.name` chooses the method. Each method has the settings of its own section below and those of the shared sections
that it names. `{first,next}` stands for two settings, one of each section.
"""
WORDS: dict[Any, str] = {str: "text", bool: "bool", type(None): "`null`"}
EXPLAINED_BEFORE = ("method.name", "method.base.name")
"""Paths that the text before a list explains."""
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def settings_page() -> str:
    """Every setting of a run, of every method and of a bench recipe."""
    from gatf.bench.plan import BenchRecipe, Row
    from gatf.config import RunConfig
    from gatf.methods import METHODS

    parts = [SETTINGS, "## The run itself", setting_list(RunConfig)]
    described: dict[type[BaseModel], str] = {}
    for path, section in sections(RunConfig):
        model = type(section)
        values = {name: getattr(section, name) for name in model.model_fields}
        if all(is_section(field.annotation) for field in model.model_fields.values()):
            continue
        parts += [f"## `{path}`", model.__doc__ or ""]
        if model in described:
            parts[-1] = f"The same settings as in `{described[model]}`, with another default for"
            values = {name: value for name, value in values.items() if value != default(model.model_fields[name])}
        parts.append(setting_list(model, f"{path}.", values))
        described.setdefault(model, path)
    parts += ["## `method`", METHOD_SETTINGS]
    shared = shared_configs(method.Config for method in METHODS.values())
    for base in sorted(shared, key=lambda base: len(base.__mro__)):
        users = [f"`{name}`" for name, method in METHODS.items() if issubclass(method.Config, base)]
        own = own_values(base, shared)
        parts += [f"### {shared_title(base)}", f"Shared by {', '.join(users)}.", setting_list(base, "method.", own)]
        parts += choices(base, own)
    defaults: dict[str, str] = {}
    for name, method in METHODS.items():
        parts.append(f"### `{name}`")
        bases = [base for base in method.Config.__mro__ if base in shared]
        links = [f"[{shared_title(base)}](#{shared_title(base).lower().replace(' ', '-')})" for base in bases]
        parts.append(f"Shared settings: {', '.join(links)}." if links else "")
        own = own_values(method.Config, bases)
        parts += [setting_list(method.Config, "method.", own), *choices(method.Config, own)]
        given = flat({"backbone": RunConfig.model_fields["backbone"].default.model_dump()}
                     | {"optimisation": RunConfig.model_fields["optimisation"].default.model_dump()}
                     | {"method": method.Config(name=name).model_dump()})  # fmt: skip
        elsewhere = changed(flat(method.defaults), given)
        same = defaults.setdefault(elsewhere, name)
        text = elsewhere if same == name else f"those of [`{same}`](#{same})"
        parts.append(f"Defaults in other sections: {text}." if elsewhere else "")
        for preset, changes in method.Config.presets.items():
            parts.append(f"`preset={preset}` sets {changed(flat(changes), given | flat(method.defaults))}.")
    parts += ["## Bench recipes", "The keys of a [bench recipe](benches.md):", setting_list(BenchRecipe)]
    parts += ["An entry of `methods` is the name of a method, or a mapping with these keys:", setting_list(Row)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def changed(values: dict[str, Any], before: dict[str, Any]) -> str:
    """The settings that differ from those before, as one would write them after `--set`."""
    new = {path: as_text(value) for path, value in values.items() if path not in before or before[path] != value}
    shown = {}
    for path, value in new.items():
        pair = re.sub(r"\.(first|next)\.", ".{first,next}.", path)
        both = {new.get(pair.replace("{first,next}", stage)) for stage in ("first", "next")} == {value}
        shown[pair if both else path] = value
    return ", ".join(f"`{path}={value}`" for path, value in shown.items())


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Dotted path and default of every section in a model, but for `method`, which has no default."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield prefix + name, field.default
            yield from sections(type(field.default), f"{prefix}{name}.")


def setting_list(model: type[BaseModel], prefix: str = "", values: dict[str, Any] | None = None) -> str:
    """An entry for every field that is no section, with its own default; or for those in `values`, with that default.
    Sections of a method are part of its list."""
    from gatf.settings import descriptions

    texts, entries = descriptions(model), []
    for name, field in model.model_fields.items():
        path = prefix + name
        if path in EXPLAINED_BEFORE or (values is not None and name not in values):
            continue
        if is_section(field.annotation):
            if prefix.startswith("method."):
                entries.append(setting_list(field.annotation, f"{path}.", dict(default(field))))
            continue
        if name not in texts:
            raise SystemExit(f"{path} of {model.__name__} has no description: write one under the field")
        value = default(field) if values is None else values[name]
        entries.append(f"- `{path}` ({default_and_range(field, value)}): {' '.join(texts[name].split())}")
    return "\n".join(entries)


def shared_configs(configs: Iterable[type[BaseModel]]) -> list[type[BaseModel]]:
    """The classes with settings from which the configs of several methods derive."""
    bases = [base for config in configs for base in config.__mro__[1:] if is_section(base) and own_fields(base)]
    return [base for base in dict.fromkeys(bases) if bases.count(base) > 1]


def own_fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields) & set(vars(model).get("__annotations__", {})) - {"name"}


def own_values(config: type[BaseModel], shared: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """The settings that a config adds or changes, with their defaults."""
    bases = [base for base in shared if issubclass(config, base) and base is not config]
    return {name: default(field) for name, field in config.model_fields.items() if not inherited(name, config, bases)}


def inherited(field: str, config: type[BaseModel], bases: list[type[BaseModel]]) -> bool:
    """Whether a field is as a shared base describes it."""
    from gatf.settings import descriptions

    return any(
        field in base.model_fields
        and default(base.model_fields[field]) == default(config.model_fields[field])
        and descriptions(base).get(field) == descriptions(config).get(field)
        for base in bases
    )


def shared_title(base: type[BaseModel]) -> str:
    """The docstring up to its first colon: "Class Gaussians: …"."""
    return re.split(r"[:.]", str(base.__doc__))[0]


def choices(config: type[BaseModel], fields: Iterable[str] | None = None) -> list[str]:
    """The settings of each section that a field may hold (`method.base`)."""
    parts = []
    for name in config.model_fields if fields is None else fields:
        annotation = config.model_fields[name].annotation
        for model in filter(is_section, get_args(annotation)):
            chosen = model.model_fields["name"].default
            parts += [f"With `method.{name}.name={chosen}`:", setting_list(model, f"method.{name}.")]
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


def default_and_range(field: FieldInfo, value: Any) -> str:
    """The default, then what else is possible: "`sgd`, `adam`", "`0.1`, > 0", "`null`, int > 0"."""
    possible = re.split(r" or |, (?=`)", kind(field.annotation, field.metadata))
    if value is PydanticUndefined:
        return "required, " + ", ".join(possible)
    shown = f"`{as_text(value)}`"
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if "bool" in possible and len(possible) > 1:
        possible += ["`true`", "`false`"]
    others = [each for each in possible if each not in (shown, "bool", "float", "int", "mapping")]
    if numeric:
        others = [re.sub("^(float|int) ", "", each) for each in others]
    if isinstance(value, str) and "text" in others:
        others.remove("text")
    return ", ".join([shown, *others])


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


# parts of docs/formats.md and docs/model-file.md


def event_list() -> str:
    """Every kind of event, with its fields; those of all events of a task are in the text."""
    from gatf.io.events import KINDS, TaskEvent

    entries = []
    for name, event in KINDS.items():
        described = "; ".join(f"`{field}`: {text[:-1]}" for field, (_, text) in documented_fields(event).items()
                              if not (field == "task" and issubclass(event, TaskEvent)))  # fmt: skip
        entries.append(f"- `{name}`: {in_cell(event.__doc__ or '')} {described}".rstrip())
    return "\n".join(entries) + "\n"


def record_list() -> str:
    """The fields of an update's record."""
    from gatf.model.record import UpdateRecord
    from gatf.settings import descriptions

    texts = descriptions(UpdateRecord)
    entries = [f"- `{name}`: {in_cell(texts.get(name, ''))}" for name in UpdateRecord.model_fields]
    return "\n".join(entry.removesuffix(": ") for entry in entries) + "\n"


def summary_list() -> str:
    """The fields of a run's summary."""
    from gatf.io.run_folder import DERIVED, Summary

    properties = [getattr(Summary, name) for name in DERIVED]
    described = documented_fields(Summary) | {
        name: (kind(found.fget.__annotations__["return"]), in_cell(found.__doc__))
        for name, found in zip(DERIVED, properties, strict=True)
    }
    return "\n".join(f"- `{name}` ({shown}): {text}" for name, (shown, text) in described.items()) + "\n"


def documented_fields(described: type[Any]) -> dict[str, tuple[str, str]]:
    """Type and description of the fields of a dataclass, those of its bases first, with the docstring below it."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(described.__mro__):
        schema = TypeAdapter(base).json_schema().get("properties", {}) if is_dataclass(base) else {}
        for field in fields(base) if is_dataclass(base) else ():
            text = schema[field.name].get("description")
            if field.name not in found and text is None:
                raise SystemExit(f"{field.name} of {base.__name__} has no description: write one under the field")
            found.setdefault(field.name, (kind(field.type), in_cell(text or "")))
    return found


PAGES = {"cli.md": commands, "paper-map.md": paper_map, "settings.md": settings_page}
"""Pages that are generated whole."""
PARTS: dict[str, pages.Part] = {
    **pages.PARTS,
    "methods": method_table,
    "operations": operations_table,
    "rehearsal": rehearsal_table,
    "events": event_list,
    "record": record_list,
    "summary": summary_list,
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
