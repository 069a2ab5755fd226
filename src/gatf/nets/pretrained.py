"""Weights that were trained elsewhere, from safetensors: loading them runs no code."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gatf.errors import UserError

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

    def notes(self) -> list[str]:
        """One sentence for each of the two that is not empty."""
        found = []
        if self.drawn:
            found.append(f"{self.source} has no {', '.join(self.drawn)}: these keep their random weights")
        if self.unused:
            found.append(f"{self.source} has {', '.join(self.unused)}, for which the backbone has no place")
        return found


def load_pretrained(backbone: nn.Module, spec: str) -> Loaded:
    """Put the weights of a file or a hub repository into a backbone; every tensor but the bottleneck's must match.

    `timm/resnet18.tv_in1k` and torchvision name ResNet-18's tensors as `nets.resnet` does; names inside a checkpoint of
    a whole model may carry one of its prefixes.
    """
    given = _strip_prefix(read_weights(spec))
    own = backbone.state_dict()
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
        told = "; ".join(problems + more) if any(name in own for name in given) else "no tensor's name is the same"
        raise UserError(
            f"the weights of {spec} do not fit this backbone: {told} (ImageNet's ResNet-18 needs backbone.stem=7x7, "
            "backbone.width=64 and colour images)"
        )
    backbone.load_state_dict({name: given.get(name, value) for name, value in own.items()})
    return Loaded(spec, tuple(name for name in own if name not in given and name.startswith(OURS)), unused)


def read_weights(spec: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a hub repository's model.safetensors."""
    path = Path(spec).expanduser()
    if spec.endswith(".safetensors") or path.exists():
        if not path.is_file():
            raise UserError(f"there is no file {path} to take the backbone's weights from (backbone.pretrained)")
    else:
        path = _download(spec)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error})") from None


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
            ".safetensors file instead (backbone.pretrained)"
        ) from None


def _strip_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without the prefix that a wrapper put before all of them."""
    for prefix in ("module.", "model.", "backbone."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors
