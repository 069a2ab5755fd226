"""The application: the endpoints of the server."""

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gatf import __version__
from gatf.data.pixels import as_labels
from gatf.data.vectors import as_vectors
from gatf.errors import UserError
from gatf.serve import schemas
from gatf.serve.atlas import chart
from gatf.serve.commands import run_gatf
from gatf.serve.describe import describe, describe_classes
from gatf.serve.exports import OpenFile
from gatf.serve.files import add_files, addresses
from gatf.serve.guard import Guard, client_of
from gatf.serve.limits import Limits, Problem, busy, not_possible, not_understood, too_large, too_slow
from gatf.serve.pictures import InMemory, checked_label, from_base64, read_multipart
from gatf.serve.studio import Options, Studio
from gatf.serve.updates import Update

SECONDS_BETWEEN_EVENTS = 0.1
MOST_ARRAYS = 100
MARGIN = 500
"""Values that a JSON body may have in addition."""
DESCRIPTION = 500_000.0
"""The bytes of a JSON body whose parsing takes as long as a description of the model."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": schemas.ProblemInfo, "description": "One sentence about what was wrong (RFC 9457)."}
}


def build(options: Options) -> tuple[FastAPI, Studio]:
    """The application and its parts."""
    studio = Studio(options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(studio.close)

    app = FastAPI(
        title="gatf", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, responses=PROBLEMS,
        description="A classifier that learns new classes without storing old images or vectors.",
    )  # fmt: skip
    _add_errors(app)
    _add_predictions(app, studio)
    _add_updates(app, studio)
    _add_changes(app, studio)
    _add_model(app, studio)
    _add_monitoring(app, studio)
    add_files(app, options.page)
    if options.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(options.origins), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )  # fmt: skip
    app.add_middleware(
        Guard, limits=options.limits, metrics=studio.metrics, token=options.token, origins=options.origins,
        public=addresses(options.page).__contains__,
    )  # fmt: skip
    return app, studio


# --- errors -----------------------------------------------------------------------------------------------------------


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        title = {404: "Not found", 405: "Method not allowed"}.get(error.status_code, "Refused")
        made = Problem(error.status_code, title, "the server has no such endpoint").response()
        made.headers.update(error.headers or {})
        return made

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return not_understood(_reasons(error.errors())).response()

    @app.exception_handler(ClientDisconnect)
    async def incomplete(request: Request, error: ClientDisconnect) -> Response:
        return Problem(400, "Incomplete", "the request ended early").response()


def _reasons(errors: Any) -> str:
    """The first wrong fields, without the values that were sent."""
    places = [".".join(str(part) for part in item["loc"])[:80] or "the body" for item in errors[:3]]
    return "; ".join(f"{place}: {item['msg'][:120]}" for place, item in zip(places, errors, strict=False))


def _parse(body: bytes, kind: type[BaseModel], items: int) -> Any:
    """A JSON body as `kind`. A body with more than `items` values is refused before it is parsed; a list counts as ten,
    because it takes as long."""
    if body.count(b",") + 10 * (body.count(b"[") + body.count(b"{")) > items + MARGIN:
        raise too_large(f"the JSON body has more than {items} values, where a list counts as ten")
    try:
        return kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise not_understood(_reasons(error.errors(include_url=False, include_input=False))) from None
    except (ValueError, RecursionError):
        raise not_understood("the body is not valid JSON") from None


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def _unsupported() -> Problem:
    return Problem(415, "Unsupported media type", "send multipart/form-data or application/json")


# --- predictions ------------------------------------------------------------------------------------------------------

IMAGES = {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}}
PREDICT = {"requestBody": schemas.body(schemas.PredictBody, IMAGES)}


def _add_predictions(app: FastAPI, studio: Studio) -> None:
    @app.post("/v1/predict", response_model=schemas.Answers, openapi_extra=PREDICT, tags=["predict"])
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=1000, description="Number of most likely classes to return.")] = 1,
        certificate: Annotated[bool, Query(description="Return which predictions Theorem 2 certifies.")] = False,
        unknown: Annotated[
            float | None, Query(gt=0, lt=1, description="Label images as unknown, at this rate of false rejections.")
        ] = None,
        explain: Annotated[bool, Query(description="Return the nearest classes and a position on the map.")] = False,
    ) -> Any:
        """Classify one or many images, sent as parts named `image` or as JSON, or vectors in JSON."""
        try:
            async with asyncio.timeout(studio.limits.seconds):
                given = await _images(request, studio)
        except TimeoutError:
            raise too_slow() from None
        found = await studio.predict(
            given, client_of(request.scope), top=top, certificate=certificate, unknown=unknown, explain=explain
        )
        return Response(json.dumps(found, ensure_ascii=False), media_type="application/json")


async def _images(request: Request, studio: Studio) -> list[bytes] | schemas.PredictBody:
    match _media(request):
        case "multipart/form-data":
            sink, turn = InMemory(studio.limits), studio.turn(client_of(request.scope))
            await read_multipart(request.headers["content-type"], request.stream(), sink, studio.limits, turn)
            return sink.images
        case "application/json":
            body = b"".join([piece async for piece in request.stream()])  # `request.body()` would keep it
            return await studio.decoders.requests.once(
                client_of(request.scope), len(body), lambda: _images_in_json(body, studio)
            )
    raise _unsupported()


def _images_in_json(body: bytes, studio: Studio) -> list[bytes] | schemas.PredictBody:
    limits, most = studio.limits, studio.limits.images
    if b'"vectors"' in body:
        studio.live.served().check_takes_vectors()
        most = limits.vector_numbers
    parsed: schemas.PredictBody = _parse(body, schemas.PredictBody, most)
    if bool(parsed.images) == bool(parsed.vectors):
        raise not_understood("give 'images', or for a model of vectors 'vectors'")
    if parsed.vectors:
        return parsed
    if len(parsed.images) > limits.images:
        raise too_large(f"a prediction has at most {limits.images} images")
    return [from_base64(text, limits) for text in parsed.images]


async def _answer(request: Request, studio: Studio, make: Callable[[], Any]) -> Response:
    """A description as JSON. Many clients that ask for one share a thread, which leaves time for predictions."""
    text = await studio.decoders.requests.once(
        client_of(request.scope), DESCRIPTION, lambda: json.dumps(make(), ensure_ascii=False)
    )
    return Response(text, media_type="application/json")


# --- updates ----------------------------------------------------------------------------------------------------------

LABELLED = {"label": {"type": "string", "description": "Class name of the images that follow."}, **IMAGES}
UPDATE = {"requestBody": schemas.body(schemas.UpdateBody, LABELLED)}


def _add_updates(app: FastAPI, studio: Studio) -> None:
    @app.post("/v1/updates", response_model=schemas.UpdateInfo, status_code=202, openapi_extra=UPDATE, tags=["updates"])
    async def start(
        request: Request,
        response: Response,
        adapt: Annotated[
            Literal["never", "auto", "always"] | None,
            Query(description="Whether to adapt a pretrained network; default: as the model file keeps it."),
        ] = None,
    ) -> Any:
        """Start an update from labelled images: parts named `label`, each before its parts named `image`, or JSON. It
        runs after the response; the old model is used until it is done. The images are deleted when it ends."""
        update, arriving = studio.updates.reserve()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(studio.limits.update_seconds) as deadline:
                update.stop_receiving = lambda: deadline.reschedule(loop.time())
                await _receive(request, arriving, studio.limits)
            labels = studio.labels_for(arriving.labels)
            if not labels:
                raise not_understood("the request has no image")
            await asyncio.to_thread(studio.updates.begin, update, arriving, labels, adapt)
        except BaseException as error:
            arriving.close()
            await asyncio.shield(asyncio.to_thread(studio.updates.discard, update))
            if update.state == "cancelled":
                raise not_possible("the update was cancelled while its images arrived") from None
            if isinstance(error, TimeoutError):
                raise too_slow() from None
            if isinstance(error, OSError):
                raise Problem(507, "No room", f"images cannot be stored ({error.strerror})") from None
            raise
        response.headers["location"] = f"/v1/updates/{update.id}"
        return update.description()

    @app.get("/v1/updates", response_model=schemas.UpdateList, tags=["updates"])
    async def several(request: Request) -> Any:
        """List the updates since the server started."""
        return await _answer(request, studio, lambda: {"updates": [update.description() for update in studio.updates]})

    @app.get("/v1/updates/{name}", response_model=schemas.UpdateInfo, tags=["updates"])
    async def one(request: Request, name: str) -> Any:
        """Get the state and progress of an update."""
        return await _answer(request, studio, lambda: studio.updates.get(name).description())

    @app.get("/v1/updates/{name}/events", response_class=StreamingResponse, tags=["updates"])
    async def events(name: str) -> Any:
        """Stream the state of an update as server-sent events until it has ended."""
        update = studio.updates.get(name)
        if studio.streams >= studio.limits.streams:
            raise busy("too many event streams are open")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_events(update, studio), media_type="text/event-stream", headers=headers)

    @app.delete("/v1/updates/{name}", response_model=schemas.UpdateInfo, status_code=202, tags=["updates"])
    async def cancel(name: str) -> Any:
        """Cancel an update. The model does not change, unless the update has just been committed."""
        update = studio.updates.get(name)
        studio.updates.cancel(update)
        return update.description()


VECTORS = {"requestBody": schemas.body(schemas.LearnBody, None)}
FORGET = {"requestBody": schemas.body(schemas.ForgetBody, None)}
RENAME = {"requestBody": schemas.body(schemas.RenameBody, None)}
FILE = {"requestBody": schemas.body(None, None)}


def _add_changes(app: FastAPI, studio: Studio) -> None:
    """What the commands of these names do, each as an update that has ended when the response arrives."""

    async def change(command: str, *options: str, **given: Any) -> Any:
        return (await asyncio.to_thread(studio.updates.change, command, *options, **given)).description()

    async def alone(request: Request, body: bytes, read: Callable[[], Any]) -> Any:
        return await studio.decoders.requests.once(client_of(request.scope), len(body), read)

    @app.post("/v1/learn", response_model=schemas.UpdateInfo, openapi_extra=VECTORS, tags=["updates"])
    async def learn(request: Request) -> Any:
        """Learn labelled vectors: JSON, or the content of an .npz file as application/octet-stream."""
        body, encoder = await request.body(), None
        if studio.live.current is not None:
            studio.live.current.check_takes_vectors()
        if _media(request) == "application/json":
            body, encoder = await alone(request, body, lambda: _archive(body, studio.limits))
        else:
            await alone(request, body, lambda: _check_archive(request, body, studio.limits))
        named = [] if encoder is None else [f"--encoder={encoder}"]
        keep = f"--keep={studio.options.keep}"
        return await change("learn", "--restart", keep, *named, content=body, name="vectors.npz")

    @app.post("/v1/upgrade", response_model=schemas.UpdateInfo, openapi_extra=FILE, tags=["updates"])
    async def upgrade(request: Request, encoder: schemas.Name | None = None, force: bool = False) -> Any:
        """Move a model of vectors to another encoder by pairs: the content of an .npz file with `old` and `new`."""
        body = await request.body()
        await alone(request, body, lambda: _check_archive(request, body, studio.limits))
        options = [*([] if encoder is None else [f"--encoder={encoder}"]), *(["--force"] if force else [])]
        return await change("upgrade", *options, content=body, name="pairs.npz")

    @app.post("/v1/merge", response_model=schemas.UpdateInfo, openapi_extra=FILE, tags=["updates"])
    async def merge(request: Request) -> Any:
        """Add what another model of the same encoder knows: the content of its file."""
        studio.live.served()
        if _media(request) != "application/octet-stream":
            raise _unsupported()
        out = f"--out={studio.live.path}"
        return await change("merge", out, content=await request.body(), name="other.gatf")

    @app.post("/v1/forget", response_model=schemas.UpdateInfo, openapi_extra=FORGET, tags=["updates"])
    async def forget(request: Request) -> Any:
        """Remove a class. The message reports what remains of it."""
        studio.live.served()
        return await change("forget", words=[str(_parse(await request.body(), schemas.ForgetBody, 1).label)])

    @app.post("/v1/rename", response_model=schemas.UpdateInfo, openapi_extra=RENAME, tags=["updates"])
    async def rename(request: Request) -> Any:
        """Rename a class."""
        studio.live.served()
        given: schemas.RenameBody = _parse(await request.body(), schemas.RenameBody, 2)
        return await change("rename", words=[given.label, given.name])


def _archive(body: bytes, limits: Limits) -> tuple[bytes, str | None]:
    """A body of vectors and labels as the content of an .npz file, and the encoder."""
    parsed: schemas.LearnBody = _parse(body, schemas.LearnBody, limits.vector_numbers)
    buffer = io.BytesIO()
    try:
        np.savez(buffer, embedding=as_vectors(parsed.vectors).numpy(), label=as_labels(parsed.labels))
    except UserError as error:
        raise not_understood(str(error)) from None
    return buffer.getvalue(), parsed.encoder


def _check_archive(request: Request, body: bytes, limits: Limits) -> None:
    """Refuse what is no archive, or unpacks to far more than it is."""
    if _media(request) != "application/octet-stream":
        raise _unsupported()
    if body.count(b"PK\1\2") > MOST_ARRAYS:
        raise too_large(f"the .npz file has more than {MOST_ARRAYS} arrays")
    try:
        size = sum(member.file_size for member in zipfile.ZipFile(io.BytesIO(body)).infolist())
    except Exception:  # the parser of zips raises nearly anything
        raise not_understood("the body is no .npz file") from None
    if size > 4 * limits.request_bytes:
        raise too_large(f"the arrays have {size} bytes, and at most {4 * limits.request_bytes} are accepted")


async def _receive(request: Request, arriving: Any, limits: Limits) -> None:
    match _media(request):
        case "multipart/form-data":
            await read_multipart(request.headers["content-type"], request.stream(), arriving, limits)
        case "application/json":
            await asyncio.to_thread(_store_json, await request.body(), arriving, limits)
        case _:
            raise _unsupported()


def _store_json(body: bytes, arriving: Any, limits: Limits) -> None:
    parsed: schemas.UpdateBody = _parse(body, schemas.UpdateBody, 24 * limits.classes + limits.update_images)
    for each in parsed.classes:
        arriving.label(checked_label(each.label))
        for text in each.images:
            arriving.put(from_base64(text, limits))


async def _events(update: Update, studio: Studio) -> AsyncIterator[str]:
    seen = -1
    studio.streams += 1
    try:
        while True:
            version, ended = update.version, update.ended
            if version != seen:
                seen = version
                yield f"event: {'end' if ended else 'progress'}\ndata: {json.dumps(update.description())}\n\n"
            if ended or studio.stopping():
                return
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
    finally:
        studio.streams -= 1


# --- the model --------------------------------------------------------------------------------------------------------


def _add_model(app: FastAPI, studio: Studio) -> None:
    def describe_model() -> dict[str, Any]:
        return describe(studio.live.served(), studio.live.path.name, studio.updates.store.versions())

    @app.get("/v1/classes", response_model=schemas.Classes, tags=["model"])
    async def classes(request: Request) -> Any:
        """List the classes in the order in which they were learnt."""
        return await _answer(request, studio, lambda: describe_classes(studio.live.served()))

    @app.get("/v1/model", response_model=schemas.ModelInfo, tags=["model"])
    async def model(request: Request) -> Any:
        """Describe the model: its contents, its settings and its updates."""
        return await _answer(request, studio, describe_model)

    @app.get("/v1/map", response_model=schemas.Chart, tags=["model"])
    async def chart_of_classes(request: Request) -> Any:
        """Get the class means on their principal plane, now and before the last update."""

        def drawn() -> Any:
            served = studio.live.served()
            try:
                return chart(served.model, served.plane, studio.load_before())
            except UserError as error:
                raise not_possible(str(error)) from None

        return await _answer(request, studio, drawn)

    @app.post("/v1/rollback", response_model=schemas.RolledBack, tags=["model"])
    async def rollback() -> Any:
        """Undo the last update."""
        return {"updates": await asyncio.to_thread(studio.updates.rollback)}

    @app.get("/v1/model/file", response_class=Response, tags=["model"])
    async def download(request: Request) -> Any:
        """Download the model file."""
        studio.live.served()
        return await _download(request, studio, lambda: OpenFile(studio.live.path, studio.live.path.name))

    @app.get("/v1/model/onnx", response_class=Response, tags=["model"])
    async def onnx(request: Request) -> Any:
        """Download the model as ONNX, for prediction without PyTorch. It is exported once per version of the model."""
        digest, path, seconds = studio.live.served().digest, studio.live.path, studio.limits.export_seconds

        def write(target: Path) -> None:
            run_gatf("export", path, target, failed="the export to ONNX failed", seconds=seconds)

        return await _download(request, studio, lambda: studio.exports.get(f"{path.stem}.onnx", digest, write))

    @app.get("/v1/model/report", response_class=Response, tags=["model"])
    async def report(request: Request) -> Any:
        """Download a report about the model as one HTML file."""
        from gatf.serve.report import write_model_report

        served, path = studio.live.served(), studio.live.path

        def write(target: Path) -> None:
            write_model_report(target, served, describe_model(), studio.load_before())

        def export() -> OpenFile:
            return studio.exports.get(f"{path.stem}.html", f"{served.digest} {studio.updates.store.versions()}", write)

        return await _download(request, studio, export)


async def _download(request: Request, studio: Studio, make: Callable[[], OpenFile]) -> OpenFile:
    """The file, which counts as a download until it is sent."""
    client = client_of(request.scope)
    studio.downloads.take(1, client)
    try:
        found = await asyncio.to_thread(make)
    except BaseException:
        studio.downloads.give_back(1, client)
        raise
    found.release = lambda: studio.downloads.give_back(1, client)
    return found


# --- monitoring -------------------------------------------------------------------------------------------------------


def _add_monitoring(app: FastAPI, studio: Studio) -> None:
    @app.get("/healthz", response_model=schemas.Health, tags=["monitoring"])
    async def health() -> Any:
        """Check that the server runs."""
        return {"status": "ok", "ready": studio.live.current is not None}

    @app.get("/metrics", response_class=PlainTextResponse, tags=["monitoring"])
    async def metrics() -> Any:
        """Get counters and times in the format of Prometheus."""
        served, updates = studio.live.current, studio.updates
        found = [
            ("gatf_images_total", "counter", "Images classified.", studio.batcher.images),
            ("gatf_batches_total", "counter", "Forward passes.", studio.batcher.batches),
            ("gatf_queue_images", "gauge", "Images that wait.", studio.batcher.waiting_images),
            ("gatf_model_classes", "gauge", "Classes of the model.", len(served.model.labels) if served else 0),
            ("gatf_model_bytes", "gauge", "Size of the model file.", served.bytes if served else 0),
            ("gatf_model_reloads_total", "counter", "Models reloaded from disk.", studio.live.reloads),
            ("gatf_update_running", "gauge", "Whether an update is in progress.", float(updates.active is not None)),
            *(
                (f"gatf_updates_{state}_total", "counter", f"Updates that ended: {state}.", count)
                for state, count in updates.counts.items()
            ),
        ]
        return PlainTextResponse(studio.metrics.text(found), media_type="text/plain; version=0.0.4; charset=utf-8")
