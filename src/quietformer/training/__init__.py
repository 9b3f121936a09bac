"""A recipe carried out by the Hugging Face Trainer, supervised or by self-distillation."""
