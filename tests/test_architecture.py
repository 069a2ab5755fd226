"""A file's folder says what it may import: only layers below its own."""

import ast
import re
from pathlib import Path

import gatf

ROOT = Path(gatf.__file__).parent
LAYERS = [
    {"cli"},
    {"serve"},
    {"incremental", "report"},
    {"bench"},
    {"experiment"},
    {"network_reuse"},
    {"model"},
    {"session"},
    {"config"},
    {"methods"},
    {"training", "evaluation"},
    {"data", "nets"},
    {"geometry"},
    {"io"},
    {"settings", "devices"},
    {"plugins"},
    {"errors", "seeding", "distributed"},
]
"""From the top of the stack to the bottom."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def layer_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module == "gatf":
            names = [f"gatf.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("gatf.")}
    return found


def test_imports_point_down() -> None:
    files = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or not path.stem.startswith("__"))
    violations = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imported_layers(path) - {layer_of(path)})
        if RANK[name] <= RANK[layer_of(path)]
    ]
    assert not violations, "\n".join(violations)


PAGE = ROOT.parents[1] / "docs" / "architecture.md"


def sections() -> dict[tuple[str, ...], set[str]]:
    """The names in backticks of the page's part on modules, by the folders of their section; () for the top level."""
    _, _, modules = PAGE.read_text(encoding="utf-8").partition("\n## Modules\n")
    modules = modules.partition("\n## ")[0]
    found = {}
    for section in modules.split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        folders = tuple(name.rstrip("/") for name in re.findall(r"`([a-z_]+/)`", heading))
        found[folders] = set(re.findall(r"`([\w/]+(?:\.py)?/?)`", text))
    return found


def test_the_page_names_every_module_and_no_other() -> None:
    """Each module by its file name, its name without suffix, or its folder; each named file exists."""
    named, problems = sections(), []
    for path in sorted(ROOT.rglob("*.py")):
        *folders, file = path.relative_to(ROOT).parts
        if file in ("__init__.py", "__main__.py"):
            continue
        text = next((names for key, names in named.items() if folders and folders[0] in key), named[()])
        ways = {"/".join([*folders[at:], file]) for at in range(len(folders) + 1)} | {path.stem}
        ways |= {f"{folder}/" for folder in folders[1:]}
        if not ways & text:
            problems.append(f"{path.relative_to(ROOT)} is not named")
    for folders, names in named.items():
        files = [path for folder in folders or (".",) for path in (ROOT / folder).rglob("*.py")]
        known = [path.relative_to(ROOT).as_posix() for path in files]
        for name in sorted(name for name in names if name.endswith(".py")):
            if not any(f"/{path}".endswith(f"/{name}") for path in known):
                problems.append(f"{name} does not exist in {', '.join(folders) or 'gatf'}")
    assert not problems, "\n".join(problems)
