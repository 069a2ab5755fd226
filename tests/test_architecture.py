"""A file's folder says what it may import: only layers below its own."""

import ast
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
