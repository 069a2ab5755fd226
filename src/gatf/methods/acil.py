"""ACIL (Zhuang, Weng, Wei, Xie, Toh, Lin: "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and
Privacy Protection", NeurIPS 2022)."""

from typing import Any

from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import ridge_readout
from gatf.methods.parts.closed_form import Analytic, AnalyticConfig, LinearRule


class ACILConfig(AnalyticConfig):
    name: str = "acil"


class ACIL(Analytic[ACILConfig]):
    """Ridge regression on random ReLU features. The paper updates the inverse of the regularised Gram matrix from task
    to task (Eq. 9 and 10); the sums solved here give the same weights."""

    name = "acil"
    Config = ACILConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rule = LinearRule(self.config.projections)

    def solve(self, total: PooledMoments) -> None:
        self.rule.set(ridge_readout(total.gram(), total.sums(), self.config.ridge))
