"""Tests of import-costs."""
