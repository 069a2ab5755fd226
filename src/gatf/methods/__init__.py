"""All methods by name, and classes outside the package by their import path."""

from gatf import plugins
from gatf.errors import UserError
from gatf.methods.acil import ACIL
from gatf.methods.adagauss import AdaGauss
from gatf.methods.adc import ADC
from gatf.methods.aper import APER
from gatf.methods.apr import APR
from gatf.methods.base import Method
from gatf.methods.bicyc import BiCyc
from gatf.methods.dpcr import DPCR
from gatf.methods.ds_al import DSAL
from gatf.methods.efc import EFC
from gatf.methods.ewc import EWC
from gatf.methods.fecam import FeCAM
from gatf.methods.fetril import FeTrIL
from gatf.methods.finetune import Finetune
from gatf.methods.gatf import GATF
from gatf.methods.gatf_lda import GATFLDA
from gatf.methods.gatf_release import GATFRelease
from gatf.methods.joint import Joint
from gatf.methods.klda import KLDA
from gatf.methods.ldc import LDC
from gatf.methods.lwf import LwF
from gatf.methods.ncm import NCM
from gatf.methods.pass_ import PASS
from gatf.methods.ranpac import RanPAC
from gatf.methods.sdc import SDC
from gatf.methods.slda import SLDA

__all__ = ["METHODS", "Method", "is_outside", "method_class"]

SHIPPED: tuple[type[Method], ...] = (
    GATF, GATFLDA, GATFRelease, AdaGauss, BiCyc, Finetune, Joint, EWC, LwF, SDC, ADC, LDC, PASS, FeTrIL, FeCAM, EFC,
    DPCR, APR, NCM, APER, SLDA, RanPAC, KLDA, ACIL, DSAL,
)  # fmt: skip
METHODS: dict[str, type[Method]] = {method.name: method for method in SHIPPED}


def is_outside(name: str) -> bool:
    """Whether a method is not part of the package."""
    return plugins.is_outside("method", name, METHODS)


def method_class(name: str) -> type[Method]:
    """A method by name, or the class at `package.module:Class`, which is imported."""
    hint = "; a class of your own is written package.module:Class" if "." in name else ""
    found = plugins.find("method", name, METHODS, hint=hint)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method '{name}': that is not a subclass of gatf.methods.Method")
    if found.__abstractmethods__:
        raise UserError(f"method '{name}': the class leaves out {', '.join(sorted(found.__abstractmethods__))}")
    if found.Config.model_fields["name"].annotation is not str:
        raise UserError(f"method '{name}': {found.Config.__name__} restricts its field 'name'; leave the field out")
    return found
