"""Measuring on a vLLM engine in this process: calibration and comparison of policies."""

STOCK = "stock"
"""Stands for vLLM's own scheduler where a policy spec is asked for."""
