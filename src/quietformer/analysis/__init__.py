"""Metrics, recorders, findings."""
