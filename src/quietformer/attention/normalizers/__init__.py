"""Normalizers, one file for each; a new file registers itself."""
