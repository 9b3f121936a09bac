"""Range estimators, one file for each; a new file registers itself."""
