"""Range estimators, one file per estimator; a new file registers itself."""
