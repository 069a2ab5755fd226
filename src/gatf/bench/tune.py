"""Search of settings with Optuna, by accuracy on validation images of the newest task.

An exemplar-free learner has neither test images nor images of older classes when it chooses its settings. So a trial
learns the first task, or the first few, and its score is the accuracy on held-out training images (`data.val_fraction`)
of each task after learning it.

The study is Optuna's own, in its journal file. A search that was killed and repeated ends with the same trials.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gatf.config import RunConfig, validated, with_overrides
from gatf.config.legacy import current_path
from gatf.errors import Diverged, UserError, extra
from gatf.experiment import Experiment
from gatf.io.lock import exclusive
from gatf.io.run_folder import LOCK
from gatf.io.signals import stop_signals
from gatf.seeding import key
from gatf.settings import flat
from gatf.training.context import RunContext
from gatf.training.loop import Interrupted

STUDY = "study.log"
DIGITS = 3
"""Significant digits of sampled numbers, so that the printed command has the exact values."""
FIXED = ("data.", "scenario.", "seed", "class_order_seed", "method.name", "device")
"""Prefixes of settings that change the problem or have no effect on it, so trials would not be comparable."""
STARTUP = 8
"""Random trials before Optuna's estimator (TPE) begins."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; integers if both ends are."""

    low: float
    high: float
    log: bool

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.low, self.high

    def holds(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def suggest(self, trial: Any, path: str) -> Any:
        if self.whole:
            return trial.suggest_int(path, self.low, self.high, log=self.log)
        drawn = float(f"{trial.suggest_float(path, self.low, self.high, log=self.log):.{DIGITS}g}")
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def holds(self, value: Any) -> bool:
        return value in self.values

    def suggest(self, trial: Any, path: str) -> Any:
        return trial.suggest_categorical(path, list(self.values))


Space = Mapping[str, Range | Choice]


def parse_space(texts: Sequence[str]) -> dict[str, Range | Choice]:
    """`["method.ridge=0.001..1:log", "method.anchor=[sylvester, identity]"]`; lists are YAML."""
    space: dict[str, Range | Choice] = {}
    for text in texts:
        path, sign, values = (part.strip() for part in text.partition("="))
        if not sign or not path or not values:
            raise UserError(
                f"--search takes a range or a list, such as method.ridge=0.001..1:log or method.anchor=[sylvester, "
                f"identity], not '{text}'"
            )
        if path.startswith(FIXED):
            raise UserError(f"--search {path}: this changes the problem, so trials would not be comparable")
        space[path] = _choice(path, values) if values.startswith("[") else _range(path, values)
    return space


def _choice(path: str, text: str) -> Choice:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        values = None
    plain = isinstance(values, list) and all(isinstance(each, str | int | float | None) for each in values)
    if not plain or not values:
        raise UserError(f"--search {path}={text}: a list may contain numbers, words, true, false or null")
    return Choice(tuple(values))


def _range(path: str, text: str) -> Range:
    numbers, _, how = text.partition(":")
    low, dots, high = numbers.partition("..")
    try:
        ends = [float(each) if set(each) & set(".eE") else int(each) for each in (low, high)]
    except ValueError:
        ends = []
    if not dots or len(ends) != 2 or how not in ("", "log") or not all(map(math.isfinite, ends)):
        raise UserError(f"--search {path}={text}: a range is LOW..HIGH or LOW..HIGH:log, with numbers")
    if ends[0] >= ends[1] or (how == "log" and ends[0] <= 0):
        raise UserError(f"--search {path}={text}: the range is empty{', or its logarithm' if how else ''}")
    return Range(ends[0], ends[1], how == "log")


@dataclass(frozen=True)
class Tried:
    """One trial."""

    number: int
    """Position among the finished trials, from 1."""
    settings: dict[str, Any]
    accuracy: float
    """Percent of validation images; 0 if training diverged."""
    diverged: bool


@dataclass(frozen=True)
class Search:
    """The search space and the objective."""

    base: RunConfig
    space: Space
    tasks: int = 1
    """Tasks that a trial learns, each evaluated after learning it; 1: only the first."""
    val_fraction: float = 0.2

    def __post_init__(self) -> None:
        later = [path for path in self.space if path.startswith("optimisation.next.")]
        if later and self.tasks == 1:
            raise UserError(f"the first task alone does not depend on {later[0]}: add --learn 2, or search another")
        for path, values in self.space.items():
            for value in values.ends:
                self.config({path: value})  # a UserError for an unknown setting or an invalid value

    def config(self, settings: Mapping[str, Any]) -> RunConfig:
        """The config of a trial: a share of the training images is held out, test images are not used."""
        only = {
            "data.val_fraction": self.val_fraction, "data.evaluate_on": "validation", "scenario.stop_after": self.tasks,
        }  # fmt: skip
        return validated(with_overrides(self.base.model_dump(mode="json"), {**settings, **only}))

    @property
    def defaults(self) -> dict[str, Any] | None:
        """The values of the config, if they are in the space."""
        known = flat(self.base.model_dump(mode="json"))
        own = {path: known.get(current_path(path, self.base.method.name)) for path in self.space}
        return own if all(self.space[path].holds(value) for path, value in own.items()) else None

    @property
    def objective(self) -> str:
        """The objective as a sentence."""
        share = f"{100 * self.val_fraction:.0f} % of the training images, held out"
        of = "the first task" if self.tasks == 1 else f"each of the first {self.tasks} tasks, after learning it"
        return f"accuracy on validation images ({share}) of {of}; test images and those of older tasks are not used"

    def described(self) -> dict[str, Any]:
        """What must be equal for a search to continue a study."""
        space = {path: str(values) for path, values in self.space.items()}
        config = self.base.model_dump(mode="json")
        return {"config": config, "space": space, "tasks": self.tasks, "val": self.val_fraction}


def accuracy_after_learning(config: RunConfig, stop: Callable[[], bool] = lambda: False) -> float:
    """Learn the config's tasks; returns the mean over tasks of the accuracy after learning the task."""
    experiment = Experiment(config)
    found = []
    for task in range(len(experiment.scenario)):
        experiment.session.learn_task(experiment.task_data(task), RunContext(stop=stop))
        found.append(experiment.accuracy_after_learning(task))
        experiment.method.notices.clear()
    return sum(found) / len(found)


def search(
    what: Search, folder: Path, trials: int, *, report: Callable[[Tried], None] = lambda tried: None,
    score: Callable[[RunConfig, Callable[[], bool]], float] = accuracy_after_learning,
) -> list[Tried]:  # fmt: skip
    """Continue the study in the folder until it has `trials` trials; returns all of them, best first.

    A trial's draws depend only on the seed and the trials before it, so a search that was killed and repeated has the
    same result. Settings that are drawn twice are evaluated once.
    """
    optuna = extra("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    busy = f"{folder} is in use by another search; wait until it has ended"
    with exclusive(folder / LOCK, busy=busy, blocked=f"cannot write to {folder}"), stop_signals() as stop:
        study = _study(optuna, what, folder)
        done = _finished(optuna, study)
        if not done and what.defaults is not None:
            study.enqueue_trial(what.defaults)
        while len(done) < trials:
            study.sampler = optuna.samplers.TPESampler(
                seed=key(what.base.seed, "tune", len(done)) % 2**32, n_startup_trials=STARTUP
            )
            trial = study.ask()
            settings = {path: values.suggest(trial, path) for path, values in what.space.items()}
            same = next((each for each in done if each.settings == settings), None)
            accuracy, diverged = (same.accuracy, same.diverged) if same else _scored(what, settings, stop, score)
            if stop():
                raise Interrupted
            trial.set_user_attr("settings", settings)
            trial.set_user_attr("diverged", diverged)
            study.tell(trial, accuracy)
            done.append(Tried(len(done) + 1, settings, accuracy, diverged))
            report(done[-1])
    return sorted(done, key=lambda tried: -tried.accuracy)  # of equals the first one tried stays first


def _scored(
    what: Search, settings: dict[str, Any], stop: Callable[[], bool],
    score: Callable[[RunConfig, Callable[[], bool]], float],
) -> tuple[float, bool]:  # fmt: skip
    try:
        return score(what.config(settings), stop), False
    except Diverged:
        return 0.0, True


def _study(optuna: Any, what: Search, folder: Path) -> Any:
    """The folder's study, or a new one. The unfinished trial of a killed process is marked as failed."""
    journal = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / STUDY)))
    study = optuna.create_study(storage=journal, study_name="gatf", direction="maximize", load_if_exists=True)
    kept, now = study.user_attrs.get("search"), what.described()
    if kept is None:
        study.set_user_attr("search", now)
    elif flat(kept) != flat(now):
        before, after = flat(kept), flat(now)
        differing = [path for path in {**before, **after} if before.get(path) != after.get(path)]
        raise UserError(f"{folder} contains another search ({', '.join(differing)}); choose another --out")
    for trial in study.get_trials(deepcopy=False):
        if not trial.state.is_finished():
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
    return study


def _finished(optuna: Any, study: Any) -> list[Tried]:
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    return [
        Tried(place, trial.user_attrs["settings"], trial.value, trial.user_attrs["diverged"])
        for place, trial in enumerate(complete, start=1)
    ]


def command(words: Sequence[str], settings: Mapping[str, Any]) -> str:
    """`gatf run …` with these words and settings, quoted for a shell."""
    chosen = [word for path, value in settings.items() for word in ("--set", f"{path}={_yaml(value)}")]
    return shlex.join(["gatf", "run", *words, *chosen])


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
