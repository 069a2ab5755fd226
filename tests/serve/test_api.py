"""The addresses of the server, asked by a real client."""

import asyncio
import base64
import io
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gatf.errors import UserError
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.store import Store
from gatf.model import file as model_file
from gatf.serve.atlas import chart
from gatf.serve.commands import run_gatf
from gatf.serve.exports import OpenFile
from gatf.serve.limits import Problem
from gatf.serve.live import Live, Served
from gatf.serve.studio import Options, Studio

from .conftest import png
from .server import Client, forward_that_waits, serving, until

Digits = Callable[[str, int], list[bytes]]


@pytest.fixture(scope="module")
def running(shop: Path) -> Iterator[tuple[Client, Studio]]:
    with serving(Options(shop)) as found:
        yield found


@pytest.fixture(scope="module")
def client(running: tuple[Client, Studio]) -> Client:
    return running[0]


def test_predictions_are_those_of_the_classifier(client: Client, shop: Path, digits: Digits) -> None:
    pictures = [*digits("d1", 5), *digits("d7", 5)]
    reply = client.send("/v1/predict?top=3&certificate=true&unknown=0.1", [("image", data) for data in pictures])
    assert reply.status == 200
    known = IncrementalClassifier.load(shop).set_params(unknown=0.1)
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in pictures])
    expected = known.predictions(pixels, certificate=True)
    answers = reply.json["answers"]
    assert [answer["label"] or "unknown" for answer in answers] == expected.labels.tolist()
    assert [answer["unknown"] for answer in answers] == (expected.labels == "unknown").tolist()
    assert [answer["certified"] for answer in answers] == [None] * len(answers), "a first fit transports nothing"
    by_name = dict(zip(known.classes_, expected.probabilities[0], strict=True))
    assert {item["label"]: item["probability"] for item in answers[0]["top"]} == pytest.approx(by_name, abs=1e-6)
    assert answers[0]["top"][0]["label"] == max(by_name, key=lambda name: by_name[name])


def test_json_and_multipart_say_the_same(client: Client, digits: Digits) -> None:
    pictures = digits("d2", 3)
    sent = client.send("/v1/predict", [("image", data) for data in pictures]).json
    by_json = client.send_json("/v1/predict", {"images": [base64.b64encode(data).decode() for data in pictures]}).json
    assert sent == by_json
    assert [len(answer["top"]) for answer in sent["answers"]] == [1, 1, 1]


def test_why_names_the_nearest_class_and_a_place_on_the_map(client: Client, digits: Digits) -> None:
    (answer,) = client.send("/v1/predict?explain=true", [("image", digits("d0", 1)[0])]).json["answers"]
    nearest = [item["distance"] for item in answer["why"]["nearest"]]
    assert nearest == sorted(nearest)
    places = {item["label"]: np.array(item["place"]) for item in client.get("/v1/map").json["classes"]}
    gaps = {label: np.linalg.norm(place - answer["why"]["point"]) for label, place in places.items()}
    assert min(gaps, key=lambda label: gaps[label]) == answer["why"]["nearest"][0]["label"] == "d0"


