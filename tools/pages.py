"""Render recorded results as Markdown: every table between markers in README.md and docs/ that comes from data.

A page has a marker pair `<!-- name -->` … `<!-- /name -->`; `PARTS` maps the name to the function that renders it.
`python tools/update_docs.py` fills all pages. The data are `results/` (benches and update series),
`benchmarks/results/` (speed, torture tests, mutants, coverage) and `experiments/results/` (studies).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import fmean, mean, stdev
from typing import Any, get_args

from safetensors import safe_open

from gatf.bench.plan import load_plan
from gatf.bench.published import load_published
from gatf.bench.tables import MISSING, aggregate, spread
from gatf.evaluation.metrics import few_shot_balance
from gatf.io.run_folder import parse_summary
from gatf.methods import METHODS
from gatf.methods.parts.memory import CovarianceConfig
from gatf.report.load import Run

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BENCHMARKS, EXPERIMENTS = ROOT / "results", ROOT / "benchmarks" / "results", ROOT / "experiments" / "results"
MAIN, FIRST, FIRST_LONG = "cifar100-16px-v2", "cifar100-16px", "cifar100-16px-t20"
"""The bench of the leaderboard; the benches of version 1 of its protocol, with a step schedule."""
PHOTOS = "cub200-128px"
NOT_RUN = "not run yet"
Record = dict[str, Any]
Part = Callable[[], str]


# Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table whose first `left` columns are text and whose other columns are numbers."""
    rule = "|".join(["---"] * left + ["---:"] * (len(head) - left))
    lines = [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(map(str, row))} |" for row in rows)]
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 3) -> str:
    """Few digits, with a space between thousands; a dash for None."""
    if value is None:
        return MISSING
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{digits}g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def fixed(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """A value in the largest unit that it reaches, or in the last one."""
    unit, one = next((pair for pair in units if value >= pair[1]), units[-1])
    return f"{number(value / one)} {unit}"


size = partial(scaled, units=(("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))
duration = partial(scaled, units=(("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def mean_std(values: Sequence[float]) -> str:
    """`81.2 ± 0.4`; without a deviation for one value."""
    return spread(mean(values), stdev(values) if len(values) > 1 else None)


def replace_between(text: str, name: str, content: str) -> str:
    """Put content between `<!-- name -->` and `<!-- /name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no markers {start} … {end}")
    return f"{before}{start}\n{content}{end}{after}"


def filled(text: str, parts: dict[str, Part]) -> str:
    """A page with every part that it has markers for. A marker that no function renders is an error."""
    for name in re.findall(r"^<!-- ([\w:.-]+) -->$", text, flags=re.MULTILINE):
        if name not in parts:
            raise SystemExit(f"no function in tools/pages.py or tools/update_docs.py renders the marker '{name}'")
        text = replace_between(text, name, parts[name]())
    return text


# data


def read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: run the benchmark or experiment that writes it")
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Collected:
    """A run of a bench as `tools/collect.py` stored it."""

    folder: Path
    about: Record
    run: Run
    explained: Record | None


@cache
def collected(bench: str, root: Path = RESULTS) -> list[Collected]:
    """The stored runs of a bench, in the order of its rows and seeds."""
    found = []
    for path in sorted((root / bench).rglob("about.json")):
        folder, about = path.parent, read(path.parent, "about")
        run = Run(folder, about["setting"], about["row"], parse_summary(read(folder, "summary")), {})
        explained = read(folder, "explain") if (folder / "explain.json").is_file() else None
        found.append(Collected(folder, about, run, explained))
    rank = {row: place for place, row in enumerate(planned_rows(bench))}
    return sorted(found, key=lambda each: (rank.get(each.run.row, len(rank)), each.run.summary.seed))


def planned_rows(bench: str) -> list[str]:
    return list(dict.fromkeys(run.row for run in load_plan(bench).runs))


def aggregated(bench: str, root: Path = RESULTS) -> dict[str, Record]:
    """Mean and deviation over seeds of every row with results."""
    return {row["row"]: row for row in aggregate(each.run.result for each in collected(bench, root))}


# docs/results.md and README.md

FRONT = 5
"""Rows of the README's table."""
UNCHANGED = ("pass", "fetril", "fecam", "efc", "ncm", "slda", "ranpac", "klda")
"""Rows of the leaderboard that version 1 trained in the same way: their runs count for both."""
PAPER_SETTING, PAPER_PHOTOS = "cifar100-t10", ("cub200-t10", "cub200-t20")
ABLATION = {
    "distillation + MLP, refined": "adagauss",
    "topology-aware + MLP, refined": "gatf without anchor, refined",
    "topology-aware + anchor, refined": "gatf refined",
    "topology-aware + anchor": "gatf",
}
"""Rows of the paper's Table 3 and their names in the bench."""
MOST_REVERSALS = 5


def leaders(bench: str = MAIN, root: Path = RESULTS) -> list[Record]:
    """The rows of a bench with results, highest A_last first, with CPU minutes of the first seed."""
    minutes = {each.run.row: each.about["minutes"] for each in reversed(collected(bench, root))}
    rows = [row | {"minutes": minutes[name]} for name, row in aggregated(bench, root).items()]
    return sorted(rows, key=lambda row: -row["a_last"])


def front_table() -> str:
    rows = [
        [row["row"], *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc")), row["seeds"],
         f"{row['minutes']:.0f}"]
        for row in leaders()[:FRONT]
    ]  # fmt: skip
    return table(["method", "A_last %", "A_inc %", "seeds", "CPU minutes"], rows)


def leaderboard(bench: str = MAIN, root: Path = RESULTS) -> str:
    """Every row with results, sorted, with its command; then the rows that were not run, and the machines."""
    rows, runs = leaders(bench, root), collected(bench, root)
    shown = [
        [row["row"], *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc", "forgetting")), row["seeds"],
         f"{row['minutes']:.0f}", f"{row['bytes_per_class']:,}", f"`{chosen(row['row'])}`"]
        for row in rows
    ]  # fmt: skip
    head = ["method", "A_last %", "A_inc %", "forgetting", "seeds", "CPU minutes", "bytes per class",
            f"`gatf bench {bench} …`"]  # fmt: skip
    missing = [name for name in planned_rows(bench) if name not in {row["row"] for row in rows}]
    text = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    return table(head, shown) + text + machines(runs) + reused(runs)


def chosen(row: str) -> str:
    """The option that selects a row of a bench."""
    return f'--methods "{row}"' if " " in row else f"--methods {row}"


def lead(bench: str = MAIN, root: Path = RESULTS) -> str:
    """How far the best exemplar-free row is ahead of the next method, and below joint training."""
    ranked = [row for row in leaders(bench, root) if row["method"] != "joint"]
    best = ranked[0]
    second = next(row for row in ranked if row["method"] != best["method"])
    other = f"{second['row']}, has {second['a_last']:.1f} %. "
    text = f"{best['row']} leads with {best['a_last']:.1f} %; the best other method, {other}"
    return text + paired(bench, best["row"], second["row"], root)


def machines(runs: Sequence[Collected]) -> str:
    kinds = Counter(f"{one.about['processor']}, {counted(one.about['threads'], 'thread')} per run" for one in runs)
    shown = [f"{kind} ({counted(count, 'run')})" for kind, count in sorted(kinds.items())]
    return f"\nMachines: {'; '.join(shown)}.\n"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def reused(runs: Sequence[Collected]) -> str:
    taken: dict[str, list[str]] = {}
    for each in runs:
        if (source := each.run.summary.networks_from) is not None:
            which = "the network of the first task" if each.run.summary.networks_of else "the networks"
            taken.setdefault(f"{which} of {source}", []).append(each.folder.name)
    if not taken:
        return ""
    shown = "; ".join(f"{', '.join(names)} used {what}" for what, names in taken.items())
    return f"\nRuns that train identical networks shared them (`--networks-from`): {shown}. Minutes include them.\n"


def table_of(bench: str) -> str:
    """A bench of which only the table is stored, in `results/<bench>/table.json`; rows name another number of seeds
    than the usual one."""
    columns = {"a_last": "A_last %", "a_inc": "A_inc %"}
    stored = read(RESULTS / bench, "table")
    usual = Counter(row["seeds"] for row in stored).most_common(1)[0][0]
    rows = [
        [row["row"] if row["seeds"] == usual else f"{row['row']} (seeds: {row['seeds']})",
         *(spread(row[of], row[f"{of}_std"]) for of in columns)]
        for row in stored
    ]  # fmt: skip
    return table([f"method, {usual} seeds", *columns.values()], rows)


def same_seeds(bench: str, one: str, other: str, root: Path = RESULTS) -> tuple[list[float], list[float]]:
    """A_last of two rows for the seeds that both have."""
    found: dict[str, dict[int, float]] = {one: {}, other: {}}
    for each in collected(bench, root):
        if each.run.row in found:
            found[each.run.row][each.run.summary.seed] = each.run.summary.a_last
    seeds = sorted(found[one].keys() & found[other].keys())
    return [found[one][seed] for seed in seeds], [found[other][seed] for seed in seeds]


def paired(bench: str, better: str, than: str, root: Path = RESULTS) -> str:
    """The difference of two rows, seed by seed, with a paired t-test."""
    ours, theirs = same_seeds(bench, better, than, root)
    if not ours:
        return f"{better} against {than}: {NOT_RUN}.\n"
    gains = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    text = f"{better} minus {than}, A_last for each seed: {', '.join(f'{gain:+.1f}' for gain in gains)} points"
    if len(gains) < 2:
        return text + ".\n"
    from scipy.stats import ttest_rel

    p = ttest_rel(ours, theirs).pvalue
    return f"{text}; mean {fmean(gains):+.1f} (paired t-test, two-sided: p = {p:.2g}).\n"


def published() -> dict[str, float]:
    """A_last in the paper's Table 1 and Table 3, CIFAR-100 in ten tasks."""
    return {row: cells[0].a_last for row, cells in load_published().numbers[PAPER_SETTING].items()}


def ablation(bench: str = FIRST, root: Path = RESULTS) -> str:
    """The paper's Table 3: the gain of each row over the row before it, here and in the paper."""
    theirs, known, gaps = published(), aggregated(bench, root), accuracy_gaps(bench, root)
    rows, before = [], None
    for printed, name in ABLATION.items():
        row, gain, paper = known.get(name), MISSING, MISSING
        if before is not None:
            ours, earlier = same_seeds(bench, name, ABLATION[before], root)
            gain = f"{fmean(ours) - fmean(earlier):+.1f}" if ours else MISSING
            paper = f"{theirs[printed] - theirs[before]:+.1f}"
        cells = [0, NOT_RUN] if row is None else [row["seeds"], spread(row["a_last"], row["a_last_std"])]
        rows.append([printed, name, *cells, fixed(gaps.get(name, {}).get("transport")), gain, paper])
        before = printed
    head = ["row in the paper", "row here", "seeds", "A_last %", "transport gap", "gain", "gain in the paper"]
    return table(head, rows, left=2)


def refinement() -> str:
    """What refining the map gains on identical networks."""
    found, theirs = read(RESULTS / FIRST, "unrefined"), published()
    gains = [
        f"{each['refined']['a_last'] - each['before']['a_last']:+.2f} points with seed {each['seed']}" for each in found
    ]
    refined, plain = (next(row for row, name in ABLATION.items() if name == own) for own in ("gatf refined", "gatf"))
    return (
        f"On identical networks, refining the map changes A_last by {' and '.join(gains)}. "
        f"In the paper the change is {theirs[refined] - theirs[plain]:+.1f}.\n"
    )


def accuracy_gaps(bench: str, root: Path = RESULTS) -> dict[str, dict[str, float]]:
    """What `gatf explain run` reported after the last task, mean over the seeds of each row."""
    groups: dict[str, list[Record]] = {}
    for each in collected(bench, root):
        if each.explained is not None:
            groups.setdefault(each.run.row, []).append(each.explained["rows"][-1])
    return {
        name: {
            key: round(fmean(values), 4)
            for key in last[0]
            if (values := [one[key] for one in last if one[key] is not None])
        }
        for name, last in groups.items()
    }  # fmt: skip


def transports_table() -> str:
    rows = []
    for row in read(RESULTS / FIRST, "transports")["rows"]:
        errors = [MISSING] * 5
        if "chain_error" in row:
            images = row["image_errors"]
            values = (row["step_error"], row["chain_error"], images["0.5"], images["0.99"])
            errors = [*(f"{value:.2f}" for value in values), f"{row['tail'][-1]:.1f}"]
        rows.append([row["map"], *errors, fixed(row["old_to_new"]), fixed(row["a_last"])])
    head = ["map", "error, one task", "error, all tasks", "median image", "99th percentile", "T(S)", "old → new %",
            "A_last %"]  # fmt: skip
    return table(head, rows)


def certified_share() -> str:
    """Theorem 2 with the measured errors, and what smaller errors would certify."""
    parts = []
    for bench, words in ((FIRST, "CIFAR-100"), ("digits", "digits")):
        rows = {row["divisor"]: row for row in read(RESULTS / bench, "certified")["rows"]}
        found = {name: 100 * rows[1][name] for name in ("certified", "whitened", "range", "range_shrunk")}
        small = {divisor: 100 * rows[divisor]["range"] for divisor in (10, 100)}
        parts.append(
            f"On {words} the theorem certifies {found['certified']:.0f} % of the test images as printed, "
            f"{found['whitened']:.0f} % in whitened coordinates, {found['range']:.0f} % by the exact range of each "
            f"distance and {found['range_shrunk']:.0f} % with shrunk covariances. A tenth of the error would certify "
            f"{small[10]:.0f} % by the range, a hundredth {small[100]:.0f} %."
        )
    return " ".join(parts) + "\n"


def first_rows() -> dict[str, Record]:
    """All rows of version 1, also those that are stored with version 2."""
    return aggregated(FIRST) | {name: row for name, row in aggregated(MAIN).items() if name in UNCHANGED}


def first_gaps() -> dict[str, dict[str, float]]:
    """The accuracy gaps under version 1, also of rows that are stored with version 2."""
    return accuracy_gaps(FIRST) | {name: row for name, row in accuracy_gaps(MAIN).items() if name in UNCHANGED}


def first_version() -> str:
    """Version 1 in one table: ten tasks, twenty tasks, and the accuracy gap of ten tasks."""
    long, gaps = aggregated(FIRST_LONG), first_gaps()
    rows = []
    for row in sorted(first_rows().values(), key=lambda row: -row["a_last"]):
        found, further = gaps.get(row["row"], {}), long.get(row["row"], {})
        parts = (found.get(name) for name in ("transport", "readout", "representation"))
        rows.append([
            row["row"], row["seeds"], *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc")),
            fixed(further.get("a_last")), *map(fixed, parts),
        ])  # fmt: skip
    head = ["method", "seeds", "A_last %", "A_inc %", "20 tasks: A_last %", "transport gap", "readout gap",
            "representation gap"]  # fmt: skip
    return table(head, rows)


def order_sentence(bench: str = FIRST, root: Path = RESULTS) -> str:
    """How many pairs of methods have the order of the paper's Table 1, and the largest reversals."""
    theirs, known = published(), first_rows() if bench == FIRST else aggregated(bench, root)
    ours = {row: known[row]["a_last"] for row in sorted(theirs.keys() & known.keys(), key=lambda row: -theirs[row])}
    pairs = [(ours[worse] - ours[better], better, worse) for better, worse in combinations(ours, 2)]
    turned = sorted((pair for pair in pairs if pair[0] > 0), reverse=True)
    shown = ", ".join(f"{worse} {gap:.1f} points above {better}" for gap, better, worse in turned[:MOST_REVERSALS])
    text = f"{len(pairs) - len(turned)} of {len(pairs)} pairs of methods have the order of the paper's Table 1."
    return f"{text} The largest reversals: {shown or 'none'}.\n"


def settings_table(bench: str = PHOTOS, root: Path = RESULTS, papers: Sequence[str] = PAPER_PHOTOS) -> str:
    """A bench of photos, beside these settings of the paper, then the rows without a run. Runs with the same config
    count for every setting."""
    known = {(row["setting"], row["row"]): row for row in aggregate(each.run.result for each in collected(bench, root))}
    plan = load_plan(bench).runs
    for run in plan:
        if (run.setting, run.row) in known:
            twins = [(each.setting, each.row) for each in plan if each.config == run.config]
            known |= dict.fromkeys(twins, known[run.setting, run.row])
    settings, numbers = list(dict.fromkeys(run.setting for run in plan)), load_published().numbers
    rows, missing = [], []
    for name in planned_rows(bench):
        found = [known.get((setting, name)) for setting in settings]
        if not any(found):
            missing.append(name)
            continue
        cells = [
            NOT_RUN if row is None else spread(row[of], row[f"{of}_std"]) for row in found for of in ("a_last", "a_inc")
        ]
        theirs = [numbers[setting].get(name) for setting in papers]
        rows.append([name, *cells, *(f"{one[0].a_last:.1f}, {one[0].a_inc:.1f}" if one else MISSING for one in theirs)])
    head = ["method", *(f"{setting}: {name} %" for setting in settings for name in ("A_last", "A_inc"))]
    later = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    return table([*head, *(f"paper, {setting}" for setting in papers)], rows) + later + machines(collected(bench, root))


# docs/uncertainty.md

UPDATES = {
    "fine-tuning": "birds-finetune",
    'backbone adapted in every update (`adapt="always"`, GATF)': "birds-adapted",
    'frozen pretrained backbone, LDA (`adapt="never"`)': "birds-never",
    '`adapt="auto"`': "birds-auto",
}
HARD = {
    "30 updates of one species each": "birds-singles",
    "3 images per species": "birds-three",
    "1 image per species": "birds-one",
    "classes with 500 and with 10 images": "cifar-imbalance",
}
SERIES = ("cifar",)


def series(name: str) -> Record:
    return dict(read(RESULTS / "updates", name))


def updates_table() -> str:
    rows = []
    for words, name in UPDATES.items():
        found = series(name)["rows"]
        rows.append(
            [words, *(fixed(row["accuracy"]) for row in found), f"{sum(row['cpu_seconds'] for row in found):.0f}"]
        )
    return table(["accuracy % over all seen species", "5 species", "10", "15", "20", "CPU seconds"], rows)


def hard_table() -> str:
    rows = []
    for words, name in HARD.items():
        auto, never = series(name), series(f"{name}-frozen")
        last = auto["rows"][-1]
        cells = [fixed(value) for value in (last["accuracy"], never["rows"][-1]["accuracy"], 100 / last["classes"])]
        rows.append([words, *cells, auto["updates_adapted"]])
    return table(["series", "auto %", "never %", "chance %", "updates that adapted the backbone"], rows)


def spaced(rows: Sequence[Any], count: int = 4) -> list[Any]:
    """The first and the last row, and some between them at equal distances."""
    last = len(rows) - 1
    return [rows[round(place * last / (count - 1))] for place in range(count)] if last >= count else list(rows)


def truths() -> dict[str, list[Record]]:
    """Rows of `experiments/truth.py` by data set."""
    found: dict[str, list[Record]] = {}
    for row in read(EXPERIMENTS, "truth"):
        found.setdefault(row["data"], []).append(row)
    return found


def truth_table() -> str:
    """What a model on a frozen network states, and what test images show."""
    rows = []
    for name, found in truths().items():
        told = [row for row in found if row.get("forecast") is not None]
        off = [row["forecast"] - row["old"] for row in told]
        within = [2 * (row["error"] ** 2 + row["test_error"] ** 2) ** 0.5 for row in told]
        known = [row["rejected_known"] for row in found]
        sure = [row["confidence"] - row["accuracy"] for row in found]
        rows.append([
            name, len(found), f"{fmean(off):+.1f}", f"{fmean(map(abs, off)):.1f}",
            f"{sum(abs(each) <= most for each, most in zip(off, within, strict=True))} of {len(told)}",
            f"{fmean(sure):+.1f}", *(fixed(fmean(row[key] for row in found)) for key in
                                     ("calibration_error", "calibration_floor")),
            f"{fmean(known):.1f} ({min(known):.1f} to {max(known):.1f})",
            fixed(fmean(row["rejected_unknown"] for row in found)),
        ])  # fmt: skip
    head = ["data", "updates", "forecast − accuracy of older classes", "mean size", "within two standard errors",
            "confidence − accuracy", "calibration error %", "of exact probabilities", "known rejected % at 10 %",
            "unknown rejected %"]  # fmt: skip
    return table(head, rows)


def unknown_table() -> str:
    """AUROC of each novelty score after the last update, mean over orders."""
    found = truths()
    measured = {name: [row["auroc"] for row in some if "auroc" in row] for name, some in found.items()}
    last = {name: some for name, some in measured.items() if some}
    scores = list(next(iter(last.values()))[0])
    rows = [[name, *(fixed(fmean(each[score] for each in some), 3) for score in scores)] for name, some in last.items()]
    return table(["unknown classes of", *scores], rows)


def certified_updates() -> str:
    columns = ("accuracy", "certified", "accuracy_certified")
    rows = [
        [name, row["classes"], *(fixed(row[column]) for column in columns)]
        for name in SERIES for row in spaced([row for row in series(name)["rows"][1:] if "certified" in row])
    ]  # fmt: skip
    return table(["series", "classes", "accuracy %", "certified %", "accuracy of certified predictions %"], rows)


# docs/performance.md, docs/scaling.md, docs/studio.md

COMPARED = (
    "startup", "photos", "augment", "decode", "training", "refresh", "anchor", "pushforward", "scoring", "compiling",
    "memory", "whole_run", "waiting",
)  # fmt: skip
"""Benchmarks whose results are rows of the table of comparisons."""
SHOWN_DIMS = ("64", "256")
NOT_PACKAGES = ("system", "processor", "processors", "threads")


def machine() -> str:
    """What the benchmarks ran on, and which results come from quick runs."""
    wholes = {
        name: read(BENCHMARKS, name) for name in (*COMPARED, "covariance", "growth", "commands", "serving", "vectors")
    }
    environments = {name: whole["environment"] for name, whole in wholes.items()}

    def by_benchmark(key: str) -> str:
        groups: dict[str, list[str]] = {}
        for name, each in environments.items():
            groups.setdefault(str(each[key]), []).append(name)
        most = max(groups, key=lambda value: len(groups[value]))
        others = "; ".join(f"{value}: {', '.join(names)}" for value, names in groups.items() if value != most)
        return most + (f" (but {others})" if others else "")

    packages: dict[str, str] = {}
    for each in environments.values():
        packages |= {name: value for name, value in each.items() if name not in NOT_PACKAGES}
    facts = [(key, by_benchmark(key)) for key in ("processor", "processors", "system", "threads")]
    facts.append(("versions", ", ".join(f"{name} {value}" for name, value in packages.items())))
    if quick := [name for name, whole in wholes.items() if whole["quick"]]:
        facts.append(("from quick runs, not to be quoted", ", ".join(quick)))
    return table(("machine", ""), facts, left=2)


UNTARGETED = ("augment", "decode", "photos", "pushforward", "scoring", "training", "compiling")
"""Benchmarks of which the page shows only results with a target; their files have the others."""


def comparisons(*names: str) -> str:
    """Every result of these benchmarks, with its target."""
    rows = []
    for name in names:
        for result in read(BENCHMARKS, name)["results"]:
            unit = f" {result['unit']}" if result["unit"] else ""
            sides = [
                number(result[side]) + (unit if result[side] is not None else "") for side in ("ours", "reference")
            ]
            target = "" if result["target"] == "none" else result["target"]
            missed = ", **missed**" if result["met"] is False else ""
            if not target and name in (
                "augment",
                "decode",
                "photos",
                "pushforward",
                "scoring",
                "training",
                "compiling",
            ):
                continue  # the file of the benchmark has it
            rows.append((f"{result['what']} (`{name}`)", *sides, number(result["ratio"]), target + missed))
    return table(("measurement", "gatf", "reference", "× better", "target"), rows)


def curves() -> dict[str, dict[str, dict[str, Record]]]:
    """The error of push-forwards: size of the residual → kind of noise → samples → errors."""
    results = read(BENCHMARKS, "pushforward")["results"]
    return {one["what"].split("g = ")[1].split(",")[0]: one["error_curve"] for one in results if "error_curve" in one}


def covariances() -> str:
    rows = []
    offered = get_args(CovarianceConfig.model_fields["kind"].annotation)
    for data, kinds in read(BENCHMARKS, "covariance")["results"].items():
        for kind, row in ((kind, row) for kind, row in kinds.items() if kind in offered):
            cells = [mean_std(row[name]["values"]) for name in ("a_last", "a_inc")]
            rows.append((f"{data}, `{kind}`", len(row["a_last"]["values"]), *cells, number(row["bytes_per_class"])))
    return table(("data, kind", "seeds", "A_last %", "A_inc %", "bytes per class"), rows)


def precisions() -> str:
    """Accuracy in float32 and bfloat16 for the seeds that have both."""
    rows = []
    for data, found in read(EXPERIMENTS, "precision")["data"].items():
        plain, half = (found["runs"][name] for name in ("32-true", "bf16-mixed"))
        seeds = [seed for seed in plain if seed in half]
        for measure, heading in (("a_last", "A_last"), ("a_inc", "A_inc")):
            before, after = ([runs[seed][measure] for seed in seeds] for runs in (plain, half))
            off = [new - old for old, new in zip(before, after, strict=True)]
            change = f"{mean(off):+.1f} ± {stdev(off):.1f}"
            rows.append((f"{data}, {heading} %", len(seeds), mean_std(before), mean_std(after), change))
    return table(("data", "seeds", "float32", "bfloat16", "difference per seed"), rows)


def growth() -> str:
    """Each part of an update for S features."""
    whole, rows = read(BENCHMARKS, "growth"), {}
    for part, dims in whole["seconds"].items():
        for dim, times in dims.items():
            if times and dim in SHOWN_DIMS:
                peaks, exponent = whole["peak_bytes"][part].get(dim, {}), whole["exponents"][part][dim]
                rows[f"{part}, S = {dim}"] = (times, exponent, peaks)
    return growth_table("part", rows)


def growth_of_commands() -> str:
    whole = read(BENCHMARKS, "commands")
    rows = {
        name: (times, whole["exponents"][name], whole["peak_bytes"][name]) for name, times in whole["seconds"].items()
    }
    return growth_table("command", rows)


def growth_table(first: str, rows: dict[str, tuple[dict[str, float], float | None, dict[str, float]]]) -> str:
    """Seconds over classes, the exponent, and the peak memory at the largest number of classes."""
    counts = sorted({int(count) for times, _, _ in rows.values() for count in times})
    cells = [
        (name, *(duration(times[str(count)]) if str(count) in times else MISSING for count in counts),
         number(exponent, 2), size(peaks[max(peaks, key=int)]) if peaks else MISSING)
        for name, (times, exponent, peaks) in rows.items()
    ]  # fmt: skip
    return table((first, *(f"C = {number(count)}" for count in counts), "exponent of C", "peak memory"), cells)


# docs/reliability.md, docs/contributing.md


@dataclass(frozen=True)
class Torture:
    """What `make torture` recorded. Only the jobs of the newest date have figures here."""

    jobs: dict[str, Record]

    @property
    def date(self) -> str:
        return max(job["date"] for job in self.jobs.values())

    def figures(self, kind: str) -> list[Record]:
        today = [job for job in self.jobs.values() if job["date"] == self.date]
        return [entry[kind] for job in today for entry in job["figures"] if kind in entry]


def tortured() -> Torture:
    return Torture(read(BENCHMARKS, "torture"))


def torture_runs() -> str:
    """A row per part: its full count, the count of the newest date, the outcome, and the largest earlier run."""
    from torture import PARTS as WANTED
    from torture import jobs

    found = tortured()
    rows = []
    for name, part in WANTED.items():
        names = list(jobs(name, 1))
        done = [found.jobs[job] for job in names if job in found.jobs]
        today = [one for one in done if one["date"] == found.date]
        earlier = [one for one in (*(one.get("larger") for one in done), *done) if one and one["date"] != found.date]
        failed = sum(not one["passed"] for one in today)
        outcome = f"{failed} failed" if failed else "passed"
        if not today:
            outcome = f"not run: `make torture TORTURE={name}`"
        elif len(today) < len(names):
            outcome += f"; {len(names) - len(today)} of {len(names)} not run"
        before = max(earlier, key=lambda one: one["number"], default=None)
        ran = torture_count(part, [one["number"] for one in today])
        last = f"{torture_count(part, [before['number']])}, {before['date']}" if before else MISSING
        rows.append((f"`{name}`", torture_count(part, [part.full]), ran, outcome, last))
    commits = sorted({job.get("commit") or "not recorded" for job in found.jobs.values() if job["date"] == found.date})
    head = ("part", "full count", f"count on {found.date}", "outcome", "earlier, larger run")
    return f"Commit: {', '.join(commits)}.\n\n" + table(head, rows, left=5)


def torture_count(part: Any, counts: Sequence[int]) -> str:
    """The count of a part with its unit."""
    if not counts:
        return MISSING
    if not part.option:
        return "all"
    if part.option == "--crash-points" and max(counts) >= part.full:
        return "all operations"
    units = {"--crash-points": "per fault", "--fuzz": "per reader", "--seconds": "s per attack"}
    return f"{number(max(counts))} {units.get(part.option, part.option.removeprefix('--'))}"


def torture_faults() -> str:
    """Faults in file operations, with the next command, and kills."""
    found = tortured()
    repeated = {one["command"]: one for one in found.figures("crashes")}
    cells: dict[str, dict[str, str]] = {}
    for one in (*({**each, "then": "the same command"} for each in repeated.values()), *found.figures("aftermath")):
        cells.setdefault(one["command"], {})[one["then"]] = f"{one['tried']} ({one['died']})"
    nexts = list(dict.fromkeys(then for row in cells.values() for then in row))
    rows = [
        (f"`gatf {name}`", repeated[name]["operations"] if name in repeated else MISSING,
         *(row.get(then, MISSING) for then in nexts))
        for name, row in cells.items()
    ]  # fmt: skip
    text = table(("command", "file operations", *(f"then {then}" for then in nexts)), rows)
    for one in found.figures("kills"):
        died = ", ".join(f"{count} of `gatf {name}`" for name, count in one["died"].items())
        text += f"\nKills at random moments: {sum(one['died'].values())} in {one['commands']} commands ({died}).\n"
    if fuzzed := found.figures("fuzz"):
        files, failures = (sum(one[key] for one in fuzzed) for key in ("files", "failures"))
        text += f"\nMutated files: {number(files)} for {len(fuzzed)} readers, {failures} failures.\n"
    return text


def torture_long() -> str:
    """Runs of many tasks, and models with many updates."""
    found = tortured()
    rows = [
        (f"`{one['method']}`", one["tasks"], *(f"{1000 * one[when]:.0f} ms" for when in ("first", "last")),
         *(f"{megabytes:.0f} MB" for megabytes in one["resident"]), one["class_bytes"])
        for one in found.figures("tasks")
    ]  # fmt: skip
    head = ("method", "tasks of one class", "CPU time per task, first quarter", "last quarter",
            "memory after a quarter", "at the end", "bytes per class")  # fmt: skip
    text = table(head, rows)
    for one in found.figures("updates"):
        first, full, last = one["bytes"]
        text += (
            f"\n{one['updates']} updates of one model with new images of the same two classes: "
            f"{duration(one['first'])} of CPU time per update in the first quarter, {duration(one['last'])} in the "
            f"last. The file has {size(first)} after the first update, {size(full)} with a full history, {size(last)} "
            "at the end.\n"
        )
    return text


def priority(one: Record) -> str:
    """Of a server and its clients; figures before 2026-11-19 do not record it."""
    return f"; priority of server and clients: `nice -n {one['nice']}`" if "nice" in one else ""


def server_load() -> str:
    """Latency for several numbers of clients, memory and recovery."""
    found = tortured().figures("load")
    rows = [
        (one["model"], level["clients"], number(level["predictions"]), level["refused"], duration(level["p50"]),
         duration(level["p99"]), number(level["per_second"]))
        for one in found for level in one["levels"]
    ]  # fmt: skip
    text = table(("model", "clients", "predictions", "refused", "p50", "p99", "predictions per second"), rows)
    for one in found:
        text += (
            f"\n{one['model'].capitalize()}: {size(one['memory_after_100'])} of memory after 100 predictions, "
            f"{size(one['memory_after_all'])} after {number(one['predictions'] + 100)}. After `kill -9` a new server "
            f"answered within {duration(one['recovery'])} (median; longest {duration(one['recovery_longest'])}). "
            f"Load average of the machine: {number(one['load_average'])}{priority(one)}.\n"
        )
    return text if found else f"Not run on {tortured().date}: `make torture TORTURE='load photo-load'`\n"


def server_attacks() -> str:
    """What another client noticed, and the memory of the server."""
    found = tortured().figures("attacks")
    if not found:
        return f"Not run on {tortured().date}: `make torture TORTURE='attacks photo-attacks'`\n"
    models = list(dict.fromkeys(one["model"] for one in found))
    by_attack: dict[str, dict[str, Record]] = {}
    for one in found:
        by_attack.setdefault(one["what"], {})[one["model"]] = one
    rows = [
        (what, *(attack_cell(each.get(model)) for model in models),
         "yes" if all(one["met"] for one in each.values()) else "**no**")
        for what, each in by_attack.items()
    ]  # fmt: skip
    columns = [f"{model}: p99 in ms (n)" for model in models]
    loads = [one["load_average"] for one in found]
    real = [one for one in found if one["what"] != "nobody attacks"]
    refused = sum(sum(one["refusals"].values()) for one in found)
    return (
        f"{sum(one['met'] for one in real)} of {len(real)} attacks met the goal. Each lasted "
        f"{number(found[0]['seconds'])} s; n counts the predictions of the other client. If they are few, the p99 is "
        f"nearly the longest. {refused} of its requests were refused. The server used "
        f"at most {size(max(one['memory_more'] for one in found))} more memory than before the attack, of "
        f"{size(found[0]['memory_allowed'])} that it may use. After SIGTERM it ended within "
        f"{duration(max(one['stop_seconds'] for one in found))}. The load average of the machine was "
        f"{number(min(loads))} to {number(max(loads))}{priority(found[0])}.\n\n"
        + table(("attack", *columns, "goal met"), rows)
    )


def attack_cell(one: Record | None) -> str:
    """Latency in milliseconds, and the number of predictions."""
    if one is None:
        return MISSING
    latency = f"{1000 * one['p99']:.0f}" if one["p99"] < float("inf") else "no answer"
    return f"{latency} ({one['predictions']})"


def mutants() -> str:
    """The outcome of the listed mutants; those that were not run since they changed count as not run."""
    from mutants import MUTANTS, known

    outcomes = known()
    counts = Counter[str]()
    survivors = []
    for mutant in MUTANTS:
        outcome = outcomes.get(mutant.key, "not run")
        counts[outcome] += 1
        if outcome == "survived":
            survivors.append(f"`{mutant.before.strip()}` → `{mutant.after.strip()}` in `{mutant.file}`")
    outcome = ", ".join(f"{counts[one]} {one}" for one in ("killed", "survived", "not run"))
    text = f"Of {len(MUTANTS)} mutants: {outcome}.\n"
    return text + (f"\nSurvivors: {'; '.join(survivors)}.\n" if survivors else "")


def coverage() -> str:
    found = read(BENCHMARKS, "coverage")
    packages = found["packages"].values()
    share = sum(one["lines"] * one["percent"] for one in packages) / sum(one["lines"] for one in packages)
    present = [one for one in found["least"] if (ROOT / "src" / "gatf" / one["file"]).is_file()]  # not renamed since
    least = ", ".join(f"`{one['file']}` ({one['percent']:.0f} %)" for one in present)
    return f"Covered: {share:.0f} % of the lines. Lowest: {least}.\n"


# studies: docs/privacy.md, docs/protocol.md, the lab notebook


def membership() -> str:
    """A row for each training; each has an attack on the Gaussians, then one on the scores."""
    attacks = read(EXPERIMENTS, "membership")["attacks"]
    rows = []
    for first, second in zip(attacks[::2], attacks[1::2], strict=True):
        aucs = [f"{one['auc']:.3f} ({one['low']:.3f}–{one['high']:.3f})" for one in (first, second)]
        noise = first["what"].partition("noise ")[2] or MISSING
        rows.append((first["data"], first["images"], noise, *aucs, f"{first['accuracy']:.1f}"))
    head = ("data", "images per class", "noise", "AUC of the stored Gaussians", "AUC of the scores", "A_last %")
    return table(head, rows)


def epochs() -> str:
    rows = []
    for count, found in read(EXPERIMENTS, "convergence").items():
        for task in (0, 1):
            own = [row for row in found["rows"] if row["task"] == task]
            late = own[-len(own) // 4]
            cells = [fixed(row[part]) for part in ("train", "test") for row in (late, own[-1])]
            rows.append([count, task + 1, *cells])
    head = ["epochs per task", "task", "train % after ¾", "at the end", "test % after ¾", "at the end"]
    image = f"![Accuracy on the training images of a task after every epoch](img/{FIRST}-epochs.png)\n\n"
    return image + table(head, rows, left=0)


def threads() -> str:
    found = read(EXPERIMENTS, "threads")
    runs = {(run["method"], run["threads"]): run for run in found["runs"]}
    counts = sorted({count for _, count in runs})
    rows = []
    for method in dict.fromkeys(method for method, _ in runs):
        own = [runs[method, count] for count in counts]
        last = [run["a_last"] for run in own]
        cells = [f"{run['a_last']:.1f}, {run['a_inc']:.1f}" for run in own]
        rows.append([f"`{method}`", *cells, fixed(max(last) - min(last))])
    head = ["A_last %, A_inc % with seed 0", *(f"threads: {count}" for count in counts), "range of A_last"]
    depends, not_ = ([name for name, differs in found["operations"].items() if differs == so] for so in (True, False))
    told = f"Dependent on the number of threads: {', '.join(depends)}. Independent: {', '.join(not_)}.\n"
    return f"{table(head, rows)}\n{told}"


def few_images() -> str:
    rows = []
    for one in read(EXPERIMENTS, "few_images"):
        plain, few = one["right"]["plain"], one["right"]["few"]
        counts = f"{one['many']} and {one['few']}"
        rows.append([one["data"], one["classes"], counts, *(fixed(fmean(pair)) for pair in (plain, few)),
                     *(fixed(pair[1]) for pair in (plain, few))])  # fmt: skip
    head = ["data", "classes", "images per class", "as published %", "corrected %", "smaller classes: as published %",
            "corrected %"]  # fmt: skip
    return table(head, rows)


def near_copies() -> str:
    """What similar features say about copies of images, and what copies do to the reported accuracy."""
    rows, sentences = [], []
    for name, one in read(EXPERIMENTS, "near_copies").items():
        title = {"cub200": "CUB-200", "cifar100": "CIFAR-100"}[name]
        for threshold, share in one["originals"].items():
            found = [100 * edit["found"][threshold] for edit in one["edits"].values()]
            rows.append([title, threshold, fixed(min(found)), fixed(max(found)), fixed(100 * share, 2)])
        alone, copied = one["accuracy"]["alone"], one["accuracy"]["with a copy each"]
        sentences.append(
            f"{title}: with a copy of each image the reported accuracy rises from {fixed(alone['reported'])} to "
            f"{fixed(copied['reported'])} %, that of test images from {fixed(alone['test'])} to "
            f"{fixed(copied['test'])} %. Comparing {one['images']:,} images takes {fixed(one['grouping_seconds'], 2)} "
            f"CPU-seconds, extracting their features {fixed(one['embedding_seconds'], 0)}."
        )
    head = ["data", "cosine at least", "copies found %, worst edit", "best edit", "other images %"]
    return table(head, rows) + "\n" + " ".join(sentences) + "\n"


def photo_networks() -> str:
    rows = [[one["data"], one["row"], fixed(one["accuracy"]), fixed(one["seconds"])]
            for one in read(EXPERIMENTS, "photo_networks")]  # fmt: skip
    return table(["training images of", "network, image size", "accuracy %", "CPU-seconds per 1000 images"], rows)


def refits() -> str:
    rows = [[one["row"], fixed(100 * one["accuracy"]), number(one["seconds"]), fixed(one["bytes"] / 1e6)]
            for one in read(EXPERIMENTS, "refits")]  # fmt: skip
    return table(["classifier", "accuracy %", "CPU-seconds", "MB kept"], rows)


def adaptation() -> str:
    """Variants of adapting a pretrained backbone, and what limits them."""
    records = read(EXPERIMENTS, "adaptation")
    rows = [[one["variant"], fixed(one["a_last"]), fixed(one["seconds"])] for one in records]
    last = {one["variant"]: one["a_last"] for one in records}
    joint, moved, oracle = (
        last[name] - last["frozen"]
        for name in (
            "joint, last blocks",
            "every task, distilled, transported",
            "every task, distilled, oracle statistics",
        )
    )
    return table(["variant", "A_last %", "CPU-seconds"], rows) + (
        f"\nTraining on all species at once gains {joint:.1f} points, which is the most that adaptation can reach "
        f"here. Training in every task gains {moved:.1f} with transported statistics and {oracle:.1f} with statistics "
        "re-estimated on old images. So the features of single tasks limit the gain, not the transport.\n"
    )


def vectors() -> str:
    """How time and memory of learning grow with the number of vectors and their dimension."""
    rows = [
        [number(one["count"]), one["dim"], number(one["seconds"]), number(one["ours"]), fixed(100 * one["ratio"], 2),
         size(one["peak_bytes"])]
        for one in read(BENCHMARKS, "vectors")["results"] if "dim" in one
    ]  # fmt: skip
    head = ["vectors", "dimension", "CPU s", "vectors per CPU s", "of reading them from memory %", "peak memory"]
    return table(head, rows)


def vectors_compared() -> str:
    """The same vectors learnt by others."""
    found = [one for one in read(BENCHMARKS, "vectors")["results"] if "classifier" in one]
    rows = [["gatf, `slda`", number(found[0]["ours"]), fixed(found[0]["accuracy"])]]
    rows += [[f"scikit-learn, {one['classifier']}", number(one["reference"]), fixed(one["accuracy_reference"])]
             for one in found]  # fmt: skip
    return table(["classifier", "vectors per CPU s", "accuracy %"], rows)


ENCODERS = {
    "lite0": "Lite0", "lite1": "Lite1", "lite2": "Lite2", "mobilenet_v2": "MobileNetV2", "tfidf": "TF-IDF",
    "minilm": "MiniLM", "minilm128": "MiniLM to 128",
}  # fmt: skip
MAIN_UPGRADE = ("lite0", "lite2")
PAIR_COUNTS = (100, 300, 1000, 2500, 5000)
FORECAST_COUNTS = (300, 1000)
GOAL = 95.0
"""Percent of the accuracy of embedding everything again."""


def encoders(section: str) -> list[Record]:
    """The results of one part of the study of encoders, as far as it was run."""
    found: list[Record] = read(EXPERIMENTS, "encoders").get(section, [])
    return found


def encoder_upgrades() -> str:
    rows = []
    for one in encoders("rows"):
        kept, drift = one["upgraded"]["accuracy"], one["drift_adapter"]
        maps = (drift.get(name) for name in ("procrustes", "low_rank", "mlp"))
        rows.append([
            one["data"], f"{ENCODERS[one['old']]} → {ENCODERS[one['new']]}",
            *(fixed(each) for each in (one["old_encoder"], one["stale"], one["relabelled"], *maps, kept)),
            fixed(one["upgraded"]["true_means"]), fixed(one["reembedded"]), fixed(100 * kept / one["reembedded"]),
            fixed(one["upgraded"]["seconds"]),
        ])  # fmt: skip
    head = ["data", "upgrade", "old encoder", "stale", "relabelled", "rotation", "low rank", "MLP", "`gatf upgrade`",
            "true means", "embedded again", "of that %", "CPU s"]  # fmt: skip
    return table(head, rows, left=2)


def encoder_goal() -> str:
    """Which rows reach the goal, and where the others lose, in sentences."""
    rows = encoders("rows")
    kept, means = (
        [100 * one["upgraded"][name] / one["reembedded"] for one in rows] for name in ("accuracy", "true_means")
    )
    beaten = sum(one["upgraded"]["accuracy"] < max(one["drift_adapter"].values()) for one in rows)
    reached = sum(share >= GOAL for share in kept)
    return (
        f"The goal is {GOAL:.0f} % of the accuracy of embedding everything again. {reached} of {len(rows)} upgrades "
        f"reach it; the lowest keeps {min(kept):.0f} %. In {beaten} of {len(rows)} one of Drift-Adapter's maps, "
        "trained as described above, is better. With the class means of the new encoder (*true means*), the upgraded "
        f"models would keep {min(means):.0f} to {max(means):.0f} %. So the transported means lose most of the "
        "accuracy, not the covariance.\n"
    )


def encoder_front() -> str:
    """The rows of the front page."""
    shown = (("cub200", *MAIN_UPGRADE, "200 birds"), ("banking77", "tfidf", "minilm", "77 intents"))
    found = {(one["data"], one["old"], one["new"]): one for one in encoders("rows")}
    rows = []
    for *key, name in shown:
        one = found[tuple(key)]
        figures = (one["old_encoder"], one["stale"], one["upgraded"]["accuracy"], one["reembedded"])
        rows.append([f"{name}, {ENCODERS[key[1]]} → {ENCODERS[key[2]]}", *(fixed(each) for each in figures)])
    return table(["accuracy %", "before", "not moved", "`gatf upgrade`", "embedded again"], rows)


def encoder_maps() -> str:
    """What a map or covariance that is left out would change, in points."""
    rows = [
        [one["data"], *(fixed(one[name]) for name in ("own", "residual MLP", "kernel ridge", "labelled",
                                                      "labelled, blended covariance"))]
        for one in encoders("maps")
    ]  # fmt: skip
    head = ["data", "`gatf upgrade`", "with residual MLP", "kernel ridge", "labelled pairs", "and blended covariance"]
    return table(head, rows) if rows else f"{NOT_RUN}\n"


def encoder_pairs() -> str:
    """Percent of the accuracy of embedding again, by upgrade, kind and number of pairs."""
    full = {(one["data"], *upgrade_of(one)): one["reembedded"] for one in encoders("rows")}
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for one in encoder_counts():
        key = (one["data"], *upgrade_of(one))
        cells = {one["of"]: one["upgraded"]["accuracy"]}
        if one["of"] == "mixture" and upgrade_of(one) == MAIN_UPGRADE:
            cells |= {"*relabelled*": one["relabelled"], "*Drift-Adapter*": max(one["drift_adapter"].values())}
        for of, accuracy in cells.items():
            found.setdefault((*key, of), {})[one["count"]] = fixed(100 * accuracy / full[key], 0)
    rows = [
        [data, f"{ENCODERS[old]} → {ENCODERS[new]}", of, *(shares.get(count, MISSING) for count in PAIR_COUNTS)]
        for (data, old, new, of), shares in found.items()
    ]  # fmt: skip
    return table(["data", "upgrade", "pairs of", *map(number, PAIR_COUNTS)], rows, left=3)


def encoder_forecasts() -> str:
    rows = []
    for one in encoder_counts():
        if upgrade_of(one) == MAIN_UPGRADE and one["count"] in FORECAST_COUNTS:
            own = one["upgraded"]
            low, about, high = own["forecast"]
            rows.append([one["data"], one["of"], number(one["count"]), fixed(own["old_classes"]),
                         f"{about:.0f} ({low:.0f} to {high:.0f})", fixed(100 * own["recall"], 0)])  # fmt: skip
    return table(["data", "pairs of", "pairs", "accuracy %", "forecast %", "recall@10 %"], rows, left=2)


def encoder_counts() -> list[Record]:
    """Upgrades of photos with several numbers of pairs, ordered; 1 000 pairs of a mixture are a row above."""
    own = [{**one, "of": "mixture", "count": 1000} for one in encoders("rows") if one["data"] != "banking77"]
    kinds = ("mixture", "labelled", "new classes", "other data")
    upgrades = list(dict.fromkeys(upgrade_of(one) for one in encoders("rows")))
    return sorted(
        own + encoders("pairs"),
        key=lambda one: (one["data"], upgrades.index(upgrade_of(one)), kinds.index(one["of"]), one["count"]),
    )


def upgrade_of(one: Record) -> tuple[str, str]:
    return one["old"], one["new"]


def encoder_shuffled() -> str:
    good = {one["data"]: one["upgraded"]["accuracy"] for one in encoders("rows") if upgrade_of(one) == MAIN_UPGRADE}
    rows = [[one["data"], fixed(good.get(one["data"])), fixed(one["accuracy"])] for one in encoders("shuffled")]
    return table(["data", "all pairs correct", "a tenth shuffled"], rows) if rows else f"{NOT_RUN}\n"


def encoder_chain() -> str:
    rows = [
        [one["step"], ENCODERS[one["encoder"]], fixed(one["accuracy"]), fixed(one["reembedded"])]
        for one in encoders("chain")
    ]
    head = ["upgrade", "to", "accuracy %", "embedded again %"]
    return table(head, rows, left=2) if rows else f"{NOT_RUN}\n"


def sentences() -> str:
    """Closed-form methods on BANKING77 in tasks: mean and deviation over class orders."""
    rows = []
    for (method,), runs in grouped(read(EXPERIMENTS, "text"), lambda one: (one["method"],)).items():
        seen = [one["accuracy_seen"] for one in runs]
        last, along = ([row[-1] for row in seen], [fmean(row) for row in seen])
        rows.append([f"`{method}`", mean_std(last), mean_std(along), len(runs)])
    return table(["method", "A_last %", "A_inc %", "class orders"], rows)


def grouped(records: Iterable[Record], key: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], list[Record]]:
    """The records of every seed of each variant."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def later_tasks() -> str:
    """Variants of `gatf plus` whose network may change more in later tasks."""
    groups = grouped(read(EXPERIMENTS, "later_tasks"), lambda record: (record["data"], record["variant"]))
    rows = []
    for key, own in groups.items():
        new = mean_std([fmean(one["learnt"][1:]) for one in own])
        rows.append([*key, len(own), *(mean_std([one[of] for one in own]) for of in ("a_last", "a_inc")), new])
    return table(["data", "variant", "seeds", "A_last %", "A_inc %", "later tasks after learning %"], rows, left=2)


def reproduced() -> str:
    """A row per published method or named preset: the reported number, what the authors' code computed for us, and our
    run; then the sources of the numbers."""
    recorded: dict[str, list[str]] = {}
    for line in (ROOT / "tests" / "parity" / "README.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| (`.+`) \| .+ \| (.+) \|", line):
            for name in re.findall(r"`([^`]+)`", found[1]):
                recorded[name] = [official(case) for case in re.findall(r"\((\w+)\.md\)", found[2])]
    elsewhere = load_published().elsewhere
    sources: list[str] = []
    rows = []
    named = [name for name, method in METHODS.items() if method.card.title]
    for name in [*named, *(name for name in elsewhere if name not in METHODS)]:
        closing = elsewhere[name].closing if name in elsewhere else "–"
        numbers = reported(name, sources)
        cases = "; ".join(dict.fromkeys(recorded.get(name, []))) or "–"
        rows.append([f"`{name}`", numbers, cases, own_run(name), closing])
    head = ["method", "reported A_last / A_inc", "recorded from the authors' code", "our run", "other setting"]
    listed = "; ".join(f"[{number}] {source}" for number, source in enumerate(sources, start=1))
    return f"{table(head, rows, left=5)}\nSources: {listed}.\n"


def official(case: str) -> str:
    """Repositories and commits of a parity case."""
    with safe_open(ROOT / "tests" / "parity" / f"{case}.safetensors", "pt") as file:
        meta = file.metadata()
    pairs = zip(meta["repository"].split(), meta["commit"].split(), strict=True)
    return ", ".join(f"{repository}@{commit[:7]}" for repository, commit in pairs)


def reported(name: str, sources: list[str]) -> str:
    """The number of the method's own paper if a recipe has its setting, else as the first source has it. `sources`
    receives each source once; the cell has its number."""

    def cite(text: str) -> str:
        if text not in sources:
            sources.append(text)
        return f"[{sources.index(text) + 1}]"

    known, numbers = load_published(), load_published().numbers[PAPER_SETTING]
    if name in numbers:
        cell = next((each for each in numbers[name] if each.source == name), numbers[name][0])
        return f"{cell.a_last:.1f} / {cell.a_inc:.1f} {cite(known.sources[cell.source].text)}"
    if name not in known.elsewhere:
        return "–"
    other = known.elsewhere[name]
    values = "" if other.a_last is None else f"{other.a_last:.1f} / {other.a_inc:.1f}, "
    return f"{values}{other.setting} ({other.source})"


def own_run(name: str) -> str:
    """A_last and A_inc of the row of that name under the newest protocol that it was run with."""
    for bench in (MAIN, FIRST, "pets-128px"):
        if row := aggregated(bench).get(name):
            values = " / ".join(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc"))
            return f"{values}, `{bench}`, {row['seeds']} seed{'s' if row['seeds'] > 1 else ''}"
    return NOT_RUN


SCENARIOS = "cifar100-16px-scenarios"


def scenarios() -> str:
    """A_last / A_inc of every method in the other scenarios, with few images also the harmonic mean of first and later
    classes."""
    found = {(each.run.setting, each.run.row): each.run.summary for each in collected(SCENARIOS)}
    settings = list(dict.fromkeys(run.setting for run in load_plan(SCENARIOS).runs))

    def cell(setting: str, row: str) -> str:
        summary = found.get((setting, row))
        if summary is None:
            return NOT_RUN
        last = summary.accuracy_matrix[-1]  # tasks after the first have equally many classes and test images
        harmonic = f", H {few_shot_balance(last, 1)[2]:.1f}" if setting.endswith("fscil") else ""
        return f"{summary.a_last:.1f} / {summary.a_inc:.1f}{harmonic}"

    if not found:
        return f"{NOT_RUN}\n"
    rows = [[f"`{row}`", *(cell(setting, row) for setting in settings)] for row in planned_rows(SCENARIOS)]
    return table(["A_last / A_inc, %", *(f"`{setting}`" for setting in settings)], rows)


def mixtures() -> str:
    """Accuracy with one Gaussian per class and with mixtures, by scenario and readout."""
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for one in read(EXPERIMENTS, "mixtures"):
        found.setdefault((one["setting"], one["readout"]), {})[one["kept"]] = one
    rows = [
        [f"`{setting}`", readout, *(fixed(kept[name]["accuracy"]) for name in ("one", "mixture")),
         f"{kept['mixture']['accuracy'] - kept['one']['accuracy']:+.1f}", kept["mixture"]["gaussians"]]
        for (setting, readout), kept in found.items()
    ]  # fmt: skip
    return table(["recipe", "readout", "one Gaussian %", "mixture %", "difference", "Gaussians"], rows, left=2)


PARTS: dict[str, Part] = {
    "reproduced": reproduced,
    "scenarios": scenarios,
    "mixtures": mixtures,
    "sentences": sentences,
    "results": front_table,
    "leaderboard": leaderboard,
    "lead": lead,
    "first-version": first_version,
    "certified": certified_share,
    **{f"table:{bench}": partial(table_of, bench) for bench in ("digits", "glyphs")},
    "ablation": ablation,
    "paired:anchor": partial(paired, FIRST, "gatf refined", "gatf without anchor, refined"),
    "refinement": refinement,
    "transports": transports_table,
    f"settings:{PHOTOS}": settings_table,
    "settings:pets-128px": partial(settings_table, "pets-128px", papers=()),
    "order": order_sentence,
    "later-tasks": later_tasks,
    "photos": updates_table,
    "hard": hard_table,
    "truth": truth_table,
    "unknown": unknown_table,
    "certified:updates": certified_updates,
    "machine": machine,
    "comparisons": partial(comparisons, *COMPARED),
    "serving": partial(comparisons, "serving"),
    "covariances": covariances,
    "precision": precisions,
    "vectors": vectors,
    "vectors:compared": vectors_compared,
    "growth": growth,
    "growth-commands": growth_of_commands,
    "torture": torture_runs,
    "torture:faults": torture_faults,
    "torture:long": torture_long,
    "torture:load": server_load,
    "torture:attacks": server_attacks,
    "mutants": mutants,
    "coverage": coverage,
    "membership": membership,
    "epochs": epochs,
    "threads": threads,
    "few-images": few_images,
    "near-copies": near_copies,
    "photo-networks": photo_networks,
    "adaptation": adaptation,
    "refits": refits,
    "encoders": encoder_upgrades,
    "encoders:front": encoder_front,
    "encoders:goal": encoder_goal,
    "encoders:maps": encoder_maps,
    "encoders:forecasts": encoder_forecasts,
    "encoders:pairs": encoder_pairs,
    "encoders:shuffled": encoder_shuffled,
    "encoders:chain": encoder_chain,
}
"""What stands between the markers of that name."""
