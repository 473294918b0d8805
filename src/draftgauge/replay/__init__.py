"""What would have happened otherwise: policies replayed on a recorded trace, exactly, without a model."""

from draftgauge.replay.acceptance import acceptance_by_depth
from draftgauge.replay.bootstrap import Comparison, Interval, paired_difference, paired_gain, ratio_interval
from draftgauge.replay.evaluate import ALL_TASKS, Row, best_fixed_gamma, evaluate, hindsight_gain, plain_seconds, task_masks
from draftgauge.replay.hindsight import Hindsight, hindsight_optimum
from draftgauge.replay.simulate import Replay, StepRecord, replay, replay_fixed_all, replay_lengths

__all__ = [
    "ALL_TASKS",
    "Comparison",
    "Hindsight",
    "Interval",
    "Replay",
    "Row",
    "StepRecord",
    "acceptance_by_depth",
    "best_fixed_gamma",
    "evaluate",
    "hindsight_gain",
    "hindsight_optimum",
    "paired_difference",
    "paired_gain",
    "plain_seconds",
    "ratio_interval",
    "replay",
    "replay_fixed_all",
    "replay_lengths",
    "task_masks",
]
