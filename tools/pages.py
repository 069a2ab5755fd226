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
from typing import Any

from gatf.bench.plan import load_plan
from gatf.bench.published import load_published
from gatf.bench.tables import MISSING, aggregate, spread
from gatf.io.run_folder import parse_summary
from gatf.report.load import Run

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BENCHMARKS, EXPERIMENTS = ROOT / "results", ROOT / "benchmarks" / "results", ROOT / "experiments" / "results"
MAIN, LONG, COSINE = "cifar100-16px", "cifar100-16px-t20", "cifar100-16px-v2"
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

FRONT = ("joint", "gatf plus", "dpcr", "ldc", "adc", "gatf", "adagauss", "finetune")
"""Rows of the README's table."""
PAPER_SETTING, PAPER_PHOTOS = "cifar100-t10", ("cub200-t10", "cub200-t20")
ABLATION = {
    "distillation + MLP, refined": "adagauss",
    "topology-aware + MLP, refined": "gatf without anchor, refined",
    "topology-aware + anchor, refined": "gatf refined",
    "topology-aware + anchor": "gatf",
}
"""Rows of the paper's Table 3 and their names in the bench."""


def front_table() -> str:
    known, runs = aggregated(MAIN), collected(MAIN)
    minutes = {each.run.row: each.about["minutes"] for each in reversed(runs)}  # of the first seed
    rows = [
        [name, row["seeds"], *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc")),
         f"{minutes[name]:.0f}", f"{row['bytes_per_class']:,}"]
        for name in FRONT if (row := known.get(name))
    ]  # fmt: skip
    return table(["method", "seeds", "A_last %", "A_inc %", "minutes", "bytes per class"], rows)


def accuracy_table(bench: str, root: Path = RESULTS) -> str:
    """Every row of a bench, the machines that ran it, and the rows that reused the networks of another run."""
    runs, known = collected(bench, root), aggregated(bench, root)
    rows: list[Sequence[object]] = []
    for name in dict.fromkeys([*planned_rows(bench), *known]):
        row, own = known.get(name), [each for each in runs if each.run.row == name]
        if row is None:
            rows.append([name, 0, NOT_RUN, *[""] * 5])
            continue
        to_new = [each.run.old_to_new[-1] for each in own if each.run.old_to_new]
        rows.append([
            name, row["seeds"], *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc", "forgetting")),
            f"{fmean(to_new):.0f}" if to_new else MISSING, f"{own[0].about['minutes']:.0f}",
            f"{row['bytes_per_class']:,}",
        ])  # fmt: skip
    head = ["method", "seeds", "A_last %", "A_inc %", "forgetting", "old → new %", "minutes", "bytes per class"]
    return table(head, rows) + machines(runs) + reused(runs)


def machines(runs: Sequence[Collected]) -> str:
    kinds = Counter(f"{one.about['processor']}, {one.about['threads']} thread(s) per run" for one in runs)
    return f"\nMachines: {'; '.join(f'{kind} ({count} runs)' for kind, count in sorted(kinds.items()))}.\n"


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
    """A bench of which only the table is stored, in `results/<bench>/table.json`."""
    columns = {
        "a_last": "A_last %", "a_inc": "A_inc %", "accuracy_new": "after learning %", "forgetting": "forgetting",
        "total_seconds": "seconds",
    }  # fmt: skip
    rows = [
        [row["row"], row["seeds"], *(spread(row[of], row[f"{of}_std"]) for of in columns),
         f"{row['bytes_per_class']:,}"]
        for row in read(RESULTS / bench, "table")
    ]  # fmt: skip
    return table(["method", "seeds", *columns.values(), "bytes per class"], rows)


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


def ablation(bench: str = MAIN, root: Path = RESULTS) -> str:
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
    found, theirs = read(RESULTS / MAIN, "unrefined"), published()
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


def gap_table(bench: str) -> str:
    columns = {
        "own": "method %", "stored": "stored statistics %", "anew": "oracle statistics %", "probe": "linear probe %",
        "joint": "joint %", "transport": "transport gap", "readout": "readout gap",
        "representation": "representation gap",
    }  # fmt: skip
    rows = [[name, *(fixed(found.get(key)) for key in columns)] for name, found in accuracy_gaps(bench).items()]
    return table(["method", *columns.values()], rows)


