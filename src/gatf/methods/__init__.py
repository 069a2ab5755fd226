"""All methods by name, and classes outside the package by their import path."""

from gatf.errors import UserError, near_misses
from gatf.methods.adagauss import AdaGauss
from gatf.methods.adc import ADC
from gatf.methods.base import Method
from gatf.methods.dpcr import DPCR
from gatf.methods.efc import EFC
from gatf.methods.ewc import EWC
from gatf.methods.fecam import FeCAM
from gatf.methods.fetril import FeTrIL
from gatf.methods.finetune import Finetune
from gatf.methods.gatf import GATF
from gatf.methods.gatf_release import GATFRelease
from gatf.methods.joint import Joint
from gatf.methods.klda import KLDA
from gatf.methods.ldc import LDC
from gatf.methods.lwf import LwF
from gatf.methods.ncm import NCM
from gatf.methods.outside import imported, is_outside
from gatf.methods.pass_ import PASS
from gatf.methods.ranpac import RanPAC
from gatf.methods.sdc import SDC
from gatf.methods.slda import SLDA

__all__ = ["METHODS", "Method", "is_outside", "method_class"]

METHODS: dict[str, type[Method]] = {
    "gatf": GATF,
    "gatf-release": GATFRelease,
    "adagauss": AdaGauss,
    "finetune": Finetune,
    "joint": Joint,
    "ewc": EWC,
    "lwf": LwF,
    "sdc": SDC,
    "adc": ADC,
    "ldc": LDC,
    "pass": PASS,
    "fetril": FeTrIL,
    "fecam": FeCAM,
    "efc": EFC,
    "dpcr": DPCR,
    "ncm": NCM,
    "slda": SLDA,
    "ranpac": RanPAC,
    "klda": KLDA,
}


def method_class(name: str) -> type[Method]:
    """A shipped method by name, or the class at `package.module:Class`, which is imported."""
    if is_outside(name):
        return imported(name)
    if name not in METHODS:
        hint = "; a class of your own is written package.module:Class" if "." in name else near_misses(name, METHODS)
        raise UserError(f"no method is called '{name}'{hint}")
    return METHODS[name]
