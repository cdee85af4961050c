"""What a test of the profiler needs of the machine, and the tiny model it measures."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from simulator.models import ModelShape

TINY = ModelShape(
    name="tiny",
    num_hidden_layers=2,
    hidden_size=48,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=96,
    max_position_embeddings=512,
)


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


_without_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_torch = [pytest.mark.torch, _without_torch]


def write_tiny_model(folder: Path) -> Path:
    """TINY as the YAML that a user would write."""
    path = folder / "tiny.yaml"
    fields = (
        "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size"
        " vocab_size max_position_embeddings"
    )
    path.write_text("".join(f"{name}: {getattr(TINY, name)}\n" for name in fields.split()), encoding="utf-8")
    return path


def needs_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test `gpu` and skips it where torch sees none."""
    return pytest.mark.gpu(pytest.mark.skipif(not _has_gpu(), reason="no GPU that torch sees")(test))
