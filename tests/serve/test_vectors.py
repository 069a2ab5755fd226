"""A server whose model classifies vectors."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gatf import EmbeddingClassifier
from gatf.cli import app
from gatf.errors import UserError
from gatf.serve.commands import without_folders
from gatf.serve.limits import not_possible
from gatf.serve.studio import Options

from .server import Client, serving

DIM = 6


def in_process(command: str, *paths: Path, options: Any = (), words: Any = (), **_: Any) -> str:
    done = CliRunner().invoke(app, [command, *options, *map(str, paths), *(["--", *words] if words else [])])
    if isinstance(done.exception, UserError):
        raise not_possible(str(done.exception))
    assert done.exit_code == 0, done.output
    return done.output


def vectors(classes: str, each: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    labels = np.repeat(list(classes), each)
    means = {name: 5 * np.random.default_rng(ord(name)).normal(size=DIM) for name in "abcdefg"}
    return np.stack([means[name] for name in labels]) + draws.normal(size=(len(labels), DIM)), labels


def archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("gatf.serve.updates.run_gatf", in_process)
    given, labels = vectors("abc")
    EmbeddingClassifier(normalize=True, encoder="clip@1").fit(given, labels).save(tmp_path / "shop.gatf")
    with serving(Options(tmp_path / "shop.gatf")) as (found, _):
        yield found


def post(client: Client, path: str, body: Any) -> Any:
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    return client("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), content_type=kind)


def test_predictions_of_vectors(client: Client) -> None:
    given, labels = vectors("abc", 3, seed=1)
    found = post(client, "/v1/predict", {"vectors": given.tolist(), "encoder": "clip@1"})
    assert [answer["label"] for answer in found.json["answers"]] == labels.tolist()
    for body, reason in (
        ({"vectors": given[:, 1:].tolist()}, "X has 5 features"),
        ({"vectors": given.tolist(), "encoder": "clip@2"}, "of encoder 'clip@2'"),
        ({"vectors": [[1.0] * DIM, [1.0]]}, "not numbers|inhomogeneous"),
        ({"vectors": [[float("nan")] * DIM]}, "NaN"),
        ({"images": ["aGk="]}, "this model classifies vectors"),
        ({"images": ["aGk="], "vectors": given.tolist()}, "give 'images', or"),
    ):
        refused = post(client, "/v1/predict", body)
        assert refused.status == 422
        assert any(part in refused.json["detail"] for part in reason.split("|")), refused.json


def test_the_model_learns_merges_forgets_and_moves(client: Client, tmp_path: Path) -> None:
    def classes() -> list[str]:
        return [each["label"] for each in client("GET", "/v1/classes").json["classes"]]

    given, labels = vectors("de", seed=2)
    learnt = post(client, "/v1/learn", {"vectors": given.tolist(), "labels": labels.tolist(), "encoder": "clip@1"})
    assert learnt.json["state"] == "done", learnt.json
    assert classes() == list("abcde")
    more, names = vectors("bf", seed=3)
    assert post(client, "/v1/learn", archive(embedding=more, label=names)).status == 200
    EmbeddingClassifier(normalize=True, encoder="clip@1").fit(*vectors("ag", seed=4)).save(tmp_path / "other.gatf")
    assert post(client, "/v1/merge", (tmp_path / "other.gatf").read_bytes()).status == 200
    assert classes() == list("abcdefg")
    forgotten = post(client, "/v1/forget", {"label": "b"})
    assert "% of it" in forgotten.json["message"]
    assert classes() == list("acdefg")
    assert client("POST", "/v1/rollback", b"").status == 200
    assert classes() == list("abcdefg")
    assert post(client, "/v1/forget", {"label": "b"}).status == 200
    assert classes() == list("acdefg")
    assert post(client, "/v1/rename", {"label": "a", "name": "the first"}).status == 200
    assert classes() == ["the first", *"cdefg"]
    assert post(client, "/v1/rename", {"label": "the first", "name": "a"}).status == 200
    old, expected = vectors("acdefg", 20, seed=5)
    view = np.random.default_rng(0).normal(size=(DIM, 5))
    assert post(client, "/v1/upgrade?encoder=clip@2", archive(old=old, new=old @ view)).json["state"] == "done"
    found = post(client, "/v1/predict", {"vectors": (old @ view).tolist(), "encoder": "clip@2"}).json["answers"]
    assert np.mean([answer["label"] == name for answer, name in zip(found, expected, strict=True)]) > 0.9
    assert [each["state"] for each in client("GET", "/v1/updates").json["updates"]] == 8 * ["done"]


def test_bad_changes_are_one_sentence_and_change_nothing(client: Client, tmp_path: Path) -> None:
    before = (tmp_path / "shop.gatf").read_bytes()
    given, labels = vectors("de")
    for path, body, status in (
        ("/v1/forget", {"label": "nobody"}, 409),
        ("/v1/rename", {"label": "a", "name": "b"}, 409),
        ("/v1/rename", {"label": "a", "name": ""}, 422),
        ("/v1/merge", b"no model", 409),
        ("/v1/upgrade", archive(old=given, new=given[1:]), 409),
        ("/v1/upgrade", b"no archive", 422),
        ("/v1/learn", b"no archive", 422),
        ("/v1/learn", {"vectors": given.tolist(), "labels": labels[1:].tolist()}, 409),
        ("/v1/learn", {"vectors": [], "labels": []}, 422),
        ("/v1/merge", {}, 415),
    ):
        found = post(client, path, body)
        assert found.status == status, (path, found.json)
        assert "\n" not in found.json["detail"]
    assert (tmp_path / "shop.gatf").read_bytes() == before
    assert not any(path.is_dir() for path in (tmp_path / "shop.gatf.updates").iterdir())


def test_errors_of_commands_name_no_folder() -> None:
    model, file = Path("/models/shop.gatf"), Path("/models/shop.gatf.updates/1f/pictures/other.gatf")
    assert without_folders(f"{file} is no {model}", model, file) == "other.gatf is no shop.gatf"
