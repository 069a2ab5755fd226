"""Are the statements about a classifier on a frozen network true: accuracy, forecast, probabilities, rejections?

    python experiments/truth.py FEATURES [birds pets cifar digits trained]     all without a choice; needs GATF_DATA

Features of EfficientNet-Lite0 (birds and CIFAR-100 at 128 pixels, Pets at 224) are stored in the folder FEATURES; the
digits of scikit-learn are their own features. Classes come in updates of five in three random orders; a third of the
classes is never learnt. After every update the model's statements, which come from learnt images that are left out in
turn, are compared with test images. `trained` is another classifier: a small network that GATF trains on digits, in
updates of two classes; its statements come from held-out images. docs/uncertainty.md shows the results.
"""

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import photo_networks
import torch
from common import load, one_thread, rounded, save
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor

from gatf import IncrementalClassifier
from gatf.data.decode import CENTRAL_SHARE, centre_box
from gatf.data.encoded import Encoded, Files, ParquetRows, decode_all
from gatf.evaluation.calibration import expected_calibration_error, reliability
from gatf.geometry.leave_one_out import LeaveOneOut
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import linear_discriminant
from gatf.incremental.statistics import accuracy_of, measured_after
from gatf.model.calibration import NO_CALIBRATION, calibration_sums, fitted_temperature, newest
from gatf.model.calibration import softmax_with_temperature as softmax
from gatf.model.novelty import energy, nearness, rejection_threshold
from gatf.nets import build_backbone
from gatf.settings import BackboneConfig

DATA = {"birds": 128, "pets": 224, "cifar": 128, "digits": 0}
"""Data sets and sides of their images."""
PER_UPDATE, ORDERS, PROMISED = 5, 3, 0.1
TRAINED, SIZES, TRAINED_ORDERS = "digits, trained network", (3, 2, 2), 8
"""The other classifier's name, the classes of its updates, and its orders."""
TRAIN, TEST = 60, 40
"""Images per class of CIFAR-100."""


def images(name: str, *, train: bool) -> tuple[Encoded, np.ndarray]:
    """Encoded images and labels: 50 random classes of CIFAR-100, 60 random species, all 37 pets."""
    root, draws = Path(os.environ["GATF_DATA"]), np.random.default_rng(0)
    objects, species = draws.permutation(100)[:50].tolist(), draws.permutation(200)[:60]
    if name == "cifar":
        import pyarrow.parquet as pq

        file = root / "cifar100" / ("train.parquet" if train else "test.parquet")
        labels = np.array(pq.read_table(file, columns=["fine_label"]).column(0))
        places = np.concatenate([np.flatnonzero(labels == each)[: TRAIN if train else TEST] for each in objects])
        return ParquetRows.whole([file], "img").take(places.tolist()), np.array(
            [objects.index(k) for k in labels[places]]
        )
    if name == "birds":
        folder = root / "cub200/CUB_200_2011"
        learnt = photo_networks._cub_training(folder)
        files = [each for each in sorted(folder.glob("images/*/*.jpg")) if (each.name in learnt) == train]
        names = sorted({each.parent.name for each in files})
        kept = [names[number] for number in species]
    else:
        files = sorted((root / "oxford-pets" / ("train" if train else "test")).glob("*/*.jpg"))
        kept = sorted({each.parent.name for each in files})
    files = [each for each in files if each.parent.name in kept]
    return Files(tuple(map(str, files))), np.array([kept.index(each.parent.name) for each in files])


