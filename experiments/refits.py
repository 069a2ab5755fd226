"""Does an update cost less, or answer worse, than what a user would write instead: refitting on all features so far?

    python experiments/refits.py     needs Oxford-IIIT Pet (GATF_DATA)

37 breeds in five updates. The same frozen network gives the features of all rows; the others keep every feature and
refit a classifier of scikit-learn with its default settings. CPU-seconds are of all five updates, features included.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import one_thread, save
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gatf import IncrementalClassifier
from gatf.data.inputs import read_class_folders

UPDATES = 5
REFITS = {
    "LinearDiscriminantAnalysis": lambda: LinearDiscriminantAnalysis(),
    "LinearDiscriminantAnalysis, lsqr, shrinkage=auto": lambda: LinearDiscriminantAnalysis("lsqr", shrinkage="auto"),
    "LogisticRegression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
    "RidgeClassifier": lambda: RidgeClassifier(),
}


def labelled(part: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_class_folders(Path(os.environ["GATF_DATA"]) / "oxford-pets" / part)
    return np.array(images.names()), labels


def main() -> None:
    (paths, labels), (asked, truth) = labelled("train"), labelled("test")
    parts = np.array_split(np.unique(labels), UPDATES)
    ours, seconds = IncrementalClassifier(device="cpu"), 0.0
    rows: list[dict[str, Any]] = []
    for part in parts:
        mine = np.isin(labels, part)
        started = time.process_time()
        ours.partial_fit(list(paths[mine]), labels[mine])
        seconds += time.process_time() - started
    kept = sum(each.numel() * each.element_size() for each in ours.model_.method.memory.buffers())
    accuracy = float((ours.predict(list(asked)) == truth).mean())
    rows.append({"row": "gatf, updated in place", "accuracy": accuracy, "seconds": seconds, "bytes": kept})
    started = time.process_time()
    features = ours.transform(list(paths)).astype(np.float32)
    extracting = time.process_time() - started
    asked_features = ours.transform(list(asked))
    for name, make in REFITS.items():
        seconds = extracting
        for last in range(1, UPDATES + 1):
            seen = np.isin(labels, np.concatenate(parts[:last]))
            started = time.process_time()
            fitted = make().fit(features[seen], labels[seen])
            seconds += time.process_time() - started
        accuracy = float((fitted.predict(asked_features) == truth).mean())
        rows.append({"row": name, "accuracy": accuracy, "seconds": seconds, "bytes": features.nbytes})
    for row in rows:
        print(row, flush=True)
    save("refits", rows)


if __name__ == "__main__":
    one_thread()
    main()
