"""Hooks of mkdocs: keep subscripts such as `a[t][k]` from becoming references."""

from re import Match
from typing import Any

from markdown import Extension, Markdown
from mkdocs.plugins import event_priority
from mkdocs_autorefs import AutorefsInlineProcessor


class Subscripts(AutorefsInlineProcessor):
    """`a[t][k]` is an entry of a matrix. mkdocstrings would take it for a reference to something called `k`."""

    def handleMatch(self, m: Match[str], data: str) -> tuple[None, None, None]:
        return None, None, None


class WithoutReferences(Extension):
    """Replaces the pattern that finds references by `Subscripts`."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Subscripts(md), AutorefsInlineProcessor.name, priority=168)


@event_priority(-100)  # after the plugin that looks for references has been added
def on_config(config: Any) -> None:
    config.markdown_extensions.append(WithoutReferences())
