"""Measuring what iterations cost on this machine, and fitting a cost model to it."""

from phasegate.calibrate.fit import Fit, Sample, fit_interference
from phasegate.calibrate.measure import Design, measure

__all__ = ["Design", "Fit", "Sample", "fit_interference", "measure"]
