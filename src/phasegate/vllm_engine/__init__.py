"""Measuring on a vLLM engine in this process: calibration and comparison of policies."""