def transports_table() -> str:
    rows = []
    for row in read(RESULTS / MAIN, "transports")["rows"]:
        errors = [MISSING] * 5
        if "chain_error" in row:
            images = row["image_errors"]
            values = (row["step_error"], row["chain_error"], images["0.5"], images["0.99"])
            errors = [*(f"{value:.2f}" for value in values), f"{row['tail'][-1]:.1f}"]
        rows.append([row["map"], *errors, fixed(row["old_to_new"]), fixed(row["a_last"])])
    head = ["map", "error, one task", "error, all tasks", "median image", "99th percentile", "T(S)", "old → new %",
            "A_last %"]  # fmt: skip
    return table(head, rows)


def certified_table(bench: str) -> str:
    """Share of certified predictions, with the transport error as measured and divided."""
    shares = {
        "certified": "as printed %", "whitened": "whitened %", "range": "range %", "range_shrunk": "range, shrunk %",
    }  # fmt: skip
    rows = [
        ["as measured" if row["divisor"] == 1 else f"÷ {row['divisor']}",
         *(f"{row[name]:.2g}" for name in ("eta_mean_whitened", "eta_cov_whitened")),
         *(fixed(100 * row[name]) for name in shares)]
        for row in read(RESULTS / bench, "certified")["rows"]
    ]  # fmt: skip
    return table(["error", "η_μ", "η_Σ", *shares.values()], rows)


def settings_table(bench: str = PHOTOS, root: Path = RESULTS) -> str:
    """A bench with several settings, beside the paper. Runs with the same config count for every setting."""
    known = {(row["setting"], row["row"]): row for row in aggregate(each.run.result for each in collected(bench, root))}
    plan = load_plan(bench).runs
    for run in plan:
        if (run.setting, run.row) in known:
            twins = [(each.setting, each.row) for each in plan if each.config == run.config]
            known |= dict.fromkeys(twins, known[run.setting, run.row])
    settings, numbers = list(dict.fromkeys(run.setting for run in plan)), load_published().numbers
    rows = []
    for name in planned_rows(bench):
        found = [known.get((setting, name)) for setting in settings]
        cells = [
            NOT_RUN if row is None else spread(row[of], row[f"{of}_std"]) for row in found for of in ("a_last", "a_inc")
        ]
        theirs = [numbers[setting].get(name) for setting in PAPER_PHOTOS]
        rows.append([name, *cells, *(f"{one[0].a_last:.1f}, {one[0].a_inc:.1f}" if one else MISSING for one in theirs)])
    head = ["method", *(f"{setting}: {name} %" for setting in settings for name in ("A_last", "A_inc"))]
    return table([*head, *(f"paper, {setting}" for setting in PAPER_PHOTOS)], rows) + machines(collected(bench, root))


def order_table(bench: str = MAIN, root: Path = RESULTS) -> str:
    """Ranks by A_last in the paper and here."""
    theirs, known = published(), aggregated(bench, root)
    both = sorted(theirs.keys() & known.keys(), key=lambda row: -theirs[row])
    ours = {row: known[row]["a_last"] for row in both}
    here = sorted(both, key=lambda row: -ours[row])
    rows = [[row, place, here.index(row) + 1] for place, row in enumerate(both, start=1)]
    pairs = [(ours[worse] - ours[better], better, worse) for better, worse in combinations(both, 2)]
    turned = sorted((pair for pair in pairs if pair[0] > 0), reverse=True)
    told = ", ".join(f"{worse} {gap:.1f} points above {better}" for gap, better, worse in turned)
    text = f"{len(pairs) - len(turned)} of {len(pairs)} pairs of methods have the order of the paper's Table 1."
    return table(["method", "rank in the paper", "rank here"], rows) + f"\n{text} The others: {told or 'none'}.\n"


# docs/uncertainty.md

NOVELTY = ("distance", "quotient", "relative distance", "energy", "probability", "own")
UPDATES = {
    "fine-tuning": "birds-finetune",
    'backbone adapted in every update (`adapt="always"`, GATF)': "birds-adapted",
    'frozen pretrained backbone, LDA (`adapt="never"`)': "birds-never",
    'default (`adapt="auto"`)': "birds-auto",
}
HARD = {
    "30 updates of one species each": "birds-singles",
    "3 images per species": "birds-three",
    "1 image per species": "birds-one",
    "classes with 500 and with 10 images": "cifar-imbalance",
}
SERIES = ("birds-frozen", "cifar")


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


