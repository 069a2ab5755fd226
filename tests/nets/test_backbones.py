"""Backbones: shapes, pretrained weights, modules of other people."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gatf.errors import UserError
from gatf.nets import build_backbone, wrap_backbone
from gatf.nets.foreign import Wrapped
from gatf.nets.pretrained import load_pretrained
from gatf.nets.resnet import BasicBlock, ResNet18, convolved
from gatf.settings import BackboneConfig

NARROW: dict[str, Any] = {"width": 4, "stem": "7x7"}


def published(width: int = 4, seed: int = 0) -> dict[str, Tensor]:
    """Tensors as timm/resnet18.tv_in1k and torchvision name them, for a narrower network."""
    tensors = {"conv1.weight": (width, 3, 7, 7)}
    inputs = width
    for stage in range(1, 5):
        outputs = width * 2 ** (stage - 1)
        for block in range(2):
            name = f"layer{stage}.{block}"
            tensors[f"{name}.conv1.weight"] = (outputs, inputs if block == 0 else outputs, 3, 3)
            tensors[f"{name}.conv2.weight"] = (outputs, outputs, 3, 3)
            if block == 0 and inputs != outputs:
                tensors[f"{name}.downsample.0.weight"] = (outputs, inputs, 1, 1)
        inputs = outputs
    norms = {"bn1": width}
    for name, shape in list(tensors.items()):
        if name != "conv1.weight":
            norm = name.removesuffix(".weight").replace("conv", "bn").replace("downsample.0", "downsample.1")
            norms[norm] = shape[0]
    for name, size in norms.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{name}.{part}"] = (size,)
    tensors |= {"fc.weight": (1000, 8 * width), "fc.bias": (1000,)}
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=draws) for name, shape in tensors.items()}


@pytest.mark.parametrize(("stem", "size"), [("3x3", 32), ("3x3", 64), ("3x3pool", 64), ("7x7", 224)])
def test_resnet18_has_four_stages_behind_its_stem(stem: Any, size: int) -> None:
    net = build_backbone(BackboneConfig(width=4, stem=stem, bottleneck=6), 3).eval()
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 6)
    assert build_backbone(BackboneConfig(width=4, stem=stem, bottleneck=None), 3).feature_dim == 32


@pytest.mark.parametrize(("side", "kernel"), [(32, 3), (64, 3), (65, 7), (224, 7)])
def test_the_stem_follows_the_images(side: int, kernel: int) -> None:
    """A 3×3 stem at 224 pixels took 10 GB for 80 photos."""
    net = build_backbone(BackboneConfig(width=4), 3, side=side)
    assert net.conv1.weight.shape == (4, 3, kernel, kernel)


@pytest.mark.parametrize(("stem", "kernel", "side"), [("3x3", 3, 64), ("3x3pool", 3, 32), ("7x7", 7, 16)])
def test_stems(stem: Any, kernel: int, side: int) -> None:
    """64 pixels: all of them, every second after pooling, every fourth after stride and pooling."""
    net = ResNet18(width=4, stem=stem, bottleneck=None)
    assert net.conv1.weight.shape == (4, 3, kernel, kernel)
    assert net.maxpool(net.conv1(torch.zeros(1, 3, 64, 64))).shape == (1, 4, side, side)


def test_the_published_names_are_ours() -> None:
    """ImageNet's ResNet-18 has 11 689 512 parameters, 513 000 of them in its classifier."""
    net = ResNet18(stem="7x7", bottleneck=None)
    assert sum(parameter.numel() for parameter in net.parameters()) == 11_689_512 - 513_000
    ours = {name for name in net.state_dict() if not name.endswith("num_batches_tracked")}
    assert ours == set(published()) - {"fc.weight", "fc.bias"}


def test_weights_from_a_file(tmp_path: Path) -> None:
    weights = published()
    save_file(weights, tmp_path / "w.safetensors")
    notes: list[str] = []
    config = BackboneConfig(
        **NARROW, bottleneck=5, bottleneck_init="random", pretrained=str(tmp_path / "w.safetensors")
    )
    net = build_backbone(config, 3, notes)
    state = net.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items() if not name.startswith("fc."))
    assert notes == [
        f"{tmp_path / 'w.safetensors'} has no bottleneck.weight, bottleneck.bias: these keep their random weights",
        f"{tmp_path / 'w.safetensors'} has fc.bias, fc.weight, for which the backbone has no place",
    ]


def test_a_checkpoints_prefix_is_dropped(tmp_path: Path) -> None:
    weights = published()
    save_file({f"module.{name}": tensor for name, tensor in weights.items()}, tmp_path / "w.safetensors")
    net = ResNet18(width=4, stem="7x7", bottleneck=None)
    load_pretrained(net, str(tmp_path / "w.safetensors"))
    assert torch.equal(net.conv1.weight, weights["conv1.weight"])


