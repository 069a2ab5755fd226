"""The code of the tutorial "From 5 to 20 classes": a classifier that gains classes, beside one that forgets.

python docs/examples/five_to_twenty.py                 # a few minutes on one core, draws the figure
python docs/examples/five_to_twenty.py --quick         # seconds, for a look (and for the tests)
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

from gatf import IncrementalClassifier
from gatf.data.glyphs import load_glyphs
from gatf.settings import DataConfig, GlyphsConfig

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "gatf"}

UPDATES = [range(0, 5), range(5, 9), range(9, 13), range(13, 17), range(17, 20)]


def load_letters(images_per_class, tests_per_class):
    """Small images of the letters A to T, as arrays: training images and labels, test images and labels."""
    glyphs = GlyphsConfig(
        classes=20, train_per_class=images_per_class, test_per_class=tests_per_class, size=16, difficulty=0.3
    )
    source = load_glyphs(DataConfig(name="glyphs", glyphs=glyphs))
    names = np.array(source.class_names)
    train, test = source.train, source.test
    return train.images.numpy(), names[train.labels.numpy()], test.images.numpy(), names[test.labels.numpy()]


def grow(classifier, train_images, train_labels, test_images, test_labels):
    """Learn the letters in five portions. Returns the accuracy of every letter after each portion."""
    letters = np.unique(train_labels)
    table = np.full((len(letters), len(UPDATES)), np.nan)
    for step, portion in enumerate(UPDATES):
        new = np.isin(train_labels, letters[list(portion)])
        classifier.partial_fit(train_images[new], train_labels[new])
        print(classifier.report_)
        answers = classifier.predict(test_images)
        for row, letter in enumerate(letters[: portion.stop]):
            mine = test_labels == letter
            table[row, step] = 100 * np.mean(answers[mine] == letter)
    return table


def draw(tables, letters, path):
    """One map for each classifier: a row a letter, a column an update, dark where the letter is recognised."""
    figure, axes = plt.subplots(1, len(tables), figsize=(9, 6.5), sharey=True, layout="constrained")
    for axis, (title, table) in zip(axes, tables.items(), strict=True):
        shown = axis.imshow(table, vmin=0, vmax=100, cmap="YlGnBu", aspect="auto")
        for row, column in np.argwhere(np.isfinite(table)):
            value = table[row, column]
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value > 60 else "black")
        averages = [f"{step}\n{mean:.0f} %" for step, mean in enumerate(np.nanmean(table, axis=0))]
        averages[0] = averages[0].replace("0\n", "first fit\n", 1)
        axis.set(title=title, xlabel="update, and average over the letters known", yticks=range(len(letters)))
        axis.set_xticks(range(len(averages)), averages)
        axis.set_yticklabels(letters)
    figure.colorbar(shown, ax=axes, label="test images of the letter that are recognised (%)", shrink=0.6)
    figure.savefig(path, metadata={"Date": None})


def main(quick, out):
    images_per_class, epochs = (12, 1) if quick else (200, "auto")
    data = load_letters(images_per_class, tests_per_class=5 if quick else 50)
    letters = np.unique(data[1])

    remembering = IncrementalClassifier(method="gatf", epochs=epochs)
    forgetting = IncrementalClassifier(method="finetune", epochs=epochs, settings={"optimisation.next.lr": 0.1})
    tables = {"GATF": grow(remembering, *data), "Plain fine-tuning": grow(forgetting, *data)}
    draw(tables, letters, out)

    remembering.save(out.with_suffix(".gatf"))
    again = IncrementalClassifier.load(out.with_suffix(".gatf"))
    images = data[2]
    labels, certain = again.predict(images, return_certificate=True)
    right = labels == data[3]
    print(f"{certain.sum()} of {len(labels)} predictions are certified; {(right & certain).sum()} of them are correct;")
    print(f"of the {(~certain).sum()} others {(right & ~certain).sum()} are correct")
    return tables


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few images, few epochs: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("five-to-twenty.svg"), help="the figure")
    options = parser.parse_args()
    main(options.quick, options.out)
