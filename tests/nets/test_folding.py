"""Frozen copies without batch-norm, and batch-norm over processes (its collective part: tests/training)."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from gatf.nets.folding import FusedConv2d, check_folding, folded
from gatf.nets.resnet import ResNet18
from gatf.nets.shared_norm import SharedBatchNorm2d, share_batch_norm


def settled(net: nn.Module) -> nn.Module:
    """The network after a few batches, with batch-norm layers that do something."""
    draws = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0, generator=draws)
            nn.init.uniform_(module.bias, -1.0, 1.0, generator=draws)
    for _ in range(3):
        net(torch.randn(8, 3, 16, 16, generator=draws) + 1)
    return net.eval()


def norms(net: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())


IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_one_convolution_by_hand() -> None:
    """3x − 1 through scale 2, shift 5, mean 4, variance 9 − ε is 2·(3x − 1 − 4)/3 + 5 = 2x + 5/3."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()
    conv, norm = net[0], net[1]
    with torch.no_grad():
        conv.weight.fill_(3.0), conv.bias.fill_(-1.0)
        norm.weight.fill_(2.0), norm.bias.fill_(5.0)
        norm.running_mean.fill_(4.0), norm.running_var.fill_(9.0 - norm.eps)
    without = folded(net)
    torch.testing.assert_close(without.get_parameter("0.weight").flatten(), torch.tensor([2.0]))
    torch.testing.assert_close(without.get_parameter("0.bias"), torch.tensor([5 / 3]))


def test_a_resnet_computes_the_same_without_its_batch_norm() -> None:
    net = settled(ResNet18(width=4, bottleneck=8))
    without = folded(net)
    assert norms(net) == 20
    assert norms(without) == 0
    torch.testing.assert_close(without(IMAGES), net(IMAGES), rtol=1e-4, atol=1e-4)


def test_the_original_is_left_alone() -> None:
    net = settled(ResNet18(width=4, bottleneck=8))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    folded(net).requires_grad_(False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


class Branching(nn.Module):
    """A convolution that two layers listen to, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.heard, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.twice, self.second = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.heard(x)
        x = self.norm(x) + x
        return self.second(self.twice(x)) + self.twice(x * 2)


class BeforeConvolution(nn.Module):
    """Batch-norm that comes first has no convolution to go into, though one of its size follows."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv1(torch.relu(self.bn1(x)))


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if x.sum() > 0 else x


def test_what_cannot_be_folded_stays() -> None:
    for net, left in ((Branching(), 2), (BeforeConvolution(), 1), (DependsOnValues(), 1)):
        copy = folded(settled(net))
        assert norms(copy) == left
        torch.testing.assert_close(copy(IMAGES), net(IMAGES))


def test_hooks_and_computed_weights_stay() -> None:
    hooked, computed = settled(ResNet18(width=4)), settled(ResNet18(width=4))
    hooked.layer1.register_forward_hook(lambda module, inputs, output: 2 * output)  # type: ignore[union-attr]
    nn.utils.parametrizations.weight_norm(computed.conv1)  # type: ignore[arg-type]
    for net in (hooked, computed):
        copy = folded(net)
        assert norms(copy) == 20
        torch.testing.assert_close(copy(IMAGES), net(IMAGES))


# --- what follows a convolution ---------------------------------------------------------------------------------------


def fused(net: nn.Module) -> int:
    return sum(isinstance(module, FusedConv2d) for module in net.modules())


def one_by_one(convolution: nn.Conv2d, image: Tensor, shortcut: Tensor | None = None) -> Tensor:
    out = convolution(image)
    return torch.relu(out if shortcut is None else out + shortcut)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "bias": False}, {"groups": 3}])
def test_a_fused_convolution_is_convolution_sum_and_relu(shape: dict, layout: torch.memory_format) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Conv2d(3, 6, 3, **shape).requires_grad_(False)
    images = IMAGES.to(memory_format=layout)
    shortcut = torch.randn(plain(images).shape, generator=torch.Generator().manual_seed(2))
    layer, kept = FusedConv2d(plain), shortcut.clone()
    with torch.inference_mode():
        torch.testing.assert_close(layer(images), one_by_one(plain, images))
        torch.testing.assert_close(layer(images, shortcut), one_by_one(plain, images, shortcut))
        assert torch.equal(shortcut, kept)
        torch.testing.assert_close(layer(images, kept, True), one_by_one(plain, images, shortcut))