def forecast_table(name: str) -> str:
    rows = []
    for row in series(name)["rows"]:
        low, high, true = row["expected_old_low"], row["expected_old_high"], row["accuracy_old"]
        if true is None:
            continue
        span = [MISSING] * 2 if low is None else [f"{low:.0f} to {high:.0f}", "yes" if low <= true <= high else "no"]
        rows.append([
            row["classes"], fixed(row["accuracy"]), fixed(true), fixed(row["expected_old"], 0), *span,
            fixed(row["calibration_error"]),
        ])  # fmt: skip
    head = ["classes", "accuracy %", "older classes: true %", "forecast %", "interval", "inside", "calibration error %"]
    return table(head, rows, left=0)


def unknown_table() -> str:
    """Mean AUROC over updates of each novelty score."""
    kinds = {"auroc": "unknown classes", "auroc_noise": "noise", "auroc_plain": "single colour"}
    rows = []
    for found in map(series, SERIES):
        for column, words in kinds.items():
            cells = []
            for score in NOVELTY:
                known = [row[column][score] for row in found["rows"] if score in row[column]]
                cells.append(fixed(fmean(known) if known else None, 3))
            rows.append([f"{found['what']}: {words}", *cells])
    return table(["out-of-distribution images", *NOVELTY[:-1], "score that `unknown` uses"], rows)


def rejection_table() -> str:
    columns = ("rejected_known", "rejected_strangers")
    rows = [
        [name, row["classes"], *(fixed(row[column]) for column in columns), row["rejection"]]
        for name in SERIES for row in series(name)["rows"] if "rejected_known" in row
    ]  # fmt: skip
    return table(["series", "classes", "known classes rejected %", "unknown classes rejected %", "rate"], rows)


def certified_updates() -> str:
    columns = ("accuracy", "certified", "accuracy_certified")
    rows = [
        [name, row["classes"], *(fixed(row[column]) for column in columns)]
        for name in SERIES for row in series(name)["rows"][1:] if "certified" in row
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
    wholes = {name: read(BENCHMARKS, name) for name in (*COMPARED, "covariance", "growth", "commands", "serving")}
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


def comparisons(*names: str) -> str:
    """Every result of these benchmarks, with its target."""
    rows = []
    for name in names:
        for result in read(BENCHMARKS, name)["results"]:
            unit = f" {result['unit']}" if result["unit"] else ""
            sides = [
                number(result[side]) + (unit if result[side] is not None else "") for side in ("ours", "reference")
            ]
            met = {True: "yes", False: "**no**", None: ""}[result["met"]]
            target = "" if result["target"] == "none" else result["target"]
            rows.append((f"{result['what']} (`{name}`)", *sides, number(result["ratio"]), target, met))
    return table(("measurement", "gatf", "reference", "× better", "target", "met"), rows)


def curves() -> dict[str, dict[str, dict[str, Record]]]:
    """The error of push-forwards: size of the residual → kind of noise → samples → errors."""
    results = read(BENCHMARKS, "pushforward")["results"]
    return {one["what"].split("g = ")[1].split(",")[0]: one["error_curve"] for one in results if "error_curve" in one}


def pushforward_errors() -> str:
    found = curves()
    kinds = list(next(iter(found.values())))
    head = ["samples", *(f"{kind}, g = {residual}" for residual in found for kind in kinds)]
    rows = []
    for count in next(iter(found.values()))[kinds[0]]:
        errors = [curve[kind].get(count, {}).get("cov") for curve in found.values() for kind in kinds]
        rows.append((number(float(count)), *(number(None if one is None else 100 * one, 2) for one in errors)))
    return table(head, rows)


def covariances() -> str:
    rows = []
    for data, kinds in read(BENCHMARKS, "covariance")["results"].items():
        for kind, row in kinds.items():
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
    return table(("part", "full count", f"count on {found.date}", "outcome", "earlier, larger run"), rows, left=5)


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
            f"Load average of the machine: {number(one['load_average'])}.\n"
        )
    return text if found else f"Not run on {tortured().date}: `make torture TORTURE='load photo-load'`\n"


