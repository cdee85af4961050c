"""The part of a model that each GPU of a tensor-parallel group holds."""

from dataclasses import replace

from simulator.errors import InputError
from simulator.models import ModelShape


def shard(shape: ModelShape, tensor_parallel: int) -> ModelShape:
    """The shard's shape: heads, KV heads (one at least), MLP and vocabulary divided; hidden size and layers are whole.

    Raises InputError where heads, KV heads or the MLP do not divide.
    """
    for key in ("num_attention_heads", "intermediate_size"):
        if getattr(shape, key) % tensor_parallel:
            problem = f"{key} {getattr(shape, key)} of {shape.name} is not a multiple of {tensor_parallel}"
            raise InputError(problem, key="--tp")
    kv_heads = shape.num_key_value_heads
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise InputError(f"{kv_heads} KV heads of {shape.name} cannot be shared by {tensor_parallel} GPUs", key="--tp")
    return replace(
        shape,
        num_attention_heads=shape.num_attention_heads // tensor_parallel,
        num_key_value_heads=max(1, kv_heads // tensor_parallel),
        intermediate_size=shape.intermediate_size // tensor_parallel,
        vocab_size=-(-shape.vocab_size // tensor_parallel),
    )
