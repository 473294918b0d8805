"""The cost meter: what the parts of a step take on this machine, measured inside the live loops."""

from draftgauge.meter.batches import BatchMeterPlan, measure_batches
from draftgauge.meter.costs import MeterPlan, default_contexts, measure_costs, measured_span
