"""The commands that serve a model over HTTP: serve for programs, studio with a page for users."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gatf.errors import UserError, extra

UPDATES, LIMITS = "Options for updates", "Limits"
ModelFile = Annotated[Path, typer.Argument(help="Model file, e.g. shop.gatf; the first update creates it.")]
Host = Annotated[str, typer.Option(help="Address to listen on; other machines can only connect with a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 chooses a free port.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the token that requests must send. [default: $GATF_TOKEN]")
]
Origin = Annotated[
    list[str] | None, typer.Option("--allow-origin", help="Site whose pages may send requests, e.g. https://a.example.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Epochs = Annotated[
    int | None, typer.Option(rich_help_panel=UPDATES, help="Epochs. [default: from the number of images]")
]
Minutes = Annotated[
    float | None,
    typer.Option(rich_help_panel=UPDATES, help="Time limit for adapting a pretrained backbone. [default: 5]"),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", rich_help_panel=UPDATES, help="Any other setting.")
]
Keep = Annotated[
    int, typer.Option(rich_help_panel=UPDATES, min=0, metavar="N", help="Older versions to keep for a rollback.")
]
MaxRequest = Annotated[
    int, typer.Option(rich_help_panel=LIMITS, min=1, metavar="N", help="Megabytes of one prediction.")
]
MaxUpdate = Annotated[
    int, typer.Option(rich_help_panel=LIMITS, min=1, metavar="N", help="Megabytes of the images of one update.")
]
MaxImages = Annotated[int, typer.Option(rich_help_panel=LIMITS, min=1, metavar="N", help="Images of one prediction.")]
MaxPixels = Annotated[int, typer.Option(rich_help_panel=LIMITS, min=1, metavar="N", help="Pixels of one image.")]
Queue = Annotated[
    int,
    typer.Option(
        rich_help_panel=LIMITS, min=1, metavar="N", help="Predictions and images that may wait; more get 429."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        rich_help_panel=LIMITS,
        min=0.1,
        metavar="SECONDS",
        help="Seconds for a prediction to arrive, and for its response.",
    ),
]


def serve(
    model: ModelFile, host: Host = "127.0.0.1", port: Port = 8000, token_file: TokenFile = None,
    origins: Origin = None, device: Device = "auto", epochs: Epochs = None, minutes: Minutes = None,
    settings: Settings = None, keep: Keep = 3, max_request_mb: MaxRequest = 32, max_update_mb: MaxUpdate = 4096,
    max_images: MaxImages = 256, max_pixels: MaxPixels = 50_000_000, queue: Queue = 64, timeout: Timeout = 60.0,
) -> None:  # fmt: skip
    """Predict and update over HTTP: POST /v1/predict, POST /v1/updates; /docs describes the API."""
    _run(page=False, browser=False, **locals())


def studio(
    model: ModelFile, host: Host = "127.0.0.1", port: Port = 8000, token_file: TokenFile = None,
    origins: Origin = None, device: Device = "auto", epochs: Epochs = None, minutes: Minutes = None,
    settings: Settings = None, keep: Keep = 3, max_request_mb: MaxRequest = 32, max_update_mb: MaxUpdate = 4096,
    max_images: MaxImages = 256, max_pixels: MaxPixels = 50_000_000, queue: Queue = 64, timeout: Timeout = 60.0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:  # fmt: skip
    """Teach a model and classify images in the browser, without Python."""
    _run(page=True, **locals())


def _run(*, model: Path, page: bool, browser: bool, host: str, port: int, **given: Any) -> None:
    for module in ("fastapi", "uvicorn", "python_multipart"):
        extra(module, "studio")
    extra("PIL", "studio")
    from gatf.config import parse_overrides
    from gatf.devices import available_device
    from gatf.serve.limits import MEGABYTE, Limits
    from gatf.serve.run import check_address, run
    from gatf.serve.studio import Options

    token = _token(given["token_file"])
    check_address(host, token)
    limits = Limits(
        request_bytes=given["max_request_mb"] * MEGABYTE, update_bytes=given["max_update_mb"] * MEGABYTE,
        images=given["max_images"], pixels=given["max_pixels"], queue=given["queue"], seconds=given["timeout"],
    )  # fmt: skip
    parameters = {name: given[name] for name in ("epochs", "minutes") if given[name] is not None}
    parameters |= {"device": given["device"], "settings": parse_overrides(given["settings"] or []) or None}
    if not model.absolute().parent.is_dir():
        raise UserError(f"the model's folder {model.absolute().parent} does not exist")
    options = Options(
        model, page=page, device=available_device(given["device"]), parameters=parameters, keep=given["keep"],
        token=token, origins=tuple(given["origins"] or ()), limits=limits,
    )  # fmt: skip
    run(options, host=host, port=port, browser=browser and page)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("GATF_TOKEN") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"the token cannot be read from {file}") from None
