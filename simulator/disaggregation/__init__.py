"""Prefill/decode disaggregation: a pool of engines computes prompts, another one what follows (DistServe, OSDI'24)."""
