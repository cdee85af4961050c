"""Scheduling policies, one file each, citing the paper or engine they follow; `*.yaml` are ready-made settings."""
