"""The engine: many requests in one model's steps, each with the tokens that it would have alone."""
