"""Model files and their cards on the Hugging Face hub, or in a folder. No code is stored or run."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gatf.errors import UserError, extra
from gatf.io.files import new_file, write_errors, write_text
from gatf.model.card import OWN, card
from gatf.model.file import describe, model_path

MODEL, CARD = "model.gatf", "README.md"
PATIENCE = 10.0
"""Seconds to wait for the hub's first response."""
_REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    place: str
    """A folder, or the hub's address."""
    kept_card: bool
    """An edited card existed and was not replaced."""


def is_folder(place: str | Path) -> bool:
    """Whether a folder is meant and not a repository of the hub: a `Path`, a folder that is there, or a name that
    begins as a path does (`./shop`, `../shop`, `/srv/shop`, `~/shop`)."""
    return isinstance(place, Path) or place.startswith((".", "/", "~")) or Path(place).is_dir()


def push(model: Path, target: str | Path, *, private: bool = False) -> Pushed:
    """Upload a model file and its card to a repository of the hub, or copy them to a folder.

    The repository is created if needed, `private` if so asked. An edited card is not replaced.
    """
    model = _sound(model_path(model))
    if is_folder(target):
        return _push_to_folder(model, Path(target).expanduser())
    return _push_to_hub(model, _repository(target), private=private)


def find(source: str | Path, *, revision: str | None = None) -> Path:
    """The model file of a repository, fetched into the hub's cache, or of a folder. Nothing else is fetched."""
    if not is_folder(source):
        return _fetch(_repository(source), revision)
    folder = Path(source).expanduser()
    if revision is not None:
        raise UserError(f"{folder} is a folder, which has no revisions: omit the revision")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} holds no {MODEL}; `gatf push MODEL {folder}` puts one there")
    return folder / MODEL


def pull(source: str | Path, target: Path, *, revision: str | None = None) -> None:
    """Fetch a model, check it and write it to a new file."""
    if target.exists():
        raise UserError(f"{target} exists already; choose another --out")
    _copy(_sound(find(source, revision=revision)), target)


def _sound(model: Path) -> Path:
    """The same file, after a check of its description and checksum."""
    describe(model)
    return model


def _copy(model: Path, target: Path) -> None:
    with write_errors(target), new_file(target, durable=True) as partial:
        shutil.copyfile(model, partial)


def _repository(name: str | Path) -> str:
    if not _REPOSITORY.fullmatch(str(name)):
        raise UserError(f"'{name}' is neither a folder nor a repository of the hub, such as owner/name")
    return str(name)


def _push_to_folder(model: Path, folder: Path) -> Pushed:
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept = _edited(folder / CARD)
    _copy(model, folder / MODEL)
    if not kept:
        write_text(folder / CARD, card(model, f"./{folder.resolve().name}"))
    return Pushed(str(folder), kept)


def _edited(file: Path) -> bool:
    return file.is_file() and OWN not in file.read_text(encoding="utf-8", errors="replace")


def _push_to_hub(model: Path, repository: str, *, private: bool) -> Pushed:
    hub = _library()
    with (
        _telling(f"{model} could not be pushed to '{repository}' on the Hugging Face hub"),
        TemporaryDirectory() as made,
    ):
        interface = hub.HfApi()
        made_or_found = interface.create_repo(repository, exist_ok=True, private=private or None)
        full_name, folder = str(made_or_found.repo_id), Path(made)
        kept = interface.file_exists(full_name, CARD) and _edited(Path(hub.hf_hub_download(full_name, CARD)))
        if not kept:
            write_text(folder / CARD, card(model, full_name))
        shutil.copyfile(model, folder / MODEL)
        interface.upload_folder(repo_id=full_name, folder_path=folder, commit_message="Model pushed by gatf")
    return Pushed(str(made_or_found), kept)


def _fetch(repository: str, revision: str | None) -> Path:
    """From the hub, or from its local cache if the hub cannot be reached."""
    hub = _library()
    with _telling(f"'{repository}' could not be fetched from the Hugging Face hub"):
        try:
            hub.HfApi().model_info(repository, revision=revision, timeout=PATIENCE)
        except hub.errors.HfHubHTTPError:
            raise
        except Exception:  # no network; the type depends on the HTTP library that this version of the hub uses
            cached = hub.try_to_load_from_cache(repository, MODEL, revision=revision)
            if not isinstance(cached, str):
                raise
            return Path(cached)
        return Path(hub.hf_hub_download(repository, MODEL, revision=revision))


def _library() -> Any:
    hub = extra("huggingface_hub", "hub")
    extra("huggingface_hub.errors", "hub")
    return hub


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Inside, whatever the hub's library raises is one sentence; its errors and the network's share no base."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{what} ({reason}); use a folder (./NAME) instead") from None
