"""Measuring a running OpenAI-compatible server from a client's side."""