def test_every_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    weights = published()
    del weights["layer3.1.conv2.weight"], weights["bn1.running_var"]
    weights["layer9.odd"] = torch.zeros(1)
    save_file(weights, tmp_path / "w.safetensors")
    net = ResNet18(width=4, stem="3x3", bottleneck=None)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_pretrained(net, str(tmp_path / "w.safetensors"))
    for said in (
        "it has no bn1.running_var, layer3.1.conv2.weight",
        "conv1.weight is [4, 3, 7, 7] there and [4, 3, 3, 3] here",
        "it has layer9.odd, for which there is no place",
        "backbone.stem=7x7",
    ):
        assert said in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = ResNet18(width=4)
    with pytest.raises(UserError, match=r"there is no file .*w.safetensors"):
        load_pretrained(net, str(tmp_path / "w.safetensors"))
    (tmp_path / "w.safetensors").write_bytes(b"\x80\x04 a pickle")
    with pytest.raises(UserError, match="is not a readable safetensors file"):
        load_pretrained(net, str(tmp_path / "w.safetensors"))
    save_file({"other": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="no tensor's name is the same"):
        load_pretrained(net, str(tmp_path / "w.safetensors"))


def test_weights_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    save_file(published(), tmp_path / "model.safetensors")
    asked = []

    def download(repository: str, file: str) -> str:
        asked.append(repository)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    build_backbone(BackboneConfig(**NARROW, pretrained="timm/resnet18.tv_in1k"), 3)
    assert asked == ["timm/resnet18.tv_in1k"]

    def offline(repository: str, file: str) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(
        UserError, match=r"'timm/resnet18.tv_in1k' could not be fetched .*name a \.safetensors or \.pth file"
    ):
        build_backbone(BackboneConfig(**NARROW, pretrained="timm/resnet18.tv_in1k"), 3)


# --- other people's modules -------------------------------------------------------------------------------------------


def test_any_module_that_returns_features_is_a_backbone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 7), nn.BatchNorm1d(7))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    backbone = wrap_backbone(module, (3, 8, 8))
    assert backbone.feature_dim == 7
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    images = torch.rand(4, 3, 8, 8)
    assert torch.equal(backbone.eval()(images), module(images))
    ours = ResNet18(width=4)
    assert wrap_backbone(ours, (3, 8, 8)) is ours


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(3, 2, 1), r"must return features \[B, D\]; for two images it returns \[2, 2, 8, 8\]"),
        (nn.Conv2d(1, 2, 1), r"fails on images of shape \[3, 8, 8\]"),
    ],
)
def test_a_module_that_does_not_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        wrap_backbone(module, (3, 8, 8))


class FakeModel(nn.Module):
    def __init__(self, in_chans: int) -> None:
        super().__init__()
        self.num_features = 6
        self.conv = nn.Conv2d(in_chans, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_timm_models_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int) -> nn.Module:
        assert (pretrained, num_classes) == (False, 0)
        if name != "tiny_vit":
            raise RuntimeError(f"Unknown model ({name})")
        return FakeModel(in_chans)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    net = build_backbone(BackboneConfig(name="timm:tiny_vit", bottleneck=5), 1)
    assert isinstance(net, Wrapped)
    assert net(torch.zeros(2, 1, 9, 9)).shape == (2, 5)
    save_file({"conv.weight": torch.ones(6, 1, 3, 3), "conv.bias": torch.ones(6)}, tmp_path / "w.safetensors")
    config = BackboneConfig(name="timm:tiny_vit", bottleneck=None, pretrained=str(tmp_path / "w.safetensors"))
    assert torch.equal(build_backbone(config, 1)(torch.zeros(1, 1, 9, 9)), torch.ones(1, 6))
    with pytest.raises(UserError, match=r"timm cannot make 'huge': Unknown model"):
        build_backbone(BackboneConfig(name="timm:huge"), 3)


class WideHead(FakeModel):
    """Like timm's MobileNetV3: features are widened after they were pooled."""

    def __init__(self, in_chans: int) -> None:
        super().__init__(in_chans)
        self.head_hidden_size = 9
        self.widen = nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(super().forward(x))


