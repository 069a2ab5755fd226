"""What mkdocs needs to know of our pages, beside mkdocs.yml."""

from typing import Any

from markdown import Extension, Markdown
from mkdocs.plugins import event_priority
from mkdocs_autorefs import AutorefsInlineProcessor


class Subscripts(Extension):
    """`a[t][k]` is an entry of a matrix. mkdocstrings would take it for a reference to something called `k`."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.deregister(AutorefsInlineProcessor.name)


@event_priority(-100)  # after the plugin has added what is taken out here
def on_config(config: Any) -> None:
    config.markdown_extensions.append(Subscripts())
