"""Write the tables of docs/performance.md, docs/scaling.md and docs/studio.md from benchmarks/results/*.json.

python tools/performance.py            after `make bench`
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from update_docs import replace_between

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "img" / "pushforward.svg"
GROWTH = ROOT / "docs" / "img" / "growth.svg"
COMPARED = (
    "startup", "photos", "augment", "decode", "training", "refresh", "anchor", "pushforward", "scoring", "compiling",
    "memory", "whole_run", "waiting",
)  # fmt: skip
"""Benchmarks whose results are lines of the table."""
OTHERS = ("covariance", "scaling", "growth", "commands", "demo", "sharing", "serving")
"""Benchmarks that have tables of their own."""
TOOLS = {"precision": "tools/precision.py"}
"""What is not measured by a benchmark."""
KINDS = ("full", "lowrank", "diag", "shared")
PICTURED = 0.3
"""Size of the residual whose error curve is drawn."""
Whole = dict[str, Any]


def read(name: str, results: Path) -> Whole:
    """What a benchmark wrote."""
    path = results / f"{name}.json"
    try:
        whole: Whole = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SystemExit(f"there is no {path}: run python {TOOLS.get(name, 'benchmarks/run.py ' + name)}") from None
    if "environment" not in whole:
        raise SystemExit(f"{path} is of an older kind: run python benchmarks/run.py {name}")
    return whole


def number(value: float | None, digits: int = 3) -> str:
    """Few digits, thousands apart; nothing is a dash."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{digits}g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{number(count / one)} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time for people."""
    for unit, one in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= one:
            return f"{number(seconds / one)} {unit}"
    return f"{number(seconds * 1e6)} µs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


# docs/performance.md


def machine(wholes: dict[str, Whole]) -> str:
    """What the numbers were measured on, and which come from quick runs."""
    environments = {name: whole["environment"] for name, whole in wholes.items()}
    first = next(iter(environments.values()))
    processors: dict[str, list[str]] = {}
    for name, each in environments.items():
        processors.setdefault(each["processor"], []).append(name)
    told = next(iter(processors))
    if len(processors) > 1:
        told = "; ".join(f"{processor}: {', '.join(names)}" for processor, names in processors.items())
    facts = [("processor", told), ("processors", str(first["processors"])), ("system", first["system"])]
    packages: dict[str, str] = {}
    for each in environments.values():
        packages |= {name: value for name, value in each.items() if name not in NOT_PACKAGES}
    facts.append(("versions", ", ".join(f"{name} {value}" for name, value in packages.items())))
    threads: dict[int, list[str]] = {}
    for name, each in environments.items():
        threads.setdefault(each["threads"], []).append(name)
    facts.append(("threads", "; ".join(f"{count}: {', '.join(names)}" for count, names in sorted(threads.items()))))
    quick = [name for name, whole in wholes.items() if whole["quick"]]
    if quick:
        facts.append(("from quick runs, not to be quoted", ", ".join(quick)))
    return "| machine | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in facts)


NOT_PACKAGES = ("system", "processor", "processors", "threads")


def comparisons(wholes: dict[str, Whole]) -> str:
    """Every result of every benchmark, a line each."""
    rows = []
    for name in wholes:
        for result in wholes[name]["results"]:
            unit = f" {result['unit']}" if result["unit"] else ""
            ours, reference = (
                number(result[side]) + (unit if result[side] is not None else "") for side in ("ours", "reference")
            )
            met = {True: "yes", False: "**no**", None: ""}[result["met"]]
            ratio = "–" if result["ratio"] is None else f"{result['ratio']:.3g}"
            target = "" if result["target"] == "none" else result["target"]
            rows.append((f"{result['what']} (`{name}`)", ours, reference, ratio, target, met))
    return table(("what", "ours", "reference", "× better", "target", "met"), rows)


def profile(training: Whole) -> str:
    rows = [(f"`{row['operation']}`", f"{row['percent']:.1f}", number(row["calls"])) for row in training["profile"]]
    return table(("operation", "% of the time", "calls per epoch"), rows)


def demo(whole: Whole) -> str:
    """Processor seconds of the parts of a digits run."""
    total = sum(whole["seconds"].values())
    rows = [
        (part, number(seconds), f"{100 * seconds / total:.1f}", number(whole["calls"].get(part)))
        for part, seconds in whole["seconds"].items()
    ]
    rows.append(("**in all**", f"**{number(total)}**", "", ""))
    return table(("part", "processor seconds", "%", "calls"), rows)


def curves(pushforward: Whole) -> list[tuple[str, dict[str, dict[str, dict[str, float]]]]]:
    """Name and error curve of every size of the residual: kind of draws → samples → errors."""
    return [(result["what"], result["error_curve"]) for result in pushforward["results"] if "error_curve" in result]


