"""What the benchmarks compare does the same, and what they write can be read. Speed is not tested here."""

import argparse
import importlib
import itertools
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatf.geometry import Affine, Gaussians, bayes_readout, push_affine, solve_sylvester

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
LOAD = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> LOAD:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def gaussians() -> Gaussians:
    draws = torch.Generator().manual_seed(0)
    roots = torch.randn(5, 4, 8, generator=draws, dtype=torch.float64)
    return Gaussians(torch.randn(5, 4, generator=draws), roots @ roots.mT)


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_finds_what_it_measures(load: LOAD, name: str) -> None:
    """What it imports may have been renamed since it last ran."""
    load(name)


def test_the_usual_scores_are_ours(load: LOAD, gaussians: Gaussians) -> None:
    usual = load("reference.mahalanobis")
    features = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    expected = usual.score(features, gaussians.means.float(), usual.invert(gaussians.covs), batch=3)
    torch.testing.assert_close(bayes_readout(gaussians).distances(features).float(), expected, rtol=1e-4, atol=1e-5)


def test_the_usual_scores_by_hand(load: LOAD) -> None:
    usual = load("reference.mahalanobis")
    inverse = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    # (0.6, 0.8) − (1, 0) = (−0.4, 0.8): 2·0.16 + 0.64
    got = usual.distances(torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 0.0]]), inverse)
    torch.testing.assert_close(got, torch.tensor([[0.96]]))


def test_the_loop_over_classes_transports_an_affine_map(load: LOAD, gaussians: Gaussians) -> None:
    affine = Affine(torch.tensor([[1.0, 0, 2, 0], [0, -1, 0, 0.5]]), torch.tensor([3.0, 4.0]))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        push_forward = load("reference.pushforward").push_forward
        means, covs = push_forward(gaussians.means.float(), gaussians.covs.float(), affine, samples=100_000)
    exact = push_affine(gaussians, affine)
    spread = exact.covs.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    assert ((means - exact.means).norm(dim=1) / spread).max() < 5 / 100_000**0.5
    assert ((covs - exact.covs).flatten(1).norm(dim=1) / spread.square()).max() < 10 / 100_000**0.5


def test_both_transports_of_the_benchmark_agree(load: LOAD) -> None:
    pushforward = load("pushforward")
    gaussians = pushforward.make_gaussians(2)
    adapter = pushforward.Adapter(gaussians, 0.3)
    truth = pushforward.transport(gaussians, adapter, "mirrored", 5_000)
    found = {kind: pushforward.errors([pushforward.transport(gaussians, adapter, kind, 2_000)], truth)["cov"]
             for kind in pushforward.KINDS}  # fmt: skip
    assert found["mirrored"] < found["matched"] < found["loop"] < 0.2
    assert pushforward.fewest({1: {"cov": 3.0}, 2: {"cov": 1.0}, 3: {"cov": 0.5}}, {"cov": 1.0}) == 2


def test_the_adapter_has_the_residual_it_is_asked_for(load: LOAD) -> None:
    pushforward = load("pushforward")
    gaussians = pushforward.make_gaussians(2)
    adapter = pushforward.Adapter(gaussians, 0.3)
    adapter.anchor = Affine(torch.zeros(64, 64), torch.zeros(64))
    alone = pushforward.spread(pushforward.transport(gaussians, adapter, "matched", 2_000))
    assert float(alone / adapter.spread) == pytest.approx(0.3, rel=0.02)
    assert 0.2 < pushforward.bent_share(gaussians, adapter) < 0.3


def test_scipy_and_ours_solve_the_same_equation(load: LOAD) -> None:
    problem = load("anchor").make_problem(16)
    expected = load("reference.sylvester").solve(*problem, 0.01)
    torch.testing.assert_close(solve_sylvester(*problem, 0.01), expected, rtol=1e-9, atol=1e-9)


def test_growth_is_the_exponent(load: LOAD) -> None:
    assert load("scoring").growth((1, 10, 100), [3.0, 300.0, 30_000.0]) == pytest.approx(2)


