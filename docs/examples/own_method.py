"""The comparison of the tutorials "Your own method in 60 lines" and "Read a report": mine.py beside two other methods.

python docs/examples/own_method.py                 # a minute or two; writes runs/mine/report.html and the figures
python docs/examples/own_method.py --quick         # two short tasks: to see that it runs
"""

import argparse
from pathlib import Path

import gatf
from gatf.report.page import write_report

METHODS = ["finetune", "mine:Mine", "gatf"]
SHOWN = ["accuracy", "matrix-mine-mine", "matrix-gatf", "matrix-finetune", "drift"]


def main(quick, out, images):
    overrides = {"diagnostics": True, "optimisation.first.epochs": 20, "optimisation.next.epochs": 20}
    if quick:
        overrides |= {"optimisation.first.epochs": 1, "optimisation.next.epochs": 1, "scenario.stop_after": 2}
    folders = [out / method.partition(":")[0] for method in METHODS]
    for method, folder in zip(METHODS, folders, strict=True):
        gatf.run(gatf.load_config("digits", method=method, overrides=overrides), folder)
    write_report(folders, out / "report.html", figures=out / "figures")
    for name in SHOWN:
        image = (out / "figures" / f"{name}.png").read_bytes()
        (images / f"report-{name}.png").write_bytes(image)
    return gatf.results(*folders)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few epochs, two tasks")
    parser.add_argument("--out", type=Path, default=Path("runs/mine"), help="runs and report")
    parser.add_argument("--images", type=Path, default=Path(), help="the figures of the tutorials")
    options = parser.parse_args()
    print(main(options.quick, options.out, options.images)[["method", "a_last", "a_inc"]].to_string(index=False))