def errors(pushforward: Whole) -> str:
    """Errors of covariances in per cent: a row a number of samples, and for each residual a column a kind of draws."""
    found = [(what.split("g = ")[1].split(",")[0], curve) for what, curve in curves(pushforward)]
    kinds = list(found[0][1])
    head = ["samples", *(f"{kind}, g = {residual}" for residual, _ in found for kind in kinds)]
    rows = []
    for count in found[0][1][kinds[0]]:
        cells = [curve[kind].get(count, {}).get("cov") for _, curve in found for kind in kinds]
        rows.append((number(float(count)), *(number(None if cell is None else 100 * cell, 2) for cell in cells)))
    return table(head, rows)


def draw(pushforward: Whole, path: Path) -> None:
    """The error curve of one residual, both axes logarithmic."""
    pyplot = _pyplot()
    curve = next(curve for what, curve in curves(pushforward) if f"g = {PICTURED}," in what)
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for kind, by_count in curve.items():
        counts = sorted(by_count, key=int)
        axes.loglog([int(each) for each in counts], [100 * by_count[each]["cov"] for each in counts], "o-", label=kind)
    axes.set(xlabel="samples per class", ylabel="error of covariances, %")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def memory(whole: Whole) -> str:
    """Memory as each task begins."""
    columns = [("tensors alive, MB", whole["living_megabytes"]), ("resident, MB", whole["resident_megabytes"])]
    shown = sorted({*range(0, whole["tasks"], 5), 1, 2, whole["tasks"] - 1})
    rows = [(name, *(f"{values[task]:.1f}" for task in shown)) for name, values in columns]
    return table(("as a task begins", *(f"task {task}" for task in shown)), rows)


def compiling(whole: Whole) -> str:
    (result,) = whole["results"]
    even = result["break_even_steps"]
    rows = [
        ("a step, eager", duration(result["reference"])),
        ("a step, compiled", duration(result["ours"])),
        ("compiling", duration(result["compile_seconds"])),
        ("earned after", "never" if even is None else f"{number(even)} steps"),
    ]
    return table(("", f"batch {whole['batch']}"), rows)


def covariances(whole: Whole) -> str:
    rows = []
    for data, kinds in whole["results"].items():
        for kind, row in kinds.items():
            last, along = (_over_seeds(row[name]) for name in ("a_last", "a_inc"))
            seeds = str(len(row["a_last"]["values"]))
            rows.append((f"{data}, `{kind}`", seeds, last, along, number(row["bytes_per_class"])))
    return table(("data and kind", "seeds", "A_last %", "A_inc %", "bytes per class"), rows)


def precisions(whole: Whole) -> str:
    """Accuracy in float32 and bfloat16 over the seeds that have both, and whether they differ by more than seeds do."""
    rows = []
    for data, found in whole["data"].items():
        plain, half = (found["runs"][name] for name in ("32-true", "bf16-mixed"))
        seeds = [seed for seed in plain if seed in half]
        for measure, heading in (("a_last", "A_last"), ("a_inc", "A_inc")):
            values = [[runs[seed][measure] for seed in seeds] for runs in (plain, half)]
            differences = [after - before for before, after in zip(*values, strict=True)]
            spread = statistics.stdev(values[0])
            within = abs(statistics.mean(differences)) <= spread
            cells = [f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}" for each in values]
            off = f"{statistics.mean(differences):+.1f} ± {statistics.stdev(differences):.1f}"
            rows.append((f"{data}, {heading} %", str(len(seeds)), *cells, off, "yes" if within else "**no**"))
    return table(("data", "seeds", "float32", "bfloat16", "difference, seed by seed", "within seeds' spread"), rows)


def _over_seeds(accuracy: dict[str, Any]) -> str:
    spread = f" ± {accuracy['std']:.1f}" if len(accuracy["values"]) > 1 else ""
    return f"{accuracy['mean']:.1f}{spread}"


# docs/scaling.md


def growth(whole: Whole) -> str:
    """Seconds by classes, a row a part and a dimension, and the exponent of the number of classes."""
    sizes = sorted({int(count) for by_dim in whole["seconds"].values() for times in by_dim.values() for count in times})
    rows = []
    for part, by_dim in whole["seconds"].items():
        for dim, times in by_dim.items():
            if times:
                cells = (duration(times[str(size)]) if str(size) in times else "–" for size in sizes)
                rows.append((f"{part}, S = {dim}", *cells, number(whole["exponents"][part][dim], 2)))
    return table(("what", *(f"C = {number(size)}" for size in sizes), "exponent of C"), rows)