def test_what_waits_when_a_batch_ends_forms_the_next(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    looking, go_on = forward_that_waits(studio, monkeypatch)
    pictures = digits("d0", 4) + digits("d1", 4)
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        found[number] = client.send("/v1/predict", [("image", pictures[number])]).json["answers"][0]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    before = studio.batcher.batches, studio.batcher.images
    threads[0].start()
    assert looking.wait(60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: studio.batcher.waiting_images == 7)
    go_on.set()
    for thread in threads:
        thread.join()
    assert (studio.batcher.batches - before[0], studio.batcher.images - before[1]) == (2, 8)
    alone = client.send("/v1/predict", [("image", data) for data in pictures]).json["answers"]
    assert [found[number]["label"] for number in range(8)] == [answer["label"] for answer in alone]
    text = client.get("/metrics").body.decode()
    assert f"gatf_images_total {studio.batcher.images}\n" in text


def test_the_model_is_described(client: Client, shop: Path) -> None:
    model = client.get("/v1/model").json
    assert model["name"] == "shop.gatf"
    assert model["bytes"] == shop.stat().st_size == sum(item["bytes"] for item in model["kept"])
    assert (model["classes"], model["shape"], model["versions"]) == (3, [1, 8, 8], [])
    assert model["history"][0]["text"].startswith("First fit: added 3 classes (d0, d1, d2)")
    classes = client.get("/v1/classes").json["classes"]
    assert [(item["label"], item["since"]) for item in classes] == [("d0", 0), ("d1", 0), ("d2", 0)]
    assert {item["similar"] for item in classes} <= {"d0", "d1", "d2"}
    assert all(item["accuracy"] is None or 0 <= item["accuracy"] <= 100 for item in classes)
    assert all(item["bytes"] == model["history"][0]["bytes_per_class"] for item in classes)


def test_health_and_metrics(client: Client) -> None:
    assert client.get("/healthz").json == {"status": "ok", "ready": True}
    client.get("/nowhere/that/a/client/chose")
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    assert "gatf_model_classes 3\n" in text
    assert 'gatf_requests_total{route="/healthz",method="GET",status="200"}' in text
    assert "that/a/client" not in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0


def test_the_model_can_be_taken_away(client: Client, shop: Path) -> None:
    reply = client.get("/v1/model/file")
    assert reply.body == shop.read_bytes()
    assert 'filename="shop.gatf"' in reply.headers["content-disposition"]


def test_a_download_is_of_one_file_although_another_takes_its_place(shop: Path, tmp_path: Path) -> None:
    path = tmp_path / "live.gatf"
    path.write_bytes(shop.read_bytes())
    response = OpenFile(path, path.name)
    shorter = tmp_path / "other"
    shorter.write_bytes(b"short")
    shorter.replace(path)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(response({}, None, send))
    assert b"".join(message.get("body", b"") for message in sent) == shop.read_bytes()
    assert (b"content-length", str(shop.stat().st_size).encode()) in sent[0]["headers"]


def test_onnx_and_the_report_are_exported_once_per_model(
    running: tuple[Client, Studio], shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    calls: list[Path] = []

    def export(command: list[str], **options: Any) -> Any:
        assert command[1:5] == ["-m", "gatf", "export", str(shop)]
        assert options["timeout"] == studio.limits.export_seconds
        calls.append(Path(command[5]))
        calls[-1].write_bytes(b"a graph")
        assert client.get("/v1/model/onnx").status == 429  # one at a time
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("gatf.serve.commands.subprocess.run", export)
    for _ in range(2):
        reply = client.get("/v1/model/onnx")
        assert reply.body == b"a graph"
        assert 'filename="shop.onnx"' in reply.headers["content-disposition"]
    assert len(calls) == 1
    assert calls[0].parent.parent == studio.updates.folder
    report = client.get("/v1/model/report")
    assert 'filename="shop.html"' in report.headers["content-disposition"]
    for words in ("<!doctype html>", "shop.gatf: 3 classes", "First fit: added 3 classes"):
        assert words in report.body.decode()
    studio.exports.close()
    assert not calls[0].parent.exists()


def test_exports_of_a_server_that_was_killed_are_removed(shop: Path, tmp_path: Path) -> None:
    model = tmp_path / "shop.gatf"
    model.write_bytes(shop.read_bytes())
    left = tmp_path / "shop.gatf.updates" / "gatf-12345678"
    left.mkdir(parents=True)
    (left / "shop.onnx").write_bytes(b"a graph")
    with serving(Options(model)):
        assert not left.exists()


def test_an_export_that_takes_too_long_is_ended(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr("gatf.serve.commands.subprocess.run", slow)
    with pytest.raises(Problem, match="more than 7 seconds") as found:
        run_gatf("export", shop, failed="the export failed", seconds=7)
    assert found.value.status == 503


def test_numbers_of_updates_are_right_after_a_hundred(shop: Path) -> None:
    model = model_file.load(shop)
    last = model.history[-1]
    long = replace(model, history=(last, last.model_copy(update={"number": 150, "added": ("d2",)})))
    earlier = replace(model, history=(last, last.model_copy(update={"number": 149, "added": ()})))
    first = replace(model, history=(last.model_copy(update={"added": ("d0",)}), long.history[1]))
    with serving(Options(shop)) as (client, studio):
        studio.live.current = Served(first, "digest", shop.stat().st_size)
        assert client.get("/v1/model").json["updates"] == 150
        since = {item["label"]: item["since"] for item in client.get("/v1/classes").json["classes"]}
        assert since == {"d0": 0, "d1": None, "d2": 150}
        plane = studio.live.served().plane
    assert chart(long, plane, earlier)["moved"]
    assert not chart(long, plane, model)["moved"]


def test_a_model_whose_classes_are_numbers_takes_numbers(shop: Path) -> None:
    studio = Studio(Options(shop))
    numbered = replace(model_file.load(shop), labels=(0, 1, 2))
    studio.live.current = Served(numbered, "digest", 1)
    assert studio.labels_for(["3", "3", "1"]) == [3, 3, 1]
    with pytest.raises(Problem, match="are numbers"):
        studio.labels_for(["3", "three"])
    studio.live.current = None
    with pytest.raises(Problem, match="at least two classes"):
        studio.labels_for(["a", "a"])


def test_the_documentation_needs_no_other_machine(client: Client) -> None:
    page = client.get("/docs").body.decode()
    assert "http://" not in page
    assert "https://" not in page
    paths = json.loads(client.get("/openapi.json").body)["paths"]
    assert {"/v1/predict", "/v1/updates", "/v1/updates/{name}", "/v1/classes", "/v1/model", "/healthz"} <= set(paths)
    assert set(paths["/v1/predict"]["post"]["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert client.get("/").status == 404  # the page is the studio's


def test_a_replaced_model_drops_no_request(
    shop: Path, tmp_path: Path, digits: Digits, digit_images: tuple[np.ndarray, np.ndarray]
) -> None:
    """As `gatf learn` replaces it: whole, by rename, with more classes."""
    path = tmp_path / "live.gatf"
    path.write_bytes(shop.read_bytes())
    images, labels = digit_images
    grown = IncrementalClassifier.load(path).set_params(epochs=1)
    grown.partial_fit(images[labels == "d3"][:40], labels[labels == "d3"][:40])
    picture = digits("d0", 1)[0]
    statuses: list[int] = []
    digests: list[str] = []
    ending = threading.Event()
    with serving(Options(path)) as (client, studio):

        def ask() -> None:
            while not ending.is_set():
                reply = client.send("/v1/predict", [("image", picture)])
                statuses.append(reply.status)
                digests.append(reply.json["model"])

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        old = client.get("/v1/model").json["digest"]
        Store(path).commit(grown.model_, keep=1)
        until(lambda: len(client.get("/v1/classes").json["classes"]) == 4)
        seen = len(digests)
        until(lambda: len(digests) >= seen + 6)
        ending.set()
        for asker in askers:
            asker.join()
        assert studio.live.reloads == 1
        assert client.get("/v1/map").json["moved"]  # the version before was kept
    assert set(statuses) == {200}
    assert digests[0] == old
    assert digests[-1] != old
    assert len(set(digests)) == 2


def test_a_damaged_model_does_not_take_the_place_of_a_good_one(shop: Path, tmp_path: Path, digits: Digits) -> None:
    path = tmp_path / "live.gatf"
    path.write_bytes(shop.read_bytes())
    with serving(Options(path)) as (client, studio):
        path.write_bytes(b"not a model")
        studio.live.refresh()
        assert client.send("/v1/predict", [("image", digits("d0", 1)[0])]).status == 200
        assert client.get("/v1/model").json["classes"] == 3


def test_a_model_that_could_not_be_loaded_is_tried_again(
    shop: Path, tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "live.gatf", tmp_path / "new"
    path.write_bytes(shop.read_bytes())
    new.write_bytes(shop.read_bytes())
    load, failures = model_file.load, [OSError("no memory"), UserError("no descriptors")]

    def unreliable(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return load(*given, **more)

    with serving(Options(path)) as (_, studio):
        monkeypatch.setattr("gatf.serve.live.model_file.load", unreliable)
        new.replace(path)
        until(lambda: studio.live.reloads == 1)
        assert failures == []


def test_predictions_continue_while_a_model_is_loaded(
    shop: Path, tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "live.gatf", tmp_path / "new"
    path.write_bytes(shop.read_bytes())
    new.write_bytes(shop.read_bytes())
    load, loading, go_on = model_file.load, threading.Event(), threading.Event()

    def slow(*given: Any, **more: Any) -> Any:
        loading.set()
        assert go_on.wait(60)
        return load(*given, **more)

    with serving(Options(path)) as (client, studio):
        monkeypatch.setattr("gatf.serve.live.model_file.load", slow)
        new.replace(path)
        assert loading.wait(60)
        assert client.send("/v1/predict", [("image", digits("d0", 1)[0])]).status == 200
        go_on.set()
        until(lambda: studio.live.reloads == 1)


def test_a_pipe_in_place_of_the_model_is_refused(shop: Path, tmp_path: Path) -> None:
    path = tmp_path / "live.gatf"
    path.write_bytes(shop.read_bytes())
    with serving(Options(path)) as (client, studio):
        path.unlink()
        os.mkfifo(path)
        studio.live.refresh()
        assert client.get("/v1/model").json["classes"] == 3
    with pytest.raises(UserError, match="not a regular file"):
        Live(path, "cpu").open()


@pytest.mark.parametrize("side", [8, 21])
def test_colour_images_of_any_size_are_read(client: Client, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
    reply: Any = client.send("/v1/predict", [("image", png(noise))])
    assert reply.status == 200
