"""A model as ONNX: normalisation, network and readout in one graph, for places without PyTorch.

Input `images`: uint8 [batch, channels, height, width]; of models of vectors `vectors`: float32 [batch, dimension].
Outputs: `scores` [batch, classes] as `decision_function` gives them, `probabilities` [batch, classes], `class_index`
[batch]. The class names are in the metadata of the file, as JSON.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatf.data.base import ImageSet
from gatf.data.decode import CENTRAL_SHARE
from gatf.errors import UserError
from gatf.io.files import write_bytes
from gatf.methods.parts.gaussian import transports_gaussians
from gatf.model import exported
from gatf.model.calibration import softmax_with_temperature
from gatf.model.state import Model

TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-5
"""Largest difference of scores between PyTorch and onnxruntime; and of large ones, as a share of the largest, because
both compute features in single precision."""
OUTPUTS = ["scores", "probabilities", "class_index"]
UNCHECKED = "not checked: onnxruntime is not installed"


class Graph(nn.Module):
    """Pixels to scores, probabilities and class numbers."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        preprocessing = model.preprocessing
        self.vectors, self.noun = preprocessing.takes_vectors, preprocessing.noun
        self.register_buffer("scale", torch.tensor([1 / (255 * std) for std in preprocessing.std]).reshape(-1, 1, 1))
        shift = [-mean / std for mean, std in zip(preprocessing.mean, preprocessing.std, strict=True)]
        self.register_buffer("shift", torch.tensor(shift).reshape(-1, 1, 1))
        self.method = model.method
        self.temperature = model.temperature
        self.readout = _readout(model)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pixels = images.float() if self.vectors else images.float() * self.scale + self.shift
        if self.readout is None:
            scores = self.method.scores(pixels).double()
        else:
            scores = self.readout(self.method.backbone(pixels))
        return scores, softmax_with_temperature(scores, self.temperature), scores.argmax(1)


def _readout(model: Model) -> nn.Module | None:
    """The readout of a memory of Gaussians; None: the method's own scores are traced."""
    return model.method.memory.readout().graph() if transports_gaussians(model.method) else None


def export_onnx(
    model: Model, target: Path, *, digest: str | None = None, patient: bool = True, like: Path | None = None
) -> str:
    """Write the model as ONNX and, where onnxruntime is there, check it against PyTorch; returns what was checked.

    With the `digest` of the model's file, `gatf predict` takes the export beside the file for the model itself. torch's
    older exporter, which takes a second, is tried first, and its graph taken where it passes the check; with `patient`
    the newer one follows, which takes ten. A new file gets the mode and owner of the file `like`.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("writing ONNX needs the extra 'onnx': pip install 'gatf-cil[onnx]'") from None
    model.method.to("cpu").eval()
    try:
        content, checked = _checked(model, _traced, digest)
        if checked == UNCHECKED and patient:  # what is traced alone may hold for the images it was traced with
            content, checked = _checked(model, _exported, digest)
    except UserError:
        if not patient:
            raise
        content, checked = _checked(model, _exported, digest)
    write_bytes(target, [content], like=like)
    return checked


Exporter = Callable[[Graph, Tensor], Any]
"""A graph and images to show it → onnx.ModelProto."""


def _checked(model: Model, exporter: Exporter, digest: str | None) -> tuple[bytes, str]:
    """The file that an exporter makes, and what was checked."""
    import onnx

    graph = Graph(model).eval()
    examples = _examples(model, 3, torch.Generator().manual_seed(0))
    try:
        with _quiet(), torch.no_grad():
            proto = exporter(graph, examples)
            for name, value in _metadata(model, digest).items():
                entry = proto.metadata_props.add()
                entry.key, entry.value = name, value
            onnx.checker.check_model(proto)
    except Exception as error:  # exporters fail in their own many ways
        name = model.config.method.name
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"the classifier of method '{name}' cannot be written as ONNX ({reason})") from None
    content: bytes = proto.SerializeToString(deterministic=True)
    return content, check(model, content)


def _examples(model: Model, count: int, draws: torch.Generator) -> Tensor:
    """Random inputs of the model."""
    shape = (count, *model.preprocessing.shape)
    if model.preprocessing.takes_vectors:
        return torch.randn(shape, generator=draws)
    return torch.randint(256, shape, dtype=torch.uint8, generator=draws)


def _traced(graph: Graph, examples: Tensor) -> Any:
    """By running it once; whatever depends on the images themselves is an error."""
    import onnx

    written = io.BytesIO()
    warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[attr-defined]
    torch.onnx.export(
        graph, (examples,), written, dynamo=False, input_names=[graph.noun], output_names=OUTPUTS,  # type: ignore[arg-type]
        dynamic_axes={name: {0: "batch"} for name in (graph.noun, *OUTPUTS)},
    )  # fmt: skip
    return onnx.load_model_from_string(written.getvalue())


def _exported(graph: Graph, examples: Tensor) -> Any:
    program: Any = torch.onnx.export(
        graph, (examples,), dynamo=True, verbose=False, input_names=[graph.noun], output_names=OUTPUTS,
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
    )  # fmt: skip
    return program.model_proto


def _metadata(model: Model, digest: str | None) -> dict[str, str]:
    written_from = {} if digest is None else {exported.MODEL: digest}
    share = model.preprocessing.central_share
    return {
        **written_from,
        **({} if share == CENTRAL_SHARE else {exported.SHARE: repr(share)}),
        exported.CLASSES: json.dumps(list(model.labels), ensure_ascii=False),
        "gatf.temperature": repr(model.temperature),
        "gatf.input": "float32 vectors [batch, dimension]"
        if model.preprocessing.takes_vectors
        else "uint8 pixels [batch, channels, height, width]; colour is RGB",
    }


def check(model: Model, content: bytes) -> str:
    """Compare with PyTorch on random images, in two batch sizes."""
    try:
        import onnxruntime
    except ImportError:
        return UNCHECKED
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exceptions of its own
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"onnxruntime cannot read the ONNX graph ({reason}); nothing was written") from None
    for count in (1, 5):
        draws = torch.Generator().manual_seed(count)
        images = _examples(model, count, draws)
        expected = model.forward(ImageSet(images, torch.zeros(count, dtype=torch.int64))).scores
        scores, _, numbers = session.run(None, {model.preprocessing.noun: images.numpy()})
        off = float((torch.from_numpy(scores) - expected).abs().max())
        tolerance = max(TOLERANCE, RELATIVE_TOLERANCE * float(expected.abs().max()))
        margin = expected.topk(min(2, expected.shape[1])).values
        clear = (margin[:, 0] - margin[:, -1] > tolerance) | (expected.shape[1] == 1)
        if off > tolerance or bool((torch.from_numpy(numbers) != expected.argmax(1))[clear].any()):
            raise UserError(f"the ONNX graph does not give PyTorch's scores (off by {off:.2g}); nothing was written")
    return "onnxruntime gives the same predictions"


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about its own insides; none of that is the user's concern."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
