"""Break the code on purpose, one place at a time, and check that a test fails.

python tools/mutants.py                 all of them; writes benchmarks/results/mutants.json
python tools/mutants.py geometry        those whose file has this in its name; other records stay

Each mutant names the tests that should kill it. A mutant whose text moved to another file is found there, if only one
file has it. A mutant that no longer applies, or whose tests cannot run, is reported and fails the run at its end.
`tests/test_tools.py` checks that every mutant applies.
"""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gatf"
OUT = ROOT / "benchmarks" / "results" / "mutants.json"
KILLED, SURVIVED, STALE, BROKEN = "killed", "survived", "does not apply", "tests do not run"


@dataclass(frozen=True)
class Mutant:
    file: str
    """Below src/gatf."""
    before: str
    after: str
    tests: str
    """Arguments of pytest."""

    @property
    def key(self) -> str:
        """What identifies it in the record, wherever its line moves."""
        return f"{self.before} -> {self.after}"

    def place(self) -> Path | None:
        """The file with the text: the named one, else the only one in the package that has it."""
        named = PACKAGE / self.file
        if named.is_file() and self.before in named.read_text(encoding="utf-8"):
            return named
        found = [path for path in PACKAGE.rglob("*.py") if self.before in path.read_text(encoding="utf-8")]
        return found[0] if len(found) == 1 else None

    def missing_tests(self) -> list[str]:
        """Test files and folders that do not exist."""
        named = [word.partition("::")[0] for word in self.tests.split() if word.startswith("tests/")]
        return [name for name in named if not (ROOT / name).exists()]


MUTANTS = [
    Mutant("geometry/spd.py", "(m + m.mT).div_(2)", "m.clone()", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "amount * mean_variance)", "amount)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "dim * (dim - 1)", "dim * dim", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "masked_fill(eye, 1.0)", "masked_fill(eye, 0.0)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "clamp_min(10 * jitter)", "clamp_min(jitter)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "start * 10.0**rung", "start", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "added[failed], clipped[failed] = 0.0, True", "clipped[failed] = True", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "(CLIP_GUARD * values[:, -1:]).clamp_min(FLOOR)", "torch.full_like(values[:, -1:], FLOOR)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "ladder.jittered += needy - len(failed)", "ladder.jittered += needy", "tests/geometry/test_spd.py"),
    Mutant("geometry/moments.py", "(self.count * weight)", "self.count", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "self.mean + delta * weight[..., None]", "self.mean + delta", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "self.count - 1 if unbiased", "self.count if unbiased", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "slots < counts[members, None]", "slots <= counts[members, None]", "tests/geometry/test_moments.py"),
    Mutant("evaluation/metrics.py", "drops = [max(", "drops = [min(", "tests/evaluation/test_metrics.py"),
    Mutant("data/scenario.py", "(tasks >= first) & (tasks <= last)", "(tasks > first) & (tasks <= last)", "tests/data/test_scenario.py"),
    Mutant("data/scenario.py", "rest // tasks + (task < rest % tasks)", "rest // tasks", "tests/data/test_scenario.py"),
    Mutant("data/scenario.py", "len(set(order)) < len(order) or not order", "not order", "tests/data/test_scenario.py"),
    Mutant("data/listing.py", "len(members) - 1)", "len(members))", "tests/data/test_sources.py tests/data/test_layouts.py"),
    Mutant("data/layouts/npz.py", "EXPANSION * file.stat().st_size", "2**60", "tests/data/test_layouts.py"),
    Mutant("data/decode.py", "(0, 1)\n", "(0, 1, 6)\n", "tests/data/test_decode.py"),
    Mutant("io/container.py", "place.start != end", "False", "tests/test_artifact.py -k over_each_other"),
    Mutant("io/container.py", "_digest(first, raw, digest, file) != digest", "False", "tests/training/test_checkpoint.py"),
    Mutant("io/container.py", "int(version) > FORMAT", "False", "tests/test_artifact.py -k newer_format"),
    Mutant("io/container.py", "length > kind.longest_header(size)", "False", "tests/test_artifact.py -k calls_for"),
    Mutant("io/files.py", "partial.unlink(missing_ok=True)", "pass", "tests/test_run_folder.py -k leaves_nothing"),
    Mutant("io/events.py", '.rfind(b"\\n") + 1', ".__len__()", "tests/test_run_folder.py"),
    Mutant("io/parsing.py", "if size > MOST_VALUES:", "if False:", "tests/test_config.py"),
    Mutant("io/run_folder.py", "saved_checkpoints()[:-2]", "saved_checkpoints()[:-1]", "tests/test_run_folder.py -k newest_two"),
    Mutant("model/file.py", "if not bool(scores.isfinite().all()):", "if False:", "tests/test_divergence.py -k not_written"),
    Mutant("model/file.py", "if len(state) + len(OWN) != len(tensors):", "if False:", "tests/test_artifact.py -k forged"),
    Mutant("model/predict.py", ".scores.isfinite().all()", ".scores.isfinite().any()", "tests/test_estimator.py -k not_finite"),
    Mutant("model/record.py", "history[-RECORDS_KEPT + 1 :]", "history[-RECORDS_KEPT:]", "tests/test_long_life.py -k bounded"),
    Mutant("model/calibration.py", "(count + 1) / (count + 2)", "1.0 - 1e-12", "tests/test_estimator.py -k temperature"),
    Mutant("training/divergence.py", "isfinite()", "isnan().logical_not()", "tests/test_divergence.py -k infinite"),
    Mutant("training/optim.py", "momentum=stage.momentum", "momentum=0.0", "tests/training/test_optim.py"),
    Mutant("training/checkpoint.py", "if value.ndim and value.shape != parameter.shape:", "if False:", "tests/training/test_checkpoint.py"),
    Mutant("methods/parts/losses.py", "/ (count - 1)", "/ count", "tests/methods/test_adagauss.py tests/parity/test_adagauss.py"),
    Mutant("methods/sdc.py", "(2 * sigma**2)", "sigma**2", "tests/methods/test_sdc.py"),
    Mutant("incremental/store.py", "self.versions()[: -keep or None]", "self.versions()[: -keep]", "tests/test_artifact_store.py"),
    Mutant("incremental/store.py", "begun.get(name) == plan[name] for name in same", "True for name in same", "tests/test_artifact_store.py -k only_the_update"),
]  # fmt: skip