def growth_memory(whole: Whole) -> str:
    """Memory at the peak of each part, at the most classes that were measured, by dimension."""
    dims = sorted({int(dim) for by_dim in whole["peak_bytes"].values() for dim in by_dim})
    rows = []
    for part, by_dim in whole["peak_bytes"].items():
        cells = []
        for dim in dims:
            peaks = by_dim.get(str(dim), {})
            most = max(peaks, key=int, default=None)
            cells.append("–" if most is None else f"{size(peaks[most])}, C = {number(int(most))}")
        rows.append((part, *cells))
    return table(("memory at the peak", *(f"S = {dim}" for dim in dims)), rows)


def growth_of_commands(whole: Whole) -> str:
    """Seconds of whole commands by classes, and the exponent of the number of classes."""
    sizes = sorted({int(count) for times in whole["seconds"].values() for count in times})
    rows = []
    for name, times in whole["seconds"].items():
        cells = (duration(times[str(count)]) if str(count) in times else "–" for count in sizes)
        peaks = whole["peak_bytes"][name]
        rows.append((name, *cells, number(whole["exponents"][name], 2), size(peaks[max(peaks, key=int)])))
    return table(("what", *(f"C = {number(count)}" for count in sizes), "exponent of C", "memory at the peak"), rows)


def sharing(whole: Whole) -> str:
    """Training steps of one process and of two: images per second where nothing else ran, and processor time."""
    costs, speeds = whole["processor_seconds_per_image"], whole.get("images_per_second", {})
    alone = next(iter(costs))
    rows = []
    for way, cost in costs.items():
        gain = speeds[way] / speeds[alone] if speeds else None
        rows.append((way, number(speeds.get(way)), number(gain), duration(cost)))
    return table(("training steps", "images per second", "× one thread", "processor time of an image"), rows)


