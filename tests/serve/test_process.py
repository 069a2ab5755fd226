"""`gatf serve` as a process: it answers while it learns, and neither SIGTERM nor kill -9 loses anything."""

import contextlib
import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatf.data.encoded import Files
from gatf.data.inputs import ImageInput
from gatf.incremental.store import Store
from gatf.incremental.update_file import update_model_file
from gatf.io.events import FeaturesExtracted, TaskStart
from gatf.model import file as model_file
from gatf.serve.limits import Limits
from gatf.serve.studio import Options
from gatf.serve.updates import Update, Updates
from gatf.serve.worker import ProgressReporter

from .server import Client, form, serving, until

Digits = Callable[[str, int], list[bytes]]
EPOCHS = 60
PARAMETERS = {"epochs": EPOCHS, "device": "cpu", "settings": {"method.samples": 100}}
SETTINGS = ("--epochs", str(EPOCHS), "--set", "method.samples=100", "--device", "cpu")


@contextmanager
def process(*arguments: Any) -> Iterator[tuple[Client, "subprocess.Popen[str]"]]:
    """The server, from the line that says where it is."""
    started = subprocess.Popen(
        [sys.executable, "-m", "gatf", "serve", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line.startswith("gatf serve: http://127.0.0.1:"), line
        yield Client(int(line.rsplit(":", 1)[1])), started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


def first_event(client: Client, name: str) -> dict[str, Any]:
    """The first server-sent event that tells of training."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=120)
    connection.request("GET", f"/v1/updates/{name}/events")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    try:
        for line in response:
            if line.startswith(b"data: "):
                reported: dict[str, Any] = json.loads(line[6:])
                if reported["progress"]["epoch"]:
                    return reported
    finally:
        connection.close()
    raise AssertionError("the stream ended")


def learners(server: int) -> list[int]:
    """The processes that a server has started."""
    found = Path(f"/proc/{server}/task").glob("*/children")
    return [int(process) for file in found for process in file.read_text().split()]


@contextmanager
def half_sent(client: Client, parts: Any) -> Iterator[Callable[[], int]]:
    """A prediction of which half has arrived; call to send the rest and hear the status."""
    body, kind = form(parts)
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: {kind}\r\n"
    connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:50])
    until(lambda: b"gatf_requests" in client.get("/metrics").body)  # a later request has been answered: this has begun

    def rest() -> int:
        until(lambda: not listens(client))
        connection.sendall(body[50:])
        return int(connection.recv(4096).split()[1])

    yield rest
    connection.close()


def listens(client: Client) -> bool:
    try:
        socket.create_connection(("127.0.0.1", client.port), timeout=60).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_an_update_survives_sigterm_and_kill_and_ends_as_if_nothing_had_been(
    taught: Path, tmp_path: Path, digits: Digits
) -> None:
    shop = tmp_path / "shop.gatf"
    before = taught.read_bytes()
    shop.write_bytes(before)
    pictures = digits("d4", 30)
    ask = [("image", digits("d0", 1)[0])]
    workspace, folder = tmp_path / "shop.gatf.learning", tmp_path / "shop.gatf.updates"
    with process(shop, *SETTINGS) as (client, server):
        old = client.send("/v1/predict", ask).json
        reply = client.send("/v1/updates", [("label", b"d4"), *(("image", data) for data in pictures)])
        assert reply.status == 202
        name = reply.json["id"]
        assert reply.headers["location"] == f"/v1/updates/{name}"
        stored = sorted(folder.rglob("pictures/*"))
        assert [file.name for file in stored] == [f"{number:06d}" for number in range(30)]
        assert {file.stat().st_mode & 0o077 for file in (*stored, folder)} == {0}
        kept = tmp_path / "kept"
        shutil.copytree(stored[0].parent, kept)
        reported = first_event(client, name)
        assert reported["state"] == "running"
        assert reported["progress"]["epochs"] == EPOCHS
        until((workspace / "state.safetensors").exists)
        learner = learners(server.pid)[0]
        os.kill(learner, signal.SIGSTOP)  # it must not be done before all has been looked at
        assert client.send("/v1/predict", ask).json == old  # the old model goes on answering
        second = client.send("/v1/updates", [("label", b"d5"), ("image", pictures[0])])
        assert (second.status, f"/v1/updates/{name}" in second.json["detail"]) == (409, True)
        assert client("POST", "/v1/rollback", b"").status == 409
        with half_sent(client, ask) as rest:
            server.send_signal(signal.SIGTERM)
            assert rest() == 200  # what has begun is finished
        os.kill(learner, signal.SIGCONT)
        server.wait(60)
    assert shop.read_bytes() == before
    assert (folder / name / "job.json").is_file()  # what was begun is there to be taken up
    with process(shop, *SETTINGS) as (client, server):
        update = client.get(f"/v1/updates/{name}").json
        assert (update["state"], update["resumed"], update["images"]) == ("running", True, 30)
        assert client.send("/v1/predict", ask).json == old
        server.kill()
        server.wait()
    assert shop.read_bytes() == before
    (folder / "half-arrived" / "pictures").mkdir(parents=True)
    with contextlib.ExitStack() as another, serving(Options(shop, parameters=PARAMETERS)) as (client, _):
        another.enter_context(Store(shop).writing())  # as the killed server's process does while it ends
        assert not (folder / "half-arrived").exists()
        until(lambda: client.get(f"/v1/updates/{name}").json["progress"]["phase"] == "waiting")
        another.close()
        update = client.ended(name)
        assert (update["state"], update["pictures_deleted"]) == ("done", True)
        assert update["message"].startswith("Update 1: added 1 class (d4), from 27 images")
        assert [file.name for file in folder.iterdir()] == ["lock"]
        answer = client.send("/v1/predict", ask).json
        assert answer["model"] != old["model"]
        assert [item["label"] for item in client.get("/v1/classes").json["classes"]] == ["d0", "d1", "d2", "d4"]
        assert client.get("/v1/model").json["versions"] == [0]
        cancelled = client.send("/v1/updates", [("label", b"d5"), *(("image", data) for data in pictures)]).json["id"]
        assert client("DELETE", f"/v1/updates/{cancelled}").status == 202
        assert client.ended(cancelled)["state"] == "cancelled"
        assert [file.name for file in folder.iterdir()] == ["lock"]
        assert client.get("/v1/model").json["digest"] == answer["model"]
        whole = model_file.load(shop)
        assert client("POST", "/v1/rollback", b"").json == {"updates": 0}
        assert client.send("/v1/predict", ask).json == old
        assert client("POST", "/v1/rollback", b"").status == 409  # no older version is there
    assert not workspace.exists()
    assert shop.read_bytes() == before
    again = tmp_path / "again.gatf"
    again.write_bytes(before)
    given = ImageInput(Files(tuple(str(file) for file in sorted(kept.iterdir()))))
    update_model_file(again, kept, images=(given, np.array(["d4"] * 30)), parameters=PARAMETERS)
    expected = model_file.load(again).method.state_dict()
    assert all(value.equal(expected[name]) for name, value in whole.method.state_dict().items())


def stand_in(
    monkeypatch: pytest.MonkeyPatch, updates: Updates, ends: list[Callable[[], tuple[int, dict[str, Any]]]]
) -> None:
    """In place of the process that learns: each call says how it ended."""
    monkeypatch.setattr(updates, "_run", lambda update: ends.pop(0)())


def grown(shop: Path, *, job: str | None = None) -> None:
    """The model gains an update, as if a process had committed it."""
    model = model_file.load(shop)
    record = model.history[-1].model_copy(update={"number": model.history[-1].number + 1, "added": (), "job": job})
    Store(shop).commit(replace(model, history=(*model.history, record)), 1)


def test_a_process_that_is_killed_is_started_again_and_at_last_given_up(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = tmp_path / "shop.gatf"
    shop.write_bytes(taught.read_bytes())
    updates = Updates(shop, parameters={}, keep=1, limits=Limits(), refresh=lambda: None)

    def killed() -> tuple[int, dict[str, Any]]:
        return -signal.SIGKILL, {}

    def done() -> tuple[int, dict[str, Any]]:
        grown(shop, job="one")
        return 0, {"kind": "done", "left_out": 2}

    def mistaken() -> tuple[int, dict[str, Any]]:
        return 2, {"kind": "mistake", "text": f"{tmp_path}/shop.gatf is not to be had"}

    for name, ends, state in (
        ("one", [killed, done], "done"), ("two", [killed] * 3, "failed"),
        ("three", [lambda: (1, {})], "failed"), ("four", [mistaken], "failed"),
    ):  # fmt: skip
        update = Update(name, "running")
        (updates.folder / name / "pictures").mkdir(parents=True)
        stand_in(monkeypatch, updates, ends)
        updates._follow(update)
        assert (update.state, update.pictures_deleted, ends) == (state, True, [])
    assert update.message == "shop.gatf is not to be had"
    assert updates.counts == {"done": 1, "failed": 3, "cancelled": 0, "interrupted": 0}


@pytest.mark.parametrize(
    ("asked", "code", "state"), [("cancel", -signal.SIGTERM, "cancelled"), (None, 1, "failed"), (None, 0, "failed")]
)
def test_an_update_is_not_done_because_another_process_committed(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any, code: int, state: str
) -> None:
    shop = tmp_path / "shop.gatf"
    shop.write_bytes(taught.read_bytes())
    updates = Updates(shop, parameters={}, keep=1, limits=Limits(), refresh=lambda: None)

    def outrun() -> tuple[int, dict[str, Any]]:
        grown(shop)
        updates._asked = asked
        return code, {}

    stand_in(monkeypatch, updates, [outrun])
    update = Update("one", "running")
    (updates.folder / "one" / "pictures").mkdir(parents=True)
    updates._follow(update)
    assert update.state == state
    assert update.pictures_deleted == (code != 0)  # who says it is done, and is not, has its images kept


def test_an_update_that_was_just_done_is_not_done_again_by_the_next_server(
    taught: Path, tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with the new model in place, before anything was tidied up; or while the next server already waited."""
    shop = tmp_path / "shop.gatf"
    shop.write_bytes(taught.read_bytes())
    place = tmp_path / "shop.gatf.updates" / "one"
    (place / "pictures").mkdir(parents=True)
    for number, data in enumerate(digits("d4", 6)):
        (place / "pictures" / f"{number:06d}").write_bytes(data)
    job = {"model": str(shop), "labels": ["d4"] * 6, "parameters": {"epochs": 1, "device": "cpu"}, "keep": 1}
    (place / "job.json").write_text(json.dumps(job))
    given = ImageInput(Files(tuple(str(file) for file in sorted((place / "pictures").iterdir()))))

    def learn() -> None:
        update_model_file(
            shop, place / "pictures", images=(given, np.array(job["labels"])), parameters=job["parameters"],
            request=place / "job.json",
        )  # fmt: skip

    with monkeypatch.context() as dying:
        dying.setattr(Store, "forget_plan", lambda store: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            learn()
    learnt = shop.read_bytes()
    assert learnt != taught.read_bytes()
    learn()  # as the process of a server that had read the job before it was removed
    updates = Updates(shop, parameters={}, keep=1, limits=Limits(), refresh=lambda: None)
    updates.open()
    assert updates.active is None
    updates.close()
    assert shop.read_bytes() == learnt
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shop.gatf", "shop.gatf.v0"]


def test_a_process_whose_server_has_ended_can_still_report() -> None:
    read, write = os.pipe()
    reporter = ProgressReporter(os.fdopen(write, "w"))
    reporter.report("progress", epoch=1)
    assert os.read(read, 100) == b'{"kind": "progress", "epoch": 1}\n'
    os.close(read)
    reporter.report("progress", epoch=2)
    with contextlib.suppress(BrokenPipeError):
        reporter.out.close()


def test_feature_extraction_reports_its_share_and_the_time_left() -> None:
    out = io.StringIO()
    reporter = ProgressReporter(out)
    reporter(TaskStart(task=0, classes=2, images=200, steps=0))
    for images in (0, 50):
        reporter(FeaturesExtracted(task=0, images=images, of=200))
    start, quarter = (json.loads(line) for line in out.getvalue().splitlines())
    assert (start["share"], start["left"], quarter["phase"], quarter["share"]) == (0, None, "features", 0.25)
    assert quarter["left"] >= 0


@pytest.mark.parametrize(("adapt", "used"), [(None, "never"), ("auto", "auto")])
def test_a_request_for_an_update_may_choose_whether_to_adapt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapt: str | None, used: str
) -> None:
    monkeypatch.setattr(Updates, "_start", lambda self, update: None)
    updates = Updates(
        tmp_path / "shop.gatf", parameters={"adapt": "never"}, keep=1, limits=Limits(), refresh=lambda: None
    )
    updates.open()
    update, arriving = updates.reserve()
    updates.begin(update, arriving, ["cup"], adapt)
    job = json.loads((tmp_path / "shop.gatf.updates" / update.id / "job.json").read_text())
    assert job["parameters"] == {"adapt": used}


def test_without_the_extra_one_sentence_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gatf.cli import app
    from gatf.errors import UserError

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    outcome = CliRunner().invoke(app, ["serve", str(tmp_path / "shop.gatf")])
    assert isinstance(outcome.exception, UserError)
    assert str(outcome.exception) == "this needs 'uvicorn': pip install 'gatf-cil[studio]'"


def test_another_address_without_a_token_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from gatf.cli import app

    monkeypatch.delenv("GATF_TOKEN", raising=False)
    outcome = CliRunner().invoke(app, ["studio", str(tmp_path / "shop.gatf"), "--host", "0.0.0.0"])
    assert "a token is needed" in str(outcome.exception)


def test_the_image_does_not_run_as_root() -> None:
    lines = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["gatf"]
    last = [number for number, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))][-1]
    assert lines.index("USER gatf") > last
    assert any(line.startswith('ENTRYPOINT ["gatf", "serve", "--host"') for line in lines)
