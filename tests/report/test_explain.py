"""The pictures of the anchor show what the theorem says."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.report.explain import RIDGE, STYLES, Toy, few_pairs


def test_shrinkage_by_the_formula() -> None:
    """The example's axes are mapped onto each other, so γ_j/(γ_j + ρλ_i) is what is left of each."""
    toy = Toy.example()
    maps = toy.maps(RIDGE)
    assert toy.kept(maps["least squares"]) == pytest.approx((1, 1))
    assert toy.kept(maps["anchor"]) == pytest.approx((1 / (1 + RIDGE * 4), 0.8 / (0.8 + RIDGE * 0.09)))
    penalty = RIDGE * (4 + 0.09) / 2
    assert toy.kept(maps["ridge"]) == pytest.approx((1 / (1 + penalty), 0.8 / (0.8 + penalty)))


def test_from_few_pairs_the_anchor_errs_least() -> None:
    found = few_pairs(draws=10)
    least = {name: errors.min() for name, errors in found.errors.items()}
    assert set(least) == set(STYLES)
    assert least["anchor"] < 0.9 * min(least["ridge"], least["least squares"])
    assert found.errors["anchor"][0] == pytest.approx(found.errors["least squares"][0], rel=0.02)  # ρ → 0


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    told = CliRunner().invoke(cli.app, ["explain", "anchor", "-o", str(out), "--figures", str(tmp_path / "figures")])
    assert told.exit_code == 0, told.output
    text = out.read_text(encoding="utf-8")
    assert text.count("<figure") == text.count('<svg role="img"') == 5
    assert len(list((tmp_path / "figures").glob("*.pdf"))) == 5
    assert CliRunner().invoke(cli.app, ["explain", "nothing"]).exit_code == 2
