"""What an iteration costs: models, profiles, presets."""

from phasegate.cost.model import CostModel, InterferenceCost, LinearCost

__all__ = ["CostModel", "InterferenceCost", "LinearCost"]
