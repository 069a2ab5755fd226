from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.errors import UserError
from gatf.settings import StageConfig
from gatf.training import checkpoint
from gatf.training.optim import build_optimiser
from gatf.training.phase import Phase


def test_round_trip_keeps_bits_and_meta(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(3), "empty": torch.zeros(0, 5), "scalar": torch.tensor(7)}
    checkpoint.save(tmp_path / "x.safetensors", tensors, {"task": 2})
    loaded, meta = checkpoint.load(tmp_path / "x.safetensors")
    assert meta == {"task": 2}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("where", [0.3, 0.6, 0.999])
def test_a_flipped_byte_is_noticed(tmp_path: Path, where: float) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"a": torch.randn(50)}, {"task": 2})
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|format"):
        checkpoint.load(path)


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"a": torch.randn(50)}, {})
    for size in (0, 4, 40, path.stat().st_size - 1):
        cut = tmp_path / f"{size}.safetensors"
        cut.write_bytes(path.read_bytes()[:size])
        with pytest.raises(UserError, match="damaged"):
            checkpoint.load(cut)


def test_missing_file() -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(Path("nowhere.safetensors"))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_restored_optimiser_takes_the_same_steps(kind: str) -> None:
    def build() -> tuple[nn.Conv2d, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        stage = StageConfig.model_validate({"optimiser": kind})
        return net, build_optimiser(Phase("x", {"net": net}, lambda batch: {}, stage))

    def step(net: nn.Conv2d, optimiser: torch.optim.Optimizer, seed: int) -> None:
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        optimiser.zero_grad()
        net(x).square().mean().backward()
        optimiser.step()

    whole, whole_optimiser = build()
    net, optimiser = build()
    for seed in range(12):
        step(whole, whole_optimiser, seed)
    for seed in range(7):
        step(net, optimiser, seed)
    saved = {name: value.clone() for name, value in checkpoint.flatten_optimiser(optimiser).items()}
    resumed, resumed_optimiser = build()
    resumed.load_state_dict(net.state_dict())
    checkpoint.restore_optimiser(resumed_optimiser, saved)
    for seed in range(7, 12):
        step(resumed, resumed_optimiser, seed)
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)


@pytest.mark.parametrize("name", ["0.momentum_buffer", "9.momentum_buffer", "x", "0.a"])
def test_what_no_optimiser_of_these_parameters_saved_is_refused(name: str) -> None:
    optimiser = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(UserError, match=r"the checkpoint's optimiser (differs|has other)"):
        checkpoint.restore_optimiser(optimiser, {f"optimiser.{name}": torch.zeros(7)})
