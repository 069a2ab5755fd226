"""The commands for model files: learn, predict, evaluate, inspect, export, rename, rollback, push, pull."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatf.cli.terminal import print_plain, say
from gatf.errors import ExitCode, UserError
from gatf.io.text import csv_text, harmless

if TYPE_CHECKING:
    from gatf.model.predictions import Predictions
    from gatf.model.state import Model

ModelFile = Annotated[Path, typer.Argument(help="Model file, e.g. shop.gatf, or a run folder.")]
NEW, TRAINING, VECTORS = "Options for a new model", "Options for training a network", "Options for vectors"
AT_ONCE = 512
"""Images that `predict` reads before it prints."""
FEW = 16
"""Up to this number of images `predict` does not fold the network: folding takes as long as about twenty images."""
FOR_VECTORS = {"encoder", "normalize", "engine"}
FOR_IMAGES = {"epochs", "batch_size", "backbone", "width", "adapt", "minutes", "image_size"}
"""Parameters of one kind of model."""


def learn(
    model: ModelFile,
    images: Annotated[
        str, typer.Argument(help="Folder with one folder of images per class; or vectors: .npz, .parquet, s3://….")
    ],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Older versions to keep for `gatf rollback`.")] = 3,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an interrupted update and start over.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    method: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=NEW,
            help="How to train where the backbone is trained: a method of `gatf methods`. [default: gatf]",
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(rich_help_panel=NEW, help="E.g. efficientnet_lite0. [default: from the images]")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(rich_help_panel=NEW, help="Side in pixels. [default: from the images]")
    ] = None,
    width: Annotated[
        int | None, typer.Option(rich_help_panel=NEW, help="Channels of the first stage of a new network.")
    ] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=NEW, help="Random seed. [default: 0]")] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=TRAINING,
            help="Adapt a pretrained backbone: never, auto (if it helps) or always. [default: as before, else never]",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(rich_help_panel=TRAINING, help="With --adapt auto: time limit for training. [default: 5]"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(rich_help_panel=TRAINING, help="Epochs. [default: from the number of images]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(rich_help_panel=TRAINING, help="Images per step. [default: from the number of images]")
    ] = None,
    held_out: Annotated[
        float,
        typer.Option(rich_help_panel=TRAINING, help="Share of the images to hold out where a network is trained."),
    ] = 0.1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", rich_help_panel=TRAINING, help="Any other setting, e.g. method.topology=1."
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(rich_help_panel=VECTORS, help="Name of their encoder, e.g. clip-vit-b32@2.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(rich_help_panel=VECTORS, help="New models: scale to unit length. [default: if it helps]"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(rich_help_panel=VECTORS, help="local, or ray to read files on a Ray cluster. [default: local]"),
    ] = None,
) -> None:
    """Create a model from a folder with one subfolder per class, or add classes to an existing model.

    Images of earlier classes are not needed. Embeddings can take the place of images: arrays `embedding` [N, D] and
    `label` in an .npz file, or columns of these names in parquet files."""
    from rich.console import Console

    from gatf.config import parse_overrides
    from gatf.data.files import is_vector_file
    from gatf.data.vectors import VectorInput
    from gatf.incremental.update_file import update_model_file
    from gatf.training.display import LiveDisplay
    from gatf.training.loop import Interrupted
    from gatf.training.threads import on_free_cores

    console = Console(quiet=quiet, soft_wrap=True, highlight=False)
    given = {
        "epochs": epochs, "batch_size": batch_size, "method": method, "backbone": backbone, "width": width,
        "adapt": adapt, "minutes": minutes, "image_size": image_size, "random_state": seed, "encoder": encoder,
        "normalize": normalize, "engine": engine,
    }  # fmt: skip
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    parameters |= {"held_out": held_out, "settings": parse_overrides(settings or []) or None}
    vectors = VectorInput(images) if is_vector_file(images) else None
    others = sorted(parameters.keys() & (FOR_VECTORS if vectors is None else FOR_IMAGES))
    if others or (vectors is not None and skip_bad):
        option = f"--{others[0].replace('_', '-')}" if others else "--skip-bad"
        raise UserError(f"{option} is for {'vectors' if vectors is None else 'images'} only; leave it out")
    if vectors is None:
        parameters["device"] = device
    display = LiveDisplay(console, lines=False)
    announce = partial(print_plain, console)
    try:
        with on_free_cores(announce):
            outcome = update_model_file(
                model, Path(images), parameters=parameters, vectors=vectors, keep=keep, restart=restart,
                skip_bad=skip_bad, announce=announce, listener=display,
            )  # fmt: skip
    except Interrupted:
        display.close()
        console.print("stopped; the model has not changed. Repeat the command to continue.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        display.close()
    if outcome.resumed:
        console.print("(continued the interrupted update)")
    for name in outcome.left_out:
        print_plain(console, f"skipped: {harmless(name)} cannot be decoded")
    print_plain(console, str(outcome.model.history[-1]))
    print_plain(console, f"{model}: {len(outcome.model.labels)} classes, {_size(model)}")


def predict(
    model: ModelFile,
    images: Annotated[
        list[str],
        typer.Argument(help="Image files and folders of images; or one file of vectors: .npy, .npz, .parquet."),
    ],
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of classes to print per image, most likely first.")
    ] = 1,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Show which predictions the transport's error cannot have changed.")
    ] = False,
    unknown: Annotated[
        float | None, typer.Option(help="Reject unknown images at this rate of wrong rejections.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    encoder: Annotated[str | None, typer.Option(help="Vectors only: refuse a model of another encoder.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Classify images or vectors: file or row, class, probability."""
    if as_json and as_csv:
        raise UserError("choose one of --json and --csv")
    from gatf.data.files import is_vector_file, named_images

    printer = _Printer(as_json=as_json, as_csv=as_csv)
    if len(images) == 1 and is_vector_file(images[0]):
        _predict_vectors(model, images[0], encoder, printer, device, top=top, certificate=certificate, unknown=unknown)
        return
    given = [Path(name) for name in images]
    quick = not certificate and unknown is None and device in ("auto", "cpu") and model.is_file()
    if quick:
        paths = named_images(given)
        quick = 0 < len(paths) <= AT_ONCE
        if quick and _predict_from_export(model, paths, top=top, skip_bad=skip_bad, printer=printer):
            return
    from gatf.data.inputs import decodable
    from gatf.devices import available_device
    from gatf.model.file import load
    from gatf.model.predict import forward, predictions_from

    known = load(model, device=available_device(device), answering=True)
    certificate = certificate and _certifies(known)
    paths = named_images(given)
    if skip_bad:
        good = decodable(paths)
        for name, fine in zip(paths, good, strict=True):
            if not fine:
                say(f"skipped: {harmless(name)} cannot be decoded", err=True)
        paths = tuple(name for name, fine in zip(paths, good, strict=True) if fine)
    for start in range(0, len(paths), AT_ONCE):
        some = list(paths[start : start + AT_ONCE])
        outputs = forward(known, some, once=len(paths) <= FEW)
        found = predictions_from(known, outputs, certificate=certificate, unknown=unknown)
        if found.warning is not None and start == 0:
            say(f"note: {found.warning}", err=True)
        for row in _rows(known.labels, some, found, top, certificate):
            printer(row)
    printer.end()
    if quick:  # the next predictions need not wait for torch
        from gatf.incremental.store import Store

        Store(model).renew_export()