def run_tests(tests: str, change: tuple[Path, str, str] | None = None) -> int:
    """The exit code of pytest in a forked process with a copy of the package, in which one text is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "gatf")
        if change is not None:
            source, before, after = change
            text = source.read_text(encoding="utf-8").replace(before, after, 1)
            (Path(folder) / "gatf" / source.relative_to(PACKAGE)).write_text(text, encoding="utf-8")
        child = os.fork()
        if child == 0:
            os.chdir(ROOT)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.path.insert(0, folder)
            os.environ["PYTHONPATH"] = folder
            import pytest

            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests.split()])))
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def outcome(mutant: Mutant, intact: dict[str, bool]) -> str:
    """What becomes of a mutant; `intact` remembers which tests pass without one."""
    place = mutant.place()
    if place is None:
        return STALE
    if mutant.tests not in intact:
        intact[mutant.tests] = run_tests(mutant.tests) == 0
    if not intact[mutant.tests]:
        return BROKEN
    return SURVIVED if run_tests(mutant.tests, (place, mutant.before, mutant.after)) == 0 else KILLED


def known() -> dict[str, str]:
    """Recorded outcomes by key."""
    found = json.loads(OUT.read_text(encoding="utf-8"))["mutants"] if OUT.is_file() else []
    return {each["key"]: each["outcome"] for each in found}


def record(mutant: Mutant, result: str) -> None:
    outcomes = known() | {mutant.key: result}
    listed = [
        {"key": each.key, **asdict(each), "outcome": outcomes[each.key]} for each in MUTANTS if each.key in outcomes
    ]
    OUT.write_text(json.dumps({"mutants": listed}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(wanted: str = "") -> int:
    import lightning_fabric  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    torch.set_num_threads(1)
    counts, intact = Counter[str](), dict[str, bool]()
    for mutant in MUTANTS:
        if wanted not in mutant.file:
            continue
        result = outcome(mutant, intact)
        counts[result] += 1
        print(f"{result}: {mutant.file}: {mutant.before!r} -> {mutant.after!r}", flush=True)
        record(mutant, result)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return sum(counts.values()) - counts[KILLED]


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:2]) else 0)
