"""The commands for model files: learn, predict, evaluate, inspect, export, rollback, push, pull."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatf.cli.terminal import print_plain, say
from gatf.errors import ExitCode, UserError
from gatf.io.text import csv_cell, harmless

if TYPE_CHECKING:
    from gatf.model.predictions import Predictions

ModelFile = Annotated[Path, typer.Argument(help="Model file, e.g. shop.gatf, or a run folder.")]
AT_ONCE = 512
"""Images that `predict` reads before it prints."""
FEW = 16
"""Up to this number of images `predict` does not fold the network: folding takes as long as about twenty images."""


def learn(
    model: ModelFile,
    images: Annotated[Path, typer.Argument(help="Folder with one folder of images per class.")],
    epochs: Annotated[int | None, typer.Option(help="Epochs. [default: from the number of images]")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per step. [default: from the number of images]")
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the images to hold out for measuring.")] = 0.1,
    method: Annotated[
        str | None, typer.Option(help="New models only: a method of `gatf methods`. [default: gatf]")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="New models only: e.g. efficientnet_lite0. [default: from the images]")
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(help="Adapt a pretrained backbone: auto (if it helps), never or always. [default: auto]"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time limit for adapting a pretrained backbone. [default: 5]")
    ] = None,
    width: Annotated[int | None, typer.Option(help="New models only: channels of the first stage.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="New models only: side in pixels. [default: from the images]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="New models only: random seed. [default: 0]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any other setting, e.g. method.anchor.ridge=0.1."),
    ] = None,
    keep: Annotated[int, typer.Option(min=0, help="Older versions to keep for `gatf rollback`.")] = 1,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an interrupted update and start over.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Create a model from a folder with one subfolder per class, or add classes to an existing model.

    Images of earlier classes are not needed."""
    from rich.console import Console

    from gatf.config import parse_overrides
    from gatf.incremental.update_file import update_model_file
    from gatf.training.display import LiveDisplay
    from gatf.training.loop import Interrupted

    console = Console(quiet=quiet, soft_wrap=True, highlight=False)
    given = {
        "epochs": epochs, "batch_size": batch_size, "method": method, "backbone": backbone, "width": width,
        "adapt": adapt, "minutes": minutes,
        "image_size": image_size, "random_state": seed,
    }  # fmt: skip
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    parameters |= {"device": device, "held_out": held_out, "settings": parse_overrides(settings or []) or None}
    display = LiveDisplay(console, lines=False)
    try:
        outcome = update_model_file(
            model, images, parameters=parameters, keep=keep, restart=restart, skip_bad=skip_bad,
            announce=lambda text: print_plain(console, text), listener=display,
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
    quick = "" if outcome.export is None else f"; {outcome.export} predicts without PyTorch, {_size(outcome.export)}"
    print_plain(console, f"{model}: {len(outcome.model.labels)} classes, {_size(model)}{quick}")


def predict(
    model: ModelFile,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders of images.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to print per image, most likely first.")] = 1,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Show which predictions Theorem 2 certifies.")
    ] = False,
    unknown: Annotated[
        float | None, typer.Option(help="Reject unknown images at this rate of wrong rejections.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Classify images: file, class, probability."""
    if as_json and as_csv:
        raise UserError("choose one of --json and --csv")
    from gatf.data.files import named_images

    printer = _Printer(as_json=as_json, as_csv=as_csv)
    if not certificate and unknown is None and device in ("auto", "cpu"):
        paths = named_images(images) if model.is_file() else ()
        if 0 < len(paths) <= AT_ONCE and _predict_from_export(
            model, paths, top=top, skip_bad=skip_bad, printer=printer
        ):
            return
    from gatf.data.inputs import decodable
    from gatf.devices import available_device
    from gatf.model.file import load
    from gatf.model.predict import forward, predictions_from

    known = load(model, device=available_device(device), answering=True)
    paths = named_images(images)
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
        best = [
            {
                "label": names[place],
                "probability": round(float(found.probabilities[number, place]), 6),
            }
            for place in order[number]
        ]
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
                say(_csv_line(list(columns)))
            say(_csv_line(list(columns.values())))
        else:
            named = "  ".join(f"{harmless(item['label'])} {100 * item['probability']:.1f} %" for item in row["top"])
            if row["label"] != row["top"][0]["label"]:
                named = f"{harmless(row['label'])} (nearest: {named})"
            certified = {True: "  certified", False: "  not certified", None: ""}[row.get("certified")]
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


def _csv_line(values: list[Any]) -> str:
    import csv
    import io

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([csv_cell(value) for value in values])
    return buffer.getvalue()


def inspect(
    model: ModelFile, as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False
) -> None:
    """Show a model: classes per update, sizes, history, accuracy at each update."""
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
    channels, side, _ = description.shape
    say(f"{model}: {len(description.labels)} classes, {_size(model)}, written by gatf {description.gatf}")
    say(f"images: {side}×{side} {'grey' if channels == 1 else 'colour'}")
    say(
        f"network: {config.backbone}, {network / 1e6:.2f} MB; method {config.method.name}: "
        f"{(sum(sizes.values()) - network) / 1e6:.2f} MB, {history[-1].bytes_per_class} bytes per class"
    )
    for before, record in zip((None, *history), history, strict=False):
        say("")
        if before is not None and record.number > before.number + 1:
            say(f"(updates {before.number + 1} to {record.number - 1} are not in the history any more)")
            say("")
        say(f"{record.date}  {record}")
        say(f"Classes: {', '.join(harmless(label) for label in (*record.added, *record.revisited))}")
    kept = Store(model).versions()
    if kept:
        say("")
        say(f"older versions: {', '.join(_version(number) for number in kept)}")


def evaluate(
    model: ModelFile,
    folder: Annotated[Path, typer.Argument(help="Test images, one folder per class.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, with the confusion matrix.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Evaluate a model on labelled images: accuracy, accuracy per class, confusions, calibration."""
    from gatf.devices import available_device
    from gatf.incremental.assess import assess_folder
    from gatf.model.file import load

    known = load(model, device=available_device(device), answering=True)
    found = assess_folder(known, folder, skip_bad=skip_bad)
    for name, count in found.left_out.items():
        say(f"skipped: {count} images of '{harmless(name)}', a class that the model does not know", err=True)
    if as_json:
        import json

        say(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for heading in ("class", "images", "accuracy %", "most often mistaken for"):
        table.add_column(heading, justify="left" if heading.startswith(("class", "most")) else "right")
    for each in found.by_class:
        cells = each.name, str(each.images), f"{each.accuracy:.1f}", each.taken_for or ""
        table.add_row(*(Text(harmless(text)) for text in cells))
    Console(soft_wrap=True, highlight=False).print(table)
    say(
        f"accuracy on {found.images} images, among {len(found.classes)} classes: {found.accuracy:.1f} % "
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
    say(f"{model} is restored to the version {_version(number)}; the undone model is in {undone}")


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
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
