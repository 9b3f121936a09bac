"""Opening, saving and loading model folders, and the hooks into transformers' from_pretrained."""