def test_timm_models_that_widen_their_features(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(create_model=lambda name, *, in_chans, **given: WideHead(in_chans))
    monkeypatch.setitem(sys.modules, "timm", made)
    net = build_backbone(BackboneConfig(name="timm:mobilenetv3", bottleneck=5), 3)
    assert net(torch.zeros(2, 3, 9, 9)).shape == (2, 5)
    assert build_backbone(BackboneConfig(name="timm:mobilenetv3", bottleneck=None), 3).feature_dim == 9


def test_timm_models_with_the_weights_that_timm_has_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    model = FakeModel(3)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=lambda name, **given: model))
    config = BackboneConfig(name="timm:tiny_vit", bottleneck=None, pretrained="hub")
    assert str(config) == "timm:tiny_vit (timm's weights, all its features)"
    with pytest.raises(UserError, match=r"timm has no weights for this backbone: name a file .*pretrained=null"):
        build_backbone(config, 3)
    monkeypatch.setattr(
        model, "pretrained_cfg", {"hf_hub_id": "timm/tiny", "mean": [0.5] * 3, "std": [0.25] * 3}, raising=False
    )
    save_file({"conv.weight": torch.ones(6, 3, 3, 3), "conv.bias": torch.ones(6)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repository, file: str(tmp_path / file) * (repository == "timm/tiny")
    )
    net = build_backbone(config, 3)
    assert torch.equal(net(torch.zeros(1, 3, 9, 9)), torch.ones(1, 6))
    assert net.pretrained
    assert net.normalisation == ((0.5,) * 3, (0.25,) * 3)
    assert net.central_share is None
    for reported, expected in ((1, 1.0), (0.95, 0.95), (0, None), (1.5, None), ("0.9", None), (None, None)):
        model.pretrained_cfg["crop_pct"] = reported  # type: ignore[index]
        assert build_backbone(config, 3).central_share == expected


def test_timm_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"timm:resnet50 needs timm, .*pip install 'gatf-cil\[timm\]'"):
        build_backbone(BackboneConfig(name="timm:resnet50"), 3)


def test_timm_beside_a_torchvision_without_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first import fails as torchvision's wheel does beside a CPU build of torch; it is tried again once the
    operators are declared."""
    declared: list[str] = []

    def imported(name: str) -> Any:
        if "torchvision::qnms" not in declared:
            raise RuntimeError("operator torchvision::nms does not exist")
        return SimpleNamespace(create_model=lambda name, *, in_chans, **given: FakeModel(in_chans))

    monkeypatch.setattr("gatf.nets.foreign.import_module", imported)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: declared.append(name))
    assert build_backbone(BackboneConfig(name="timm:tiny_vit", bottleneck=None), 3).feature_dim == 6
    assert declared == ["torchvision::nms", "torchvision::qnms"]


def test_timm_that_fails_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(name: str) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("gatf.nets.foreign.import_module", imported)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: pytest.fail("declared without need"))
    with pytest.raises(UserError, match=r"does not import here \(no kernel\)"):
        build_backbone(BackboneConfig(name="timm:tiny_vit"), 3)


def test_a_name_nobody_knows() -> None:
    with pytest.raises(UserError, match="no backbone is called 'resnet8'; did you mean 'resnet18'"):
        build_backbone(BackboneConfig(name="resnet8"), 3)


def test_a_narrow_resnet_survives_its_backward_pass_on_images_of_64_pixels() -> None:
    """In a process of its own: torch 2.13 corrupts memory there (docs/performance.md), which no exception tells."""
    script = (
        "import torch; from gatf.nets.resnet import ResNet18; torch.set_num_threads(1); "
        "net = ResNet18(width=8).to(memory_format=torch.channels_last); "
        "images = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last); "
        "[net(images).sum().backward() for _ in range(2)]; print('alive')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


@pytest.mark.parametrize("side", [8, 9])
def test_a_narrow_shortcut_is_the_strided_convolution(side: int) -> None:
    torch.manual_seed(0)
    block = BasicBlock(4, 8, 2).double()
    images = torch.randn(2, 4, side, side, dtype=torch.float64)
    conv = block.downsample[0]
    strided = nn.functional.conv2d(images, conv.weight, stride=2)
    assert torch.allclose(conv(block.sampled(images)), strided, atol=1e-12)
    assert BasicBlock(16, 32, 2).downsample[0].stride == (2, 2)
    assert block(images).shape == (2, 8, *strided.shape[2:])


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_a_convolution_of_a_tiny_map_is_the_convolution(shape: tuple[int, int]) -> None:
    """In training it is one matrix product: same outputs, same gradients."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 3, padding=1, bias=False).double().to(memory_format=torch.channels_last)
    maps = torch.randn(4, 3, *shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 5, *shape, dtype=torch.float64)
    found = []
    for out in (convolved(layer, maps), layer(maps)):
        found.append((out, *torch.autograd.grad((out * weights).sum(), (maps, layer.weight))))
    assert found[0][0].grad_fn is not None
    assert "Convolution" not in found[0][0].grad_fn.name()
    for ours, torchs in zip(*found, strict=True):
        assert torch.allclose(ours, torchs, atol=1e-12)


def test_other_convolutions_are_torchs() -> None:
    """In eval mode, so that folding sees the layer; with stride; on larger maps."""
    layer, strided = nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.Conv2d(3, 5, 3, 2, 1, bias=False)
    tiny, larger = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 3, 3)
    for each, maps in ((layer.eval(), tiny), (nn.Conv2d(3, 5, 3, padding=1, bias=False), larger), (strided, tiny)):
        assert "Convolution" in convolved(each, maps).grad_fn.name()