ATTACK_COLUMNS = ("n", "p50 ms", "p99 ms", "refusals", "more MB")


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
        (what, *(cell for model in models for cell in attack_cells(each.get(model))),
         "yes" if all(one["met"] for one in each.values()) else "**no**")
        for what, each in by_attack.items()
    ]  # fmt: skip
    columns = [f"{model}: {column}" for model in models for column in ATTACK_COLUMNS]
    loads = [one["load_average"] for one in found]
    real = [one for one in found if one["what"] != "nobody attacks"]
    return (
        f"{sum(one['met'] for one in real)} of {len(real)} attacks met the goal. Each lasted "
        f"{number(found[0]['seconds'])} s; n counts the predictions of the other client. If they are few, the p99 is "
        f"nearly the longest. The server may use {size(found[0]['memory_allowed'])} more than before the attack. After "
        f"SIGTERM it ended within {duration(max(one['stop_seconds'] for one in found))}. The load average "
        f"of the machine was {number(min(loads))} to {number(max(loads))}.\n\n"
        + table(("attack", *columns, "goal met"), rows)
    )


def attack_cells(one: Record | None) -> list[str]:
    """Latency in milliseconds, refusals, and memory in megabytes above that before the attack."""
    if one is None:
        return [MISSING] * len(ATTACK_COLUMNS)
    latency = [f"{1000 * one[key]:.0f}" if one[key] < float("inf") else "no answer" for key in ("p50", "p99")]
    return [
        str(one["predictions"]),
        *latency,
        str(sum(one["refusals"].values())),
        f"{max(one['memory_more'], 0) / 1e6:.0f}",
    ]


def mutants() -> str:
    """The outcome of the listed mutants; those that were not run since they changed count as not run."""
    from mutants import MUTANTS, known

    outcomes = known()
    counts: dict[str, Counter[str]] = {}
    survivors = []
    for mutant in MUTANTS:
        outcome = outcomes.get(mutant.key, "not run")
        counts.setdefault(mutant.file.split("/")[0], Counter())[outcome] += 1
        if outcome == "survived":
            survivors.append(f"`{mutant.before.strip()}` → `{mutant.after.strip()}` in `{mutant.file}`")
    columns = ("killed", "survived", "not run")
    rows = [(f"`{name}`", sum(each.values()), *(each[of] for of in columns)) for name, each in sorted(counts.items())]
    total = [sum(row[place] for row in rows) for place in range(1, 5)]
    text = table(("package", "mutants", *columns), [*rows, ("all", *total)])
    return text + (f"\nSurvivors: {'; '.join(survivors)}.\n" if survivors else "")


def coverage() -> str:
    found = read(BENCHMARKS, "coverage")
    rows = [(f"`{name}`", one["lines"], f"{one['percent']:.0f} %") for name, one in sorted(found["packages"].items())]
    least = ", ".join(f"`{one['file']}` ({one['percent']:.0f} %)" for one in found["least"])
    return table(("package", "lines", "covered"), rows) + f"\nLowest coverage: {least}.\n"


def slowest() -> str:
    found = read(BENCHMARKS, "slowest")
    rows = [(f"`{test.removeprefix('tests/')}`", fixed(seconds)) for test, seconds in found["slowest"]]
    return table(("test", "CPU seconds"), [*rows, (f"all {found['tests']} tests", fixed(found["seconds"], 0))])


# studies: docs/privacy.md, docs/protocol.md, the lab notebook


def membership() -> str:
    rows = [
        (one["data"], one["images"], one["what"], f"{one['auc']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}",
         f"{one['accuracy']:.1f} %")
        for one in read(EXPERIMENTS, "membership")["attacks"]
    ]  # fmt: skip
    return table(("data", "training images per class", "attack on", "AUC", "95 % interval", "A_last"), rows)


