"""Measurements: outliers, attention patterns, quality against a reference."""
