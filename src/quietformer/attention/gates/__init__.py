"""Gates, one file per gate; a new file registers itself."""