def epochs() -> str:
    rows = []
    for count, found in read(EXPERIMENTS, "convergence").items():
        for task in (0, 1):
            own = [row for row in found["rows"] if row["task"] == task]
            late = own[-len(own) // 4]
            cells = [fixed(row[part]) for part in ("train", "test") for row in (late, own[-1])]
            rows.append([count, task + 1, *cells])
    head = ["epochs per task", "task", "train % after ¾", "at the end", "test % after ¾", "at the end"]
    image = f"![Accuracy on the training images of a task after every epoch](img/{MAIN}-epochs.png)\n\n"
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
    depends = [[name, "yes" if differs else "no"] for name, differs in found["operations"].items()]
    return table(head, rows) + "\n" + table(["operation", "depends on the number of threads"], depends, left=2)


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


METRICS = {"a_last": "A_last %", "a_inc": "A_inc %", "forgetting": "forgetting"}


def grouped(records: Iterable[Record], key: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], list[Record]]:
    """The records of every seed of each variant."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def study(name: str) -> str:
    """The variants of a study, mean over seeds."""
    groups = grouped(read(EXPERIMENTS, name), lambda record: (record["dataset"], record["what"]))
    rows = [[*key, len(own), *(mean_std([one[of] for one in own]) for of in METRICS)] for key, own in groups.items()]
    return table(["data", "variant", "seeds", *METRICS.values()], rows, left=2)


def orderings(group: str) -> str:
    """One group of the study of orderings, with the settings of every row."""

    def key(record: Record) -> tuple[str, ...]:
        settings = " ".join(f"`{name}={json.dumps(value)}`" for name, value in record["settings"].items())
        oracle = " (oracle)" if record["oracle"] in ("map", "statistics") else ""
        return record["dataset"], record["method"], record["what"] + oracle, settings

    groups = grouped((record for record in read(EXPERIMENTS, "orderings") if record["group"] == group), key)
    rows = [[*row, len(own), *(mean_std([one[of] for one in own]) for of in METRICS)] for row, own in groups.items()]
    return table(["data", "method", "variant", "settings", "seeds", *METRICS.values()], rows, left=4)


def tried() -> str:
    """Maps and mixtures that did not pay."""
    rows = []
    for key, own in grouped(read(EXPERIMENTS, "tried"), lambda record: (record["data"], record["what"])).items():
        errors = [one["step_error"] for one in own if one["step_error"] is not None]
        rules = [mean_std([one[rule] for one in own]) for rule in ("bayes", "rda")]
        error = fixed(fmean(errors), 2) if errors else ""
        rows.append([*key, len(own), error, *rules, fixed(fmean(one["components"] for one in own), 2)])
    head = ["data", "variant", "seeds", "error of class means", "`bayes`: A_last %", "`rda`: A_last %",
            "Gaussians per class"]  # fmt: skip
    return table(head, rows, left=2)


PARTS: dict[str, Part] = {
    f"results:{MAIN}": front_table,
    **{f"accuracy:{bench}": partial(accuracy_table, bench) for bench in (MAIN, LONG, COSINE)},
    **{f"paired:{bench}": partial(paired, bench, "gatf plus", "gatf") for bench in (MAIN, LONG)},
    **{f"gaps:{bench}": partial(gap_table, bench) for bench in (MAIN, LONG)},
    **{f"certified:{bench}": partial(certified_table, bench) for bench in (MAIN, "digits")},
    **{f"table:{bench}": partial(table_of, bench) for bench in ("digits", "glyphs")},
    "ablation": ablation,
    "paired:anchor": partial(paired, MAIN, "gatf refined", "gatf without anchor, refined"),
    "refinement": refinement,
    "transports": transports_table,
    f"settings:{PHOTOS}": settings_table,
    "order": order_table,
    "photos": updates_table,
    "hard": hard_table,
    **{f"forecast:{name}": partial(forecast_table, name) for name in ("birds-frozen", "cifar", "birds-adapted")},
    "unknown": unknown_table,
    "rejections": rejection_table,
    "certified:updates": certified_updates,
    "machine": machine,
    "comparisons": partial(comparisons, *COMPARED),
    "serving": partial(comparisons, "serving"),
    "errors": pushforward_errors,
    "covariances": covariances,
    "precision": precisions,
    "growth": growth,
    "growth-commands": growth_of_commands,
    "torture": torture_runs,
    "torture:faults": torture_faults,
    "torture:long": torture_long,
    "torture:load": server_load,
    "torture:attacks": server_attacks,
    "slowest": slowest,
    "mutants": mutants,
    "coverage": coverage,
    "membership": membership,
    "epochs": epochs,
    "threads": threads,
    "few-images": few_images,
    "options": partial(study, "options"),
    "rotations": partial(study, "rotations"),
    "tried": tried,
    **{f"orderings:{group}": partial(orderings, group) for group in ("dpcr", "ewc", "fetril", "adagauss")},
}
"""What stands between the markers of that name."""
