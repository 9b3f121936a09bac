"""One file a client: what it looks for, and how it loads the folder."""