def _predict_vectors(
    model: Path, name: str, encoder: str | None, printer: "_Printer", device: str, *, top: int, certificate: bool,
    unknown: float | None,
) -> None:  # fmt: skip
    """Print the predictions of vectors, by their ids or row numbers, a batch at a time."""
    from gatf.data.vectors import VectorInput, row_names
    from gatf.devices import available_device
    from gatf.model.file import load
    from gatf.model.predict import check_vectors, forward, predictions_from

    known, given = load(model, device=available_device(device), answering=True), VectorInput(name, encoder=encoder)
    if not known.preprocessing.takes_vectors:
        raise UserError(f"{model} classifies {known.preprocessing.description}, and {name} has vectors")
    certificate = certificate and _certifies(known)
    check_vectors(known, given.dim, given.encoder)
    first = 0
    for batch in given.batches(AT_ONCE):
        found = predictions_from(known, forward(known, batch.vectors), certificate=certificate, unknown=unknown)
        if found.warning is not None and first == 0:
            say(f"note: {found.warning}", err=True)
        for row in _rows(known.labels, list(row_names(batch, first)), found, top, certificate):
            printer(row)
        first += len(batch.vectors)
    printer.end()


def _certifies(known: "Model") -> bool:
    """Whether there is a transport error that may have changed predictions; else a note is printed."""
    _ = known.stored  # an error that names the method, where it keeps no Gaussians
    if not known.transported:
        say("note: the last update transported no class, so there is no transport error to certify against", err=True)
    return known.transported


def _predict_from_export(model: Path, paths: Sequence[str], *, top: int, skip_bad: bool, printer: "_Printer") -> bool:
    """Print predictions of the ONNX file beside the model, without importing torch; returns whether there was one."""
    from gatf.model.exported import beside

    exported, note = beside(model)
    if note is not None:
        say(f"note: {harmless(note)}", err=True)
    if exported is None:
        return False
    pixels, good, bad = exported.read(paths, skip_bad=skip_bad)
    for name in bad:
        say(f"skipped: {harmless(name)} cannot be decoded", err=True)
    if good:
        for row in _rows(exported.labels, good, exported.predict(pixels), top, certificate=False):
            printer(row)
    printer.end()
    return True


