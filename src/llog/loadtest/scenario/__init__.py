"""What a load test is: the model of its YAML file, reading it, and the shipped ones (`shipped/`)."""

from llog.loadtest.scenario.model import Scenario
from llog.loadtest.scenario.read import read_scenario, shipped

__all__ = ["Scenario", "read_scenario", "shipped"]