def test_a_shortcut_of_another_shape_and_other_numbers_take_the_long_way() -> None:
    plain = nn.Conv2d(3, 6, 3).requires_grad_(False)
    layer, bias = FusedConv2d(plain), torch.randn(6, 1, 1, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(layer(IMAGES, bias), one_by_one(plain, IMAGES, bias))
    torch.testing.assert_close(layer.double()(IMAGES.double()), one_by_one(plain.double(), IMAGES.double()))


def test_gradients_pass_a_fused_convolution() -> None:
    """ADC walks images along the gradient of a frozen network."""
    plain, shortcut = nn.Conv2d(3, 3, 1).requires_grad_(False), torch.zeros_like(IMAGES, requires_grad=True)
    assert FusedConv2d(plain)(IMAGES, shortcut).requires_grad
    net = settled(ResNet18(width=4, bottleneck=8))
    ours, theirs = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    folded(net).requires_grad_(False)(ours).square().sum().backward()
    net(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)


def test_every_relu_of_a_resnet_goes_into_a_convolution() -> None:
    copy = folded(settled(ResNet18(width=4, bottleneck=8)))
    assert fused(copy) == 17  # 1 + 16; the three of the shortcuts have no ReLU
    assert "relu" not in copy.code  # type: ignore[operator]
    assert copy.feature_dim == 8
    with torch.inference_mode():
        assert copy(IMAGES[:0]).shape == (0, 8)  # what a process does that got no image


class Awkward(nn.Module):
    """Sums that must not be fused, or whose shortcut somebody needs afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e, self.f = (nn.Conv2d(3, 3, 1) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)  # read again at the end
        b = torch.relu(self.b(x) + a)  # the one that is fused
        c = self.c(b)
        c = torch.relu(c + c)
        d = torch.relu(self.d(c) + 1)
        e = torch.relu(torch.add(self.e(d), a, alpha=-2))
        return torch.relu(self.f(e)[:, :1] + e) * a + torch.relu(x)


def test_awkward_sums() -> None:
    net = Awkward().eval()
    before = IMAGES.clone()
    copy = folded(net)
    with torch.inference_mode():
        torch.testing.assert_close(copy(IMAGES), net(IMAGES))
        assert copy(IMAGES[:0]).shape == net(IMAGES[:0]).shape
    assert torch.equal(IMAGES, before)
    assert fused(copy) == 1


class Aliased(nn.Module):
    """Tracing takes the assignment for `y = y + …`, which leaves x alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = y = 2 * x
        y += self.conv(x)
        return (torch.relu(y) - x).flatten(1)


def test_a_network_that_does_not_survive_tracing_is_left_alone() -> None:
    net, good = Aliased(), nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        assert not torch.allclose(folded(net)(IMAGES), net(IMAGES))
        for each in (net, good):
            check_folding(each.train(), (3, 16, 16))
            assert each.training
            torch.testing.assert_close(folded(each)(IMAGES), each(IMAGES))
    assert (fused(folded(net)), fused(folded(good))) == (0, 1)


def test_shared_batch_norm_has_the_names_and_alone_the_values_of_the_plain_one() -> None:
    plain = settled(ResNet18(width=4, bottleneck=8)).train()
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    shared = share_batch_norm(ResNet18(width=4, bottleneck=8), torch.device("cpu")).train()
    assert sum(isinstance(module, SharedBatchNorm2d) for module in shared.modules()) == 20
    shared.load_state_dict(state)
    torch.testing.assert_close(shared(IMAGES), plain(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize(
    "shared", [lambda net: share_batch_norm(net, torch.device("cpu")), nn.SyncBatchNorm.convert_sync_batchnorm],
    ids=["of processors", "of GPUs"],
)  # fmt: skip
def test_shared_batch_norm_is_folded_as_the_plain_one(shared: Callable[[nn.Module], nn.Module]) -> None:
    net = settled(ResNet18(width=4, bottleneck=8))
    plain = folded(net)
    expected = plain(IMAGES)
    got = folded(shared(net))
    assert fused(got) == fused(plain) > 0
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in got.modules())
    torch.testing.assert_close(got(IMAGES), expected, rtol=0, atol=0)


def test_a_network_is_traced_once_and_folded_with_the_weights_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes far longer than the rest, and what it compiles is never freed by torch."""
    traced = []
    trace = fx.Tracer.trace
    monkeypatch.setattr(fx.Tracer, "trace", lambda tracer, net: (traced.append(net), trace(tracer, net))[1])
    net = settled(ResNet18(width=4))
    first = folded(net)
    before = first(IMAGES)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)
    again = folded(net)
    assert len(traced) == 1
    torch.testing.assert_close(again(IMAGES), net(IMAGES), rtol=1e-4, atol=1e-4)
    assert first(IMAGES).equal(before)  # the first copy has weights of its own
    assert not before.equal(again(IMAGES))
    net.bn1 = nn.Identity()  # type: ignore[assignment]
    torch.testing.assert_close(folded(net)(IMAGES), net(IMAGES), rtol=1e-4, atol=1e-4)
    assert len(traced) == 2


def test_a_constant_that_only_tracing_knows_is_no_obstacle() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.conv(images) + torch.arange(2.0)[:, None, None]

    net, images = Shifted().eval(), torch.randn(2, 1, 5, 5)
    for _ in range(2):
        torch.testing.assert_close(folded(net)(images), net(images))


def test_threads_may_fold_and_run_networks_at_the_same_time() -> None:
    """torch.fx replaces `nn.Module.__call__` for all threads while it traces."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 16)
    nets = [
        nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(12)))
        for _ in range(24)
    ]
    expected = [net.eval()(images) for net in nets]
    call = nn.Module.__call__
    errors: list[BaseException] = []

    def work(numbers: range, *, fold: bool) -> None:
        try:
            for number in numbers:
                net = folded(nets[number]) if fold else nets[number]
                torch.testing.assert_close(net(images), expected[number], rtol=1e-4, atol=1e-4)
                assert not fold or any(isinstance(layer, FusedConv2d) for layer in net.modules())
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(numbers,), kwargs={"fold": fold})
        for numbers, fold in ((range(12), True), (range(12, 24), True), (range(24), False))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert nn.Module.__call__ is call
