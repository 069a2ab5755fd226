"""Model files of format 1: names that settings and tensors had then, and have now."""

from typing import Any

from torch import Tensor

BASES: dict[str, tuple[str, ...]] = {
    "lwf": ("distill", "temperature", "cosine_head", "fix_bn"),
    "triplet": (
        "embedding", "margin", "images_per_class", "triplets", "regulariser", "regulariser_weight", "lwf_loss",
        "softmax_epochs", "softmax_lr", "fix_bn",
    ),
}  # fmt: skip
"""Settings of SDC, ADC and LDC that now belong to the section of their base learner."""


def upgraded_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a model of format 1 as it is written now."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    method = dict(method)
    if method.get("name") in ("sdc", "adc", "ldc") and isinstance(method.get("base"), str):
        method = _with_base_section(method)
    if method.get("name") == "adagauss":
        method.pop("adapter_milestones", None)  # were fractions of the adapter's epochs, are epochs
    return {**config, "method": method}


def _with_base_section(method: dict[str, Any]) -> dict[str, Any]:
    chosen = method["base"]
    own = {name: method[name] for name in BASES.get(chosen, ()) if name in method}
    if chosen == "triplet":
        own["embedding_init"] = "small"
    moved = {name for names in BASES.values() for name in names}
    kept = {name: value for name, value in method.items() if name not in moved}
    return {**kept, "base": {"name": chosen, **own}}


def upgraded_state(method: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model of format 1 by the names they have now."""
    if method != "lwf":
        return state
    return {name.removeprefix("base."): value for name, value in state.items()}
