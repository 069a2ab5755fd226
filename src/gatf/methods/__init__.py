"""Every method, by name."""

from gatf.errors import UserError, near_misses
from gatf.methods.adagauss import AdaGauss
from gatf.methods.base import Method
from gatf.methods.fetril import FeTrIL
from gatf.methods.finetune import Finetune
from gatf.methods.gatf import GATF
from gatf.methods.joint import Joint
from gatf.methods.pass_ import PASS

__all__ = ["METHODS", "Method", "method_class"]

METHODS: dict[str, type[Method]] = {
    "gatf": GATF,
    "adagauss": AdaGauss,
    "finetune": Finetune,
    "joint": Joint,
    "pass": PASS,
    "fetril": FeTrIL,
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise UserError(f"no method is called '{name}'{near_misses(name, METHODS)}")
    return METHODS[name]