def _rows(
    names: Sequence[Any], paths: list[str], found: "Predictions", top: int, certificate: bool
) -> list[dict[str, Any]]:
    """For each image: file, label, probability, the most likely classes, and whether the prediction is certified."""
    labels = found.labels.tolist()
    order = found.probabilities.argsort(axis=1, kind="stable")[:, ::-1][:, :top]
    rows: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        shares = found.probabilities[number]
        best = [{"label": names[place], "probability": round(float(shares[place]), 6)} for place in order[number]]
        row = {"file": path, "label": labels[number], "probability": best[0]["probability"], "top": best}
        if certificate:
            row["certified"] = bool(found.certified[number])
        rows.append(row)
    return rows


class _Printer:
    """Prints predictions one by one, as plain lines, CSV or the elements of a JSON list."""

    def __init__(self, *, as_json: bool, as_csv: bool) -> None:
        self.as_json, self.as_csv, self.count = as_json, as_csv, 0

    def __call__(self, row: dict[str, Any]) -> None:
        if self.as_json:
            import json

            say(("[" if self.count == 0 else ",") + json.dumps(row, ensure_ascii=False))
        elif self.as_csv:
            columns = _columns(row)
            if self.count == 0:
                say(csv_text([columns]).removesuffix("\n"))
            say(csv_text([columns.values()]).removesuffix("\n"))
        else:
            named = "  ".join(f"{harmless(item['label'])} {100 * item['probability']:.1f} %" for item in row["top"])
            if row["label"] != row["top"][0]["label"]:
                named = f"{harmless(row['label'])} (nearest: {named})"
            certified = {True: "  unaffected by transport error", False: "  transport error may matter", None: ""}[
                row.get("certified")
            ]
            say(f"{harmless(row['file'])}  {named}{certified}")
        self.count += 1

    def end(self) -> None:
        if self.as_json:
            say("]" if self.count else "[]")


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    columns = {"file": row["file"], "label": row["label"], "probability": row["probability"]}
    for place, item in enumerate(row["top"][1:], start=2):
        columns |= {f"label{place}": item["label"], f"probability{place}": item["probability"]}
    return columns | ({"certified": row["certified"]} if "certified" in row else {})


def inspect(
    model: ModelFile, as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False
) -> None:
    """Show a model: classes per update, sizes, history, accuracy at each update."""
    from gatf.data.preprocessing import Preprocessing
    from gatf.incremental.store import Store
    from gatf.model.file import describe, model_path

    model = model_path(model)
    description, config, history, header = describe(model)
    if as_json:
        import json

        say(json.dumps({**description.model_dump(mode="json"), "digest": header.digest}, indent=2, ensure_ascii=False))
        return
    sizes = {name: place.end - place.start for name, place in header.places.items()}
    network = sum(size for name, size in sizes.items() if name.startswith("method.backbone."))
    say(f"{model}: {len(description.labels)} classes, {_size(model)}, written by gatf {description.gatf}")
    preprocessing = Preprocessing(tuple(description.shape), (), ())
    say(f"input: {preprocessing.description}")
    backbone = f"network: {config.backbone}, {_bytes(network)}; " if network else ""  # vectors have none
    kept = f"{_bytes(sum(sizes.values()) - network)}, {history[-1].bytes_per_class:,} bytes per class"
    say(f"{backbone}method {config.method.name}: {kept}")
    for before, record in zip((None, *history), history, strict=False):
        say("")
        if before is not None and record.number > before.number + 1:
            say(f"(updates {before.number + 1} to {record.number - 1} are not in the history any more)")
            say("")
        say(f"{record.date[:16].replace('T', ' ')} UTC  {record}")
        if named := (*record.added, *record.revisited):
            say(f"Classes: {', '.join(harmless(label) for label in named)}")
    versions = Store(model).versions()
    if versions:
        say("")
        say(f"older versions: {', '.join(_version(number) for number in versions)}")


