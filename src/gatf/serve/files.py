"""The files of the page, which are in the package; nothing else on disk has an address."""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

TYPES = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}
DOCS = ("studio.css", "icon.svg", "docs.js", "dom.js", "api.js")
"""The files that /docs needs."""
PAGE = (*DOCS, "studio.js", "teach.js", "ask.js", "look.js", "chart.js")
"""The files of the page beside index.html; nothing else can be asked for."""


def addresses(page: bool) -> dict[str, str]:
    """The file at each address, of the whole page or only of /docs. None needs a token: the page asks for it."""
    index = {"/": "index.html"} if page else {}
    return index | {"/docs": "docs.html"} | {f"/{name}": name for name in (PAGE if page else DOCS)}


def add_files(app: FastAPI, page: bool) -> None:
    """A route for each file."""
    folder = files("gatf.serve") / "page"

    def serve(address: str, name: str) -> None:
        content, kind = (folder / name).read_bytes(), TYPES[Path(name).suffix]

        async def answer() -> Response:
            return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})

        app.add_api_route(address, answer, include_in_schema=False)

    for address, name in addresses(page).items():
        serve(address, name)
