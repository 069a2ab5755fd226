"""`gatf upgrade`: move a model, and stored vectors, to another encoder."""

from pathlib import Path
from typing import Annotated

import typer

from gatf.cli.models import ModelFile
from gatf.cli.terminal import say
from gatf.errors import UserError


def upgrade(
    model: ModelFile,
    pairs: Annotated[
        Path | None,
        typer.Argument(help="Pairs: .npz or .parquet with `old`, `new` and perhaps `label`; or a folder of photos."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Models of images: the new pretrained backbone.")] = None,
    labelled: Annotated[bool, typer.Option("--labelled", help="The photos are in one folder per class.")] = False,
    image_size: Annotated[int | None, typer.Option(help="Models of images: side in pixels for the new one.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Models of vectors: the name of the new encoder.")] = None,
    max_loss: Annotated[float, typer.Option(help="Points of accuracy that the upgrade may lose.")] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Upgrade even if the forecast loses more.")] = False,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="Older versions to keep for `gatf rollback`.")] = 1,
    vectors: Annotated[str | None, typer.Option(help="Stored vectors of the old encoder to move, too.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the moved vectors go, as parquet.")] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: workers move a file each, and --out is a folder.")
    ] = "local",
) -> None:
    """Move a model to another encoder without its old items. Any items that both encoders can embed serve as pairs.

    With --vectors and --out it moves stored vectors by the same map, without PAIRS by the map of the last upgrade."""
    from gatf.incremental.upgrade import load_map, move_on_cluster, move_vectors, stored_vectors, upgrade_model_file

    if engine not in ("local", "ray"):
        raise UserError(f"engine is 'local' or 'ray', not {engine!r}")
    if (vectors is None) != (out is None):
        raise UserError("--vectors and --out belong together: the old vectors, and where the moved ones go")
    if pairs is None and vectors is None:
        raise UserError("give PAIRS to upgrade the model, or --vectors and --out to move stored vectors")
    if pairs is not None:
        updated, _, place = upgrade_model_file(
            model, pairs, backbone=backbone, encoder=encoder, labelled=labelled, image_size=image_size,
            max_loss=max_loss, force=force, keep=keep, vectors=vectors,
        )  # fmt: skip
        say(str(updated.history[-1]))
        say(f"{model}: upgraded; {place} has the map of vectors; gatf rollback {model} undoes it")
    if vectors is not None and out is not None:
        found = load_map(model)
        given = stored_vectors(vectors, found.affine.weight.shape[1], found.source)
        move = move_vectors if engine == "local" else move_on_cluster
        say(f"{out}: {move(given, out, found)} vectors moved")
