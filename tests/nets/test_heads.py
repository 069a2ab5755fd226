"""Growing classifiers."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from gatf.nets.heads import CosineHeads, Heads


class TestCosineHeads:
    def test_logits_are_scaled_cosines(self) -> None:
        torch.manual_seed(0)
        heads, features = CosineHeads(5).grow(3), torch.randn(4, 5)
        heads.scale.data.fill_(2.5)
        expected = 2.5 * cosine_similarity(features[:, None], heads.weight[None], dim=2)
        assert torch.allclose(heads(features), expected, atol=1e-6)

    def test_growing_keeps_old_rows_and_scale(self) -> None:
        torch.manual_seed(0)
        heads = CosineHeads(100).grow(3)
        assert heads.scale.item() == 1.0
        heads.scale.data.fill_(7.0)
        old = heads.weight.detach().clone()
        heads.grow(50)
        assert torch.equal(heads.weight[:3], old)
        assert heads.scale.item() == 7.0
        assert 0.09 < heads.weight[3:].abs().max() <= 0.1  # uniform within ±1/√100
        assert set(dict(heads.named_parameters())) == {"weight", "scale"}

    def test_takes_the_shape_of_a_loaded_state(self) -> None:
        full, fresh = CosineHeads(5).grow(3).grow(2), CosineHeads(5).grow(2)
        fresh.load_state_dict(full.state_dict())
        assert torch.equal(fresh.weight, full.weight)
        assert isinstance(fresh.weight, torch.nn.Parameter)


class TestStart:
    """48 = 3·16 inputs, 200 outputs: the largest of 9600 draws is close to the bound."""

    def test_as_torch_has_it(self) -> None:
        torch.manual_seed(0)
        head = Heads(48).grow(200)
        assert 0.99 * 48**-0.5 < head.weight.abs().max() <= 48**-0.5
        assert 0 < head.bias.abs().max() <= 48**-0.5

    def test_as_pycil_has_it(self) -> None:
        torch.manual_seed(0)
        heads = Heads(48, init="kaiming")
        old, new = heads.grow(200), heads.grow(200)
        for head in (old, new):
            assert 0.99 * 0.25 < head.weight.abs().max() <= 0.25  # √(3/48)
            assert not head.bias.any()
        assert not torch.equal(old.weight, new.weight)
        assert Heads(48, bias=False, init="kaiming").grow(2).bias is None


@pytest.mark.parametrize("cosine", [True, False])
def test_heads_grow_where_the_module_is(cosine: bool) -> None:
    heads = (CosineHeads(5) if cosine else Heads(5)).to("meta")
    heads.grow(2)
    assert {parameter.device.type for parameter in heads.parameters()} == {"meta"}
