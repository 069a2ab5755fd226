"""Break the code on purpose, one place at a time, and see whether a test notices.

python tools/mutants.py                 all of them; writes benchmarks/results/mutants.json
python tools/mutants.py geometry        those whose file has this in its name; the others stay as they were

Each mutant names the tests that should kill it. The packages that everything needs are imported once; every mutant has a
process of its own, forked from there, with a copy of the package in which one line is another.
"""

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "mutants.json"


@dataclass(frozen=True)
class Mutant:
    file: str
    """Below src/gatf."""
    before: str
    after: str
    tests: str


MUTANTS = [
    Mutant("geometry/spd.py", "return (m + m.mT) / 2", "return m", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "amount * mean_variance)", "amount)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "dim * (dim - 1)", "dim * dim", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "masked_fill(eye, 1.0)", "masked_fill(eye, 0.0)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "clamp_min(10 * jitter)", "clamp_min(jitter)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "start * 10.0**rung", "start", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "added[failed], clipped[failed] = 0.0, True", "clipped[failed] = True", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "(CLIP_GUARD * values[:, -1:]).clamp_min(floor)", "torch.full_like(values[:, -1:], floor)", "tests/geometry/test_spd.py"),
    Mutant("geometry/spd.py", "ladder.jittered += needy - len(failed)", "ladder.jittered += needy", "tests/geometry/test_spd.py"),
    Mutant("geometry/moments.py", "(self.count * weight)", "self.count", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "self.mean + delta * weight[..., None]", "self.mean + delta", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "self.count - 1 if unbiased", "self.count if unbiased", "tests/geometry/test_moments.py"),
    Mutant("geometry/moments.py", "slots < counts[members, None]", "slots <= counts[members, None]", "tests/geometry/test_moments.py"),
    Mutant("evaluation/metrics.py", "drops = [max(", "drops = [min(", "tests/evaluation/test_metrics.py"),
    Mutant("data/scenario.py", "(labels >= low) & (labels < high)", "(labels > low) & (labels < high)", "tests/data/test_scenario.py"),
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
    Mutant("model/file.py", "if len(state) + 3 != len(tensors):", "if False:", "tests/test_artifact.py -k forged"),
    Mutant("model/answers.py", "if not bool(looks.scores.isfinite().all()):", "if False:", "tests/fuzz -k model"),
    Mutant("model/record.py", "history[-RECORDS_KEPT + 1 :]", "history[-RECORDS_KEPT:]", "tests/test_long_life.py -k bounded"),
    Mutant("model/judge.py", "(count + 1) / (count + 2)", "1.0 - 1e-12", "tests/test_estimator.py -k temperature"),
    Mutant("training/divergence.py", "isfinite()", "isnan().logical_not()", "tests/test_divergence.py -k infinite"),
    Mutant("training/optim.py", "momentum=stage.momentum", "momentum=0.0", "tests/training/test_optim.py"),
    Mutant("training/checkpoint.py", "if value.ndim and value.shape != parameter.shape:", "if False:", "tests/training/test_checkpoint.py"),
    Mutant("methods/parts/components.py", "/ (count - 1)", "/ count", "tests/methods/test_adagauss.py tests/parity/test_adagauss.py"),
    Mutant("methods/sdc.py", "(2 * sigma**2)", "sigma**2", "tests/methods/test_sdc.py"),
    Mutant("incremental/store.py", "self.versions()[: -keep or None]", "self.versions()[: -keep]", "tests/test_artifact_store.py"),
    Mutant("incremental/store.py", 'begun.get(name) == plan[name] for name in same', "True for name in same", "tests/test_artifact_store.py -k only_the_update"),
]  # fmt: skip


def tried(mutant: Mutant) -> bool:
    """Whether its tests notice."""
    source = ROOT / "src" / "gatf" / mutant.file
    text = source.read_text(encoding="utf-8")
    if mutant.before not in text:
        raise SystemExit(f"{mutant.file} no longer has {mutant.before!r}: write another mutant")
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "src" / "gatf", Path(place) / "gatf")
        (Path(place) / "gatf" / mutant.file).write_text(text.replace(mutant.before, mutant.after, 1), encoding="utf-8")
        child = os.fork()
        if child == 0:
            os.chdir(ROOT)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.path.insert(0, place)
            os.environ["PYTHONPATH"] = place
            import pytest

            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()])
            os._exit(int(code))
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2) and code >= 0:
        raise SystemExit(f"the tests of {mutant.file} could not be run (pytest says {code}): {mutant.tests}")
    return code != 0


def main(wanted: str | None) -> int:
    import lightning_fabric  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    torch.set_num_threads(1)
    alive, passing = 0, set[str]()
    for mutant in MUTANTS:
        if wanted is not None and wanted not in mutant.file:
            continue
        if mutant.tests not in passing and tried(replace(mutant, after=mutant.before)):
            raise SystemExit(f"the tests of {mutant.file} fail without a mutant, so they tell nothing: {mutant.tests}")
        passing.add(mutant.tests)
        killed = tried(mutant)
        alive += not killed
        print(f"{'killed' if killed else 'ALIVE '} {mutant.file}: {mutant.before!r} → {mutant.after!r}", flush=True)
        record(mutant, killed)
    return alive


def record(mutant: Mutant, killed: bool) -> None:
    """Keep what came of it, and of every other mutant of the list."""
    known = json.loads(OUT.read_text(encoding="utf-8"))["mutants"] if OUT.is_file() else []
    found = {(each["file"], each["before"], each["after"]): each for each in known}
    found[mutant.file, mutant.before, mutant.after] = {**asdict(mutant), "killed": killed}
    listed = [found[key] for each in MUTANTS if (key := (each.file, each.before, each.after)) in found]
    OUT.write_text(json.dumps({"mutants": listed}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1] if len(sys.argv) > 1 else None) else 0)
