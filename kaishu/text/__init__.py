"""Text: tokens, the chat template, and what the model's output is made of. No tensors here."""