@torch.no_grad()
def features(folder: Path, name: str) -> dict[str, Tensor]:
    """Features and labels for training and testing: xtr, ytr, xte, yte."""
    if name == "digits":
        x, y = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
        train = torch.arange(len(y)) % 2 == 0
        return {"xtr": x[train], "ytr": y[train], "xte": x[~train], "yte": y[~train]}
    file = folder / f"{name}.npz"
    if not file.is_file():
        net = build_backbone(BackboneConfig(name="efficientnet_lite0", bottleneck=None), 3).eval()
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in net.normalisation)  # type: ignore[union-attr]
        arrays = {}
        for part in ("tr", "te"):
            encoded, arrays[f"y{part}"] = images(name, train=part == "tr")
            found = []
            for start in range(0, len(encoded), 64):
                some = encoded.take(range(start, min(start + 64, len(encoded))))
                pixels, _ = decode_all(some, DATA[name], choose=lambda w, h: centre_box(w, h, zoom=1 / CENTRAL_SHARE))
                found.append(net((pixels / 255 - mean) / std))
            arrays[f"x{part}"] = torch.cat(found).numpy()
        np.savez(file, **arrays)
    with np.load(file) as stored:
        return {key: torch.from_numpy(value) for key, value in stored.items()}


def calibration_error(probabilities: Tensor, right: Tensor) -> float:
    return 100 * expected_calibration_error(reliability(probabilities, right))


def detectors(scores: Tensor, distances: Tensor, points: Tensor, vim: Any, t: float) -> Any:
    """Novelty scores, higher for unknown images: Mahalanobis (Lee et al., 2018), relative Mahalanobis (Ren et al.,
    2021), energy (Liu et al., 2020), ViM (Wang et al., CVPR 2022), and the quotient that `unknown` uses."""
    nearest, centre = distances[:, :-1].amin(1), distances[:, -1]
    energies = energy(scores, t)[:, 0]
    return {
        "Mahalanobis": nearest, "relative": nearest - centre, "energy": energies,
        "ViM": vim(points) + energies, "quotient": nearest / centre,
    }  # fmt: skip