def draw_growth(whole: Whole, path: Path) -> None:
    """Seconds over classes at the smallest dimension, both axes logarithmic."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    dim = min((dim for by_dim in whole["seconds"].values() for dim in by_dim), key=int)
    for part, by_dim in whole["seconds"].items():
        times = by_dim.get(dim, {})
        counts = sorted(times, key=int)
        axes.loglog([int(each) for each in counts], [times[each] for each in counts], "o-", label=part)
    axes.set(xlabel=f"classes (S = {dim})", ylabel="processor seconds")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gatf"
    from matplotlib import pyplot

    return pyplot


def model(scaling: Whole) -> str:
    rows = []
    for part in scaling["components"]:
        shown = duration if part["unit"] == "s" else size
        largest = part["held_out"]
        terms = " + ".join(_term(name, value, shown) for name, value in part["coefficients"].items() if value > 0)
        rows.append((
            part["name"], terms, f"{part['median_error_percent']:.0f}", f"{part['worst_error_percent']:.0f}",
            f"{largest['configuration']}: {shown(largest['measured'])}", f"{largest['error_percent']:+.0f}",
        ))  # fmt: skip
    head = (
        "part",
        "fitted cost",
        "median error %",
        "worst %",
        "largest, measured",
        "predicted from the others, error %",
    )
    return table(head, rows)


PER = {
    "operations": (1e9, "10⁹ operations"),
    "bytes": (1e9, "GB"),
    "squares": (1e6, "10⁶ S²"),
    "cubes": (1e6, "10⁶ S³"),
}


def _term(name: str, value: float, shown: Any) -> str:
    if name == "once":
        return str(shown(value))
    if name == "bytes" and shown is size:
        return f"{value:.2f} × counted bytes"
    one, unit = PER[name]
    return f"{shown(value * one)}/{unit}"


def whole_run(scaling: Whole) -> str:
    checked = scaling.get("whole_run")
    if checked is None:
        return "A quick run does not check the sum.\n"
    return (
        f"{checked['what']}: measured {duration(checked['measured'])}, predicted {duration(checked['predicted'])} "
        f"({checked['error_percent']:+.0f} %).\n"
    )


def bytes_a_class(scaling: Whole) -> str:
    rows = [
        (f"`{row['kind']}`, S = {row['dim']}", number(row["kept"]), number(row["read"]))
        for row in scaling["bytes_a_class"]
    ]
    return table(("covariance", "kept, bytes per class", "more while scoring"), rows)


def traffic(scaling: Whole) -> str:
    jobs = scaling["imagenet"]
    rows = []
    for when in ("step", "refresh", "task"):
        for what in jobs[0]["bytes_sent"][when]:
            rows.append((f"each {when}: {what}", *(size(job["bytes_sent"][when][what]) for job in jobs)))
    for link in jobs[0]["exchange_percent"]:
        cells = (f"{job['exchange_percent'][link]:.0f} %" for job in jobs)
        rows.append((f"part of a step's time, {link}", *cells))
    return table(("a process sends", *(f"S = {job['dim']}" for job in jobs)), rows)


def imagenet(scaling: Whole) -> str:
    jobs = scaling["imagenet"]
    rows = [("parameters trained", *(f"{job['trained_parameters'] / 1e6:.1f} M" for job in jobs))]
    rows.append(("images per second, all GPUs", *(number(job["images_a_second"]) for job in jobs)))
    rows += [(name, *(duration(3600 * job["hours"][name]) for job in jobs)) for name in jobs[0]["hours"]]
    rows.append(("**in all**", *(f"**{duration(3600 * job['hours_in_all'])}**" for job in jobs)))
    rows += [
        (f"memory of a process: {name}", *(size(job["bytes_a_process"][name]) for job in jobs))
        for name in jobs[0]["bytes_a_process"]
    ]
    return table(("", *(f"S = {job['dim']}, batch {job['batch']}" for job in jobs)), rows)


def decoding(scaling: Whole, decode: Whole) -> str:
    """Cores that keep the GPUs of the ImageNet prediction busy."""
    slowest = min(result["ours"] for result in decode["results"])
    wanted = max(job["images_a_second"] for job in scaling["imagenet"])
    return (
        f"A core of this machine decodes {number(slowest)} JPEG photos per second: {number(wanted)} images per second "
        f"take {number(wanted / slowest, 2)} such cores in all. `data.workers` is the number for each process.\n"
    )


def many_classes(scaling: Whole) -> str:
    rows = []
    for row in scaling["many_classes"]:
        rows.append((
            f"`{row['kind']}`, S = {row['dim']}", size(row["bytes_kept"]), size(row["bytes_read"]),
            duration(row["seconds_alone"]), duration(row["seconds_in_batch"]), duration(row["transport_here"]),
            duration(row["transport_gpu"]),
        ))  # fmt: skip
    head = (
        "covariance", "kept", "more while scoring", "one image here", "an image of 256 here",
        "transport per task, here", "transport per task, GPU",
    )  # fmt: skip
    return table(head, rows)


def walls(scaling: Whole) -> str:
    rows = [
        (f"{row['what']}, S = {row['dim']}", *(number(float(f"{row['classes'][kind]:.2g}")) for kind in KINDS))
        for row in scaling["walls"]
    ]
    return table(("what happens", *(f"`{kind}`" for kind in KINDS)), rows)


def assumptions(scaling: Whole) -> str:
    assumed = scaling["assumptions"]
    gpu = assumed["gpu"]
    rows = [
        ("GPUs, one process each", str(assumed["processes"])),
        ("float32 operations per second", f"{gpu['operations'] / 1e12:g} × 10¹²"),
        ("float64 operations per second", f"{gpu['doubles'] / 1e12:g} × 10¹²"),
        ("bytes written per second", size(gpu["written"])),
        ("bytes sent per second, within a node", size(gpu["sent"])),
        ("bytes sent per second, between nodes", size(assumed["ethernet"])),
        ("samples per class in transport", f"{assumed['samples_a_dimension']} S"),
    ]
    return table(("assumed, not measured", "value"), rows)


# all of it


def sections(results: Path) -> dict[str, dict[str, str]]:
    """Page → marker → what stands between."""
    wholes = {name: read(name, results) for name in (*COMPARED, *OTHERS)}
    scaling = wholes["scaling"]
    return {
        "performance.md": {
            "machine": machine(wholes),
            "comparisons": comparisons({name: wholes[name] for name in COMPARED}),
            "profile": profile(wholes["training"]),
            "demo": demo(wholes["demo"]),
            "errors": errors(wholes["pushforward"]),
            "memory": memory(wholes["memory"]),
            "compiling": compiling(wholes["compiling"]),
            "precision": precisions(read("precision", results)),
            "covariances": covariances(wholes["covariance"]),
        },
        "scaling.md": {
            "sharing": sharing(wholes["sharing"]),
            "growth": growth(wholes["growth"]),
            "growth-memory": growth_memory(wholes["growth"]),
            "growth-commands": growth_of_commands(wholes["commands"]),
            "model": model(scaling),
            "whole-run": whole_run(scaling),
            "bytes": bytes_a_class(scaling),
            "assumptions": assumptions(scaling),
            "imagenet": imagenet(scaling),
            "decoding": decoding(scaling, wholes["decode"]),
            "traffic": traffic(scaling),
            "many-classes": many_classes(scaling),
            "walls": walls(scaling),
        },
        "studio.md": {"serving": comparisons({"serving": wholes["serving"]})},
    }


def filled(page: str, parts: dict[str, str]) -> str:
    """A page with its generated parts replaced."""
    for name, content in parts.items():
        page = replace_between(page, name, content)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    results: Path = parser.parse_args().results
    for name, parts in sections(results).items():
        path = ROOT / "docs" / name
        path.write_text(filled(path.read_text(encoding="utf-8"), parts), encoding="utf-8")
    draw(read("pushforward", results), PICTURE)
    draw_growth(read("growth", results), GROWTH)


if __name__ == "__main__":
    main()
