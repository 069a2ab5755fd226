"""The files of the page, which are in the package; nothing else on disk has an address."""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

PAGE = {
    "": ("index.html", "text/html; charset=utf-8"),
    "studio.css": ("studio.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    **{
        name: (name, "text/javascript; charset=utf-8")
        for name in ("studio.js", "api.js", "dom.js", "teach.js", "ask.js", "look.js", "chart.js")
    },
}
"""The files of the page, by their address below /: the only ones that can be asked for."""
ALWAYS = ("studio.css", "icon.svg", "docs.js", "dom.js", "api.js")
"""Those that /docs needs, with or without the page."""


def public_paths(page: bool) -> frozenset[str]:
    """Addresses that need no token: the page asks for it."""
    return frozenset({f"/{name}" for name in (PAGE if page else ALWAYS)} | {"/docs"})


def add_files(app: FastAPI, page: bool) -> None:
    """An address for each file of the page, or only for those of /docs."""
    folder = files("gatf.serve") / "page"

    def serve(address: str, name: str, media_type: str) -> None:
        content = (folder / name).read_bytes()

        async def answer() -> Response:
            return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

        app.add_api_route(f"/{address}", answer, include_in_schema=False)

    for address, (name, media_type) in PAGE.items():
        if page or address in ALWAYS:
            serve(address, name, media_type)
    serve("docs", "docs.html", "text/html; charset=utf-8")