def series(name: str, data: dict[str, Tensor], seed: int) -> list[dict[str, Any]]:
    classes = int(data["ytr"].max()) + 1
    per = PER_UPDATE if classes > 10 else 2
    known = classes * 2 // 3 // per * per
    place = torch.randperm(classes, generator=torch.Generator().manual_seed(seed)).argsort()
    ytr, yte = (place[data[key].long()] for key in ("ytr", "yte"))
    total: PooledMoments | None = None
    measured, sums, pool = torch.zeros(0, 3, dtype=torch.float64), NO_CALIBRATION, torch.zeros(0)
    unknown, rows = data["xte"][yte >= known], []
    for seen in range(per, known + 1, per):
        mine = (ytr >= seen - per) & (ytr < seen)
        x, y = data["xtr"][mine].double(), ytr[mine]
        fresh = PooledMoments.of(x, y, classes=seen)
        total = fresh if total is None else total.merge(fresh)
        share = total.noise_share()
        rule, left_out = (
            linear_discriminant(total.means, total.covariance(), share, total.counts), LeaveOneOut(total, share)
        )  # fmt: skip
        scores, distances = left_out.scores(x, y)
        measured = measured_after(measured, scores, y)
        sums = newest(calibration_sums(scores, y), sums)
        pool = torch.cat([pool, nearness(distances)[:, 0]])
        temperature, threshold = fitted_temperature(sums), rejection_threshold(pool, PROMISED)
        asked, truth = data["xte"][yte < seen], yte[yte < seen]
        known_scores, known_far, unknown_far = rule.scores(asked), *map(left_out.distances, (asked, unknown))
        right, older = known_scores.argmax(1) == truth, truth < seen - per
        probabilities = softmax(known_scores, temperature).amax(1)
        draws = torch.rand(20, len(right), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        floor = sum(calibration_error(probabilities, each < probabilities) for each in draws) / len(draws)
        row = {
            "data": name, "order": seed, "classes": seen, "accuracy": 100 * float(right.double().mean()),
            "calibration_error": calibration_error(probabilities, right), "calibration_floor": floor,
            "confidence": 100 * float(probabilities.mean()),
            "rejected_known": 100 * float((nearness(known_far) > threshold).double().mean()),
            "rejected_unknown": 100 * float((nearness(unknown_far) > threshold).double().mean()),
        }  # fmt: skip
        whole = accuracy_of(measured)
        row |= {"expected": None if whole is None else whole.percent}
        if seen > per and (found := accuracy_of(measured[: seen - per])) is not None:
            row |= {"old": 100 * float(right[older].double().mean()), "forecast": found.percent, "error": found.error}
            row |= {"test_error": 100 * float(right[older].double().std()) / int(older.sum()) ** 0.5}
        rows.append(rounded(row, 4))
        if seen < known:
            continue
        overall, learnt = total.overall(), energy(scores, temperature).mean()
        kept = min(512, len(x) // 2)  # axes of the principal space; the residual is what the others show
        axes = torch.linalg.eigh(overall.covariance()).eigenvectors[:, : max(1, x.shape[1] - kept)]
        residual = partial(lambda z, axes, mean: ((z.double() - mean) @ axes).norm(dim=1), axes=axes, mean=overall.mean)
        scale = -learnt / residual(x).mean()
        vim = partial(lambda z, scale, residual: scale * residual(z), scale=scale, residual=residual)
        novel = [
            detectors(*each, vim, temperature)
            for each in ((known_scores, known_far, asked), (rule.scores(unknown), unknown_far, unknown))
        ]
        is_unknown = np.r_[np.zeros(len(asked)), np.ones(len(unknown))]
        rows[-1]["auroc"] = {
            key: round(roc_auc_score(is_unknown, torch.cat([each[key] for each in novel])), 4) for key in novel[0]
        }
    return rows


def trained(seed: int) -> list[dict[str, Any]]:
    """Statements of a network that is trained in every update, so that older classes are transported."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    order, train = np.random.default_rng(seed).permutation(10), np.arange(len(labels)) % 5 > 0
    learner = IncrementalClassifier(
        width=16, feature_dim=16, epochs=20, device="cpu", random_state=seed, unknown=PROMISED, unknown_label=-1
    )
    rows, seen, unknown = [], 0, order[sum(SIZES) :]
    for size in SIZES:
        old, fresh, seen = order[:seen], order[seen : seen + size], seen + size
        learner.partial_fit(images[train & np.isin(labels, fresh)], labels[train & np.isin(labels, fresh)])
        report, asked = learner.report_, ~train & np.isin(labels, order[:seen])
        found = torch.from_numpy(learner.predict_proba(images[asked]))
        right = torch.from_numpy(learner.classes_[found.argmax(1)] == labels[asked])
        older, sure = torch.from_numpy(np.isin(labels[asked], old)), found.amax(1)
        draws = torch.rand(20, len(right), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        row = {
            "data": TRAINED, "order": seed, "classes": seen, "accuracy": 100 * float(right.double().mean()),
            "calibration_error": calibration_error(sure, right),
            "calibration_floor": sum(calibration_error(sure, each < sure) for each in draws) / len(draws),
            "confidence": 100 * float(sure.mean()), "expected": report.expected_all,
            "rejected_known": 100 * float((learner.predict(images[asked]) == -1).mean()),
            "rejected_unknown": 100 * float((learner.predict(images[~train & np.isin(labels, unknown)]) == -1).mean()),
        }  # fmt: skip
        if len(old) and report.expected_old is not None and report.expected_old_low is not None:
            row |= {"old": 100 * float(right[older].double().mean()), "forecast": report.expected_old}
            row |= {"error": (report.expected_old - report.expected_old_low) / 2}
            row |= {"test_error": 100 * float(right[older].double().std()) / int(older.sum()) ** 0.5}
        rows.append(rounded(row, 4))
    return rows


def main() -> None:
    folder, chosen = Path(sys.argv[1]), sys.argv[2:] or [*DATA, "trained"]
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    rows = [
        row
        for row in load("truth", [])
        if row["data"] not in [TRAINED if name == "trained" else name for name in chosen]
    ]
    for name in chosen:
        data = {} if name == "trained" else features(folder, name)
        for seed in range(TRAINED_ORDERS if name == "trained" else ORDERS):
            rows += trained(seed) if name == "trained" else series(name, data, seed)
            print(name, seed, rows[-1], flush=True)
            save("truth", rows)


if __name__ == "__main__":
    one_thread()
    main()
