"""A real model behind the engine: PyTorch, transformers' model code, our attention and KV."""
