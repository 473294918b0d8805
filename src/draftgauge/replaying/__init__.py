"""What would have happened otherwise: policies replayed on a recorded trace, exactly, without a model."""

from draftgauge.replaying.acceptance import acceptance_by_depth
from draftgauge.replaying.cost_sweep import at_cost_ratio, cost_sweep
from draftgauge.replaying.evaluate import (
    ALL_TASKS,
    Row,
    best_fixed_gamma,
    evaluate,
    evaluate_design,
    hindsight_gain,
    near_best,
    near_best_gammas,
    plain_seconds,
    task_masks,
)
from draftgauge.replaying.hindsight import Hindsight, hindsight_optimum
from draftgauge.replaying.simulate import Replay, StepRecord, replay, replay_fixed_all, replay_lengths
from draftgauge.replaying.splits import MIN_PROMPTS, Design, design_of, split_trace, splits_of
from draftgauge.statistics.bootstrap import Comparison, Interval
from draftgauge.statistics.paired import holm, paired_gain, paired_share, ratio_interval

__all__ = [
    "ALL_TASKS",
    "MIN_PROMPTS",
    "Comparison",
    "Design",
    "Hindsight",
    "Interval",
    "Replay",
    "Row",
    "StepRecord",
    "acceptance_by_depth",
    "at_cost_ratio",
    "best_fixed_gamma",
    "cost_sweep",
    "design_of",
    "evaluate",
    "evaluate_design",
    "hindsight_gain",
    "hindsight_optimum",
    "holm",
    "near_best",
    "near_best_gammas",
    "paired_gain",
    "paired_share",
    "plain_seconds",
    "ratio_interval",
    "replay",
    "replay_fixed_all",
    "replay_lengths",
    "split_trace",
    "splits_of",
    "task_masks",
]
