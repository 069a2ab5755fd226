"""`gatf run`, as a person types it."""

import json
import signal
from pathlib import Path

import pytest

from gatf.config import load_config, parse_overrides
from gatf.io.run_folder import RunFolder

SMALL = [
    "--epochs", "2", "--batch-size", "48", "--set", "data.max_per_class=30", "--set", "backbone.width=8",
    "--set", "scenario.stop_after=2",
]  # fmt: skip


def test_run_prints_the_table_and_the_folder(call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text, _ = call(
        "run", "--dataset", "digits", "--method", "adagauss", "--tasks", "5", "--seed", "3", "--out", str(out),
        *SMALL, "--set", "method.samples=2000", "--set", "backbone.bottleneck=8",
    )  # fmt: skip
    assert code == 0
    for word in ("adagauss on digits, seed 3", "after task", "A_last", "A_inc", "forgetting", "seconds"):
        assert word in text
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert f"{summary['a_last']:.1f}" in text
    assert summary["seed"] == 3


def test_ctrl_c_saves_prints_the_resume_command_and_exits_with_130(call, tmp_path: Path, monkeypatch) -> None:
    from gatf.io.events import Event, Step
    from gatf.training.display import LiveDisplay

    shown = LiveDisplay.__call__

    def press_ctrl_c(self: LiveDisplay, event: Event) -> None:
        shown(self, event)
        if isinstance(event, Step) and event.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    out = tmp_path / "my run"
    with monkeypatch.context() as patch:
        patch.setattr(LiveDisplay, "__call__", press_ctrl_c)
        code, text, _ = call("run", "--method", "finetune", "--out", str(out), *SMALL)
    assert code == 130
    assert f"gatf run --resume '{out}'" in " ".join(text.split())
    code, text, _ = call("run", "--resume", str(out))
    assert code == 0
    assert "A_last" in text


def test_resume_takes_no_other_settings(call, tmp_path: Path) -> None:
    code, _, error = call("run", "--resume", str(tmp_path), "--seed", "2")
    assert code == 2
    assert "--seed" in error
    code, _, error = call("run", "--resume", str(tmp_path))
    assert code == 2
    assert "holds no run" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "gaft"], "did you mean 'gatf'"),
        (["--dataset", "digit"], "did you mean 'digits'"),
        (["--set", "method.rigde=1"], "did you mean 'method.anchor.ridge'"),
        (["--tasks", "11"], "at most 10 tasks"),
        (["--batch-size", "16"], "anti-collapse"),
        (["--recipe", "nope"], "no recipe"),
        (["--out", "/dev/null/run"], "cannot write"),
        (["--set", "device=tpu"], "device"),
        (["--device", "cuda"], "device=cuda, but torch finds no such device here; use device=cpu or auto"),
        (["--set", "class_order_seed=4294967296", "--set", "scenario.order=seed"], "at most 4294967295"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call, tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, error = call("run", *arguments)
    assert code == 2
    assert words in error
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error + text
    assert not (tmp_path / "runs").exists()


def test_a_run_that_diverges_exits_with_2_and_the_command_it_offers_works(call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wild = ["--set", "optimisation.next.lr=1e12", "--set", "optimisation.next.warmup=0"]
    code, _, error = call("run", "--method", "finetune", "--out", str(out), *SMALL, *wild)
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    offered = error.split("gatf run --resume ")[1].split()
    assert offered == [str(out), "--force-config", "--set", "optimisation.next.lr=1e+11"]
    code, _, error = call("run", "--resume", str(out), "--set", "optimisation.next.lr=0.01")
    assert (code, "--set" in error) == (2, True)
    code, text, _ = call("run", "--resume", str(out), "--force-config", "--set", "optimisation.next.lr=0.01")
    assert code == 0
    assert "optimisation.next.lr was 1000000000000.0, is 0.01" in " ".join(text.split())
    assert call("run", "--force-config")[0] == 2


def test_a_run_continues_on_another_device(call, tmp_path: Path) -> None:
    """A config that asks for a device which this machine lacks; `--device` with `--resume` changes only that."""
    out = tmp_path / "run"
    small = ["optimisation.first.epochs=1", "optimisation.next.epochs=1", "scenario.stop_after=1", "device=cpu"]
    config = load_config("digits", method="finetune", overrides=parse_overrides(small)).model_copy(
        update={"device": "mps"}
    )
    RunFolder(out).create(config.to_yaml())
    code, _, error = call("run", "--resume", out)
    assert code == 2
    assert "device=mps cannot be used" in error
    code, _, error = call("run", "--resume", out, "--device", "cpu", "--no-report")
    assert code == 0, error