def evaluate(
    model: ModelFile,
    folder: Annotated[
        str, typer.Argument(help="Test images, one folder per class; or vectors with labels: .npz, .parquet.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, with the confusion matrix.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Evaluate a model on labelled images or vectors: accuracy, accuracy per class, confusions, calibration."""
    from gatf.devices import available_device
    from gatf.incremental.assess import assess_folder, assess_vectors
    from gatf.model.file import load

    known = load(model, device=available_device(device), answering=True)
    noun = known.preprocessing.noun
    if known.preprocessing.takes_vectors:
        found = assess_vectors(known, folder)
    else:
        found = assess_folder(known, Path(folder), skip_bad=skip_bad)
    for name, count in found.left_out.items():
        say(f"skipped: {count} {noun} of '{harmless(name)}', a class that the model does not know", err=True)
    if as_json:
        import json

        say(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for heading in ("class", noun, "accuracy %", "most often mistaken for"):
        table.add_column(heading, justify="left" if heading.startswith(("class", "most")) else "right")
    for each in found.by_class:
        cells = each.name, str(each.images), f"{each.accuracy:.1f}", each.taken_for or ""
        table.add_row(*(Text(harmless(text)) for text in cells))
    Console(soft_wrap=True, highlight=False).print(table)
    say(
        f"accuracy on {found.images} {noun}, among {len(found.classes)} classes: {found.accuracy:.1f} % "
        f"(mean over classes {found.mean_class_accuracy:.1f} %)"
    )
    say(f"mean confidence {found.mean_confidence:.1f} %; expected calibration error {found.calibration_error:.1f} %")


def export(
    model: ModelFile, target: Annotated[Path, typer.Argument(help="ONNX file to write, e.g. shop.onnx.")]
) -> None:
    """Export a model to ONNX: normalisation, network and classifier in one graph that does not need PyTorch."""
    from gatf.io import container
    from gatf.model.file import load, model_path
    from gatf.model.onnx import export_onnx

    if target.suffix == ".gatf" or target.resolve() == model.resolve():
        raise UserError(f"{target} is a model's name: give an ONNX file, e.g. {target.with_suffix('.onnx')}")
    digest = container.inspect(model_path(model)).digest
    checked = export_onnx(load(model, answering=True), target, digest=digest)
    say(f"{target}: {_size(target)}; {checked}")


def rollback(model: ModelFile) -> None:
    """Undo the last update: restore the newest older version."""
    from gatf.incremental.store import Store

    store = Store(model)
    if not store.path.parent.is_dir() or not (store.path.exists() or store.versions()):
        raise UserError(f"there is no model {model}")
    with store.writing():
        number, undone = store.rollback()
    where = f"; the undone model is in {undone}" if undone is not None else ""
    say(f"{model} is restored to the version {_version(number)}{where}")


def merge(
    models: Annotated[list[Path], typer.Argument(help="Model files of one frozen backbone or encoder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; the first model to merge into it.")],
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Older versions to keep for `gatf rollback`.")] = 1,
) -> None:
    """Join models that learnt different or the same classes at different places, without their images or vectors."""
    from gatf.incremental.update_file import merge_files

    merged = merge_files(models, out, keep=keep)
    say(str(merged.history[-1]))
    say(f"{out}: {len(merged.labels)} classes, {_size(out)}")


def forget(
    model: ModelFile,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="The class to remove.")],
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="Older versions to keep; they still contain the class.")
    ] = 1,
    vectors: Annotated[
        str | None, typer.Option(help="File with all vectors that the class was learnt from: removes it exactly.")
    ] = None,
) -> None:
    """Remove a class from a model, and report what remains of it."""
    from gatf.incremental.update_file import forget_class

    say(f"{model} has forgotten '{harmless(name)}': {forget_class(model, name, keep=keep, vectors=vectors)}")


def rename(
    model: ModelFile,
    old: Annotated[str, typer.Argument(help="Name of a class.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
) -> None:
    """Rename a class of a model. Its images are not needed."""
    from gatf.incremental.store import Store

    store = Store(model)
    if not store.path.is_file():
        raise UserError(f"there is no model {model}")
    with store.writing():
        store.rename(old, new)
    say(f"{model}: class {harmless(old)} is now {harmless(new)}")


def push(
    model: ModelFile,
    target: Annotated[
        str, typer.Argument(help="Repository of the Hugging Face hub (owner/name) or a folder (./NAME).")
    ],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
) -> None:
    """Upload a model and its card to the Hugging Face hub, or copy them to a folder."""
    from gatf.model import hub
    from gatf.model.file import model_path

    done = hub.push(model, target, private=private)
    about = f"the edited {hub.CARD} was kept" if done.kept_card else f"{hub.CARD} describes it"
    say(f"{done.place} contains {hub.MODEL}, {_size(model_path(model))}; {about}")


def pull(
    source: Annotated[
        str, typer.Argument(help="Repository of the Hugging Face hub (owner/name) or a folder (./NAME).")
    ],
    out: Annotated[Path | None, typer.Option(help="File to write. [default: NAME.gatf]")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the repository.")] = None,
) -> None:
    """Download a model from the Hugging Face hub or a folder. Only the model file is fetched; no code runs."""
    from gatf.model import hub

    target = out or Path(f"{Path(source).expanduser().resolve().name}.gatf")
    hub.pull(source, target, revision=revision)
    say(f"{target}: {_size(target)}; `gatf inspect {shlex.quote(str(target))}` describes it")


def _version(number: int) -> str:
    return "after the first fit" if number == 0 else f"after update {number}"


def _size(path: Path) -> str:
    return _bytes(path.stat().st_size)


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
