"""Reports as pages, plots and model cards; reads results and nothing else of ours."""
