"""Write the generated parts of the documentation.

python tools/update_docs.py                            the map from equations to functions, the table of methods
python tools/update_docs.py digits runs/bench-digits   also the results between the markers `results:digits`
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
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
    from gatf.cli.catalogue import bytes_kept
    from gatf.methods import METHODS

    lines = ["| method | paper | trains | keeps for each class | bytes a class |", "|---|---|---|---|---:|"]
    for name, method in METHODS.items():
        kept = bytes_kept(name, pooled=512, bottleneck=64)
        lines.append(f"| `{name}` | {method.paper} | {method.trains} | {method.keeps} | {kept:,} |")
    return "\n".join(lines) + "\n"


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


def replace_between(text: str, name: str, content: str) -> str:
    """Put content between `<!-- name -->` and `<!-- /name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no markers {start} … {end}")
    return f"{before}{start}\n{content}{end}{after}"


def main(arguments: list[str]) -> None:
    (ROOT / "docs" / "paper-map.md").write_text(paper_map(), encoding="utf-8")
    methods = ROOT / "docs" / "methods.md"
    methods.write_text(
        replace_between(methods.read_text(encoding="utf-8"), "methods", method_table()), encoding="utf-8"
    )
    for name, folder in zip(arguments[::2], arguments[1::2], strict=True):
        table = (Path(folder) / "results.md").read_text(encoding="utf-8")
        for page in (ROOT / "README.md", ROOT / "docs" / "methods.md"):
            text = page.read_text(encoding="utf-8")
            if f"<!-- results:{name} -->" in text:
                page.write_text(replace_between(text, f"results:{name}", table), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
