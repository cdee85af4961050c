"""Chunkwise simulator: request traces replayed through LLM-inference schedulers at measured step costs."""

__version__ = "0.1.0"
