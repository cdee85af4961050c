"""Prefill/decode disaggregation against shared GPUs over loads, and DistServe's figure 1."""