class Written(TorchDispatchMode):
    """Adds up the bytes that operations write; a view writes nothing."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        return out


@pytest.mark.parametrize(("method", "dim"), [("slda", 16), ("gatf", 8)])
def test_the_work_of_an_update_grows_no_faster_than_the_known_classes(
    load: LOAD, tmp_path: Path, method: str, dim: int
) -> None:
    """Work is the bytes that all operations write."""
    commands = load("commands")
    work = []
    for classes in (400, 1200):  # beyond 256 the transport takes fewer points
        commands.write_model(tmp_path / "model.gatf", method, dim, classes)
        learn = commands.update(tmp_path / "model.gatf")
        with Written() as written:
            learn()
        work.append(written.bytes)
        known = load("gatf.model.file").describe(tmp_path / "model.gatf")[0].labels
        assert known[-3:] == [f"class {classes - 1}", "new", "newer"]
    assert work[0] < work[1] < 3 * work[0]


def test_a_made_up_run_has_its_report(load: LOAD, tmp_path: Path) -> None:
    commands = load("commands")
    commands.write_run(tmp_path / "run", 20)
    commands.write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "is predicted as “class 1” for 20\u00a0% of its images" in page


@pytest.fixture
def report(load: LOAD, tmp_path: Path) -> Any:
    arguments = argparse.Namespace(out=tmp_path / "new" / "some.json", quick=True)
    return load("harness").Report(arguments, {"dim": 4})


def test_a_report_shows_which_goals_were_met(report: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report.add("fast", ours=0.5, reference=10.0, ratio=20.0, target=20, note="x")
    report.add("slow", ours=1.0, reference=2.0, ratio=2.0, target=5)
    report.add("large", ours=3.00004, reference=None, ratio=None, unit="MB", at_most=2)
    report.add("reported", ours=1.0, reference=None, ratio=None)
    report.write("scipy")
    reported = capsys.readouterr().out.splitlines()
    assert [("PASS" in line, "below target" in line) for line in reported] == [
        (True, False), (False, True), (False, True), (False, False),
    ]  # fmt: skip
    whole = json.loads((tmp_path / "new" / "some.json").read_text(encoding="utf-8"))
    assert whole["dim"] == 4
    assert whole["quick"] is True
    assert {"python", "torch", "numpy", "scipy", "threads", "processors", "processor"} <= set(whole["environment"])
    assert [result["met"] for result in whole["results"]] == [True, False, False, None]
    assert whole["results"][0] == {
        "what": "fast", "unit": "s", "ours": 0.5, "reference": 10.0, "ratio": 20.0, "target": "ratio ≥ 20",
        "met": True, "note": "x",
    }  # fmt: skip
    assert whole["results"][2]["ours"] == 3.0
    assert whole["results"][2]["target"] == "ours ≤ 2 MB"


def test_turns_alternate_and_the_first_does_not_count(load: LOAD) -> None:
    now, order = [0.0], []

    def call(name: str, *lasts: float) -> Callable[[], None]:
        durations = itertools.chain([1000.0], itertools.cycle(lasts))

        def run() -> None:
            order.append(name)
            now[0] += next(durations)

        return run

    turns = load("harness").take_turns(
        call("reference", 8.0, 8.0, 30.0), call("ours", 1.0, 2.0, 3.0), repeats=3, clock=lambda: now[0]
    )
    assert turns == {"reference": 8.0, "ours": 2.0, "ratio": 8.0, "ratio_lowest": 4.0, "repeats": 3}
    assert order == ["ours", "reference", "reference", "ours"] * 2
    rates = load("harness").per_second(turns, 16)
    assert (rates["reference"], rates["ours"], rates["ratio"]) == (2.0, 8.0, 8.0)


def test_idle_processors_are_counted_by_the_system(load: LOAD, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 ticks 10 idle and 5 waiting for a disk."""
    harness = load("harness")
    counts = iter([[0, 0, 0, 0, 0, 0, 0, 0], [3, 0, 1, 10, 5, 0, 1, 0]])
    monkeypatch.setattr(harness, "_ticks", lambda: next(counts))
    assert harness.idle(0) == 0.75


def test_photos_are_decoded_as_pillow_does(load: LOAD, tmp_path: Path) -> None:
    decode = load("decode")
    paths = decode.write_photos(tmp_path, 2)
    windows = decode.RandomWindows((0.08, 1.0), (0, "test"))
    train, test = decode.pieces(paths, windows)
    pillow = decode.pillow_train(paths, windows), decode.pillow_test(paths)
    for ours, usual in zip((train([0, 1]), test([0, 1])), pillow, strict=True):
        assert ours.shape == usual.shape == (2, 3, 224, 224)
        assert (ours.float() - usual.float()).abs().mean() < 5  # of 255; chroma is decoded otherwise


def test_what_is_apart_starts_its_workers_as_any_process_does(load: LOAD) -> None:
    """A reference whose workers were spawned, because its own process was, would import torch in each of them."""
    apart = load("harness").Apart(multiprocessing.get_context)
    try:
        assert apart.call("get_start_method") == multiprocessing.get_start_method()
    finally:
        apart.close()


def test_the_runner_knows_its_files(load: LOAD) -> None:
    assert len(set(load("run").NAMES)) == len(load("run").NAMES)
    for name in ("scoring", "pushforward", "anchor", "startup", "augment", "decode"):
        assert name in load("run").NAMES
        assert (BENCHMARKS / f"{name}.py").exists()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_peak_memory_sees_the_copies_of_the_usual_scoring(load: LOAD) -> None:
    """64 features, 80 classes, S = 64: every inverse once a feature, in float32, are 80 MB."""
    megabytes = load("harness").peak_memory(load("scoring").usual, 80, 64) / 2**20
    assert 79 < megabytes < 90
