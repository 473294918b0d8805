"""What would it be worth to a stopping rule if it knew the target's own hidden state?

A step starts where the target has just been read: its last hidden state is there for nothing, and no rule that is
compared here looks at it. The chance that the next drafted token stands, which ``stopping`` takes from the draft's
confidence and the text, is corrected by a linear function of that state, or by a small network of it; and, as a
control, by a network that is not told the state. They are fitted on training prompts and judged on validation prompts:
how well they foretell acceptance, and what that gains over the best fixed length at the measured cost curve, at curves
in the proportions of SpecKV's pair, and at dearer and cheaper drafts.

Deciding is charged nothing, every drafted token is verified, and costs of signals are as measured. What was recorded
is kept in ``--work``, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import console, save, show_progress
from curves import imagined
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.neural_network import MLPClassifier

from draftgauge.api.profile import profile
from draftgauge.api.runs import read_run
from draftgauge.core.config import from_mapping
from draftgauge.core.prompts import TRAIN, VALIDATION
from draftgauge.core.signals import Reads
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.models.taps import TapPlan, batch_features
from draftgauge.policies.acceptance_model import AcceptanceModels, StoppingNumbers, states
from draftgauge.policies.base import DecisionSeconds
from draftgauge.policies.stopping import ThroughputStopping, deciding_seconds, thresholds
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.hindsight import hindsight_optimum
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import Charge, Replay, replay_fixed_all, replay_lengths
from draftgauge.replaying.splits import split_trace
from draftgauge.replaying.views import text_view
from draftgauge.statistics.bootstrap import Comparison
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.repetition import distinct_ratio, prompt_gram_counts
from draftgauge.traces.trace import Trace
from draftgauge.training.reference.recipe import save_prompts

Floats = NDArray[np.float64]
Chances = Callable[[NDArray[np.float32]], Floats]
"""From features ``[n, F]`` to chances ``[n]``."""

NAME = "target-states.json"
DEPTHS = 4
"""Depths that are told apart; deeper ones count as the last."""
HELD_BACK = 4
"""Every so many training prompts one is left out of the fit, for the calibration of what was fitted."""
SPECKV = {"fp16": 10.4 / 20, "nf4": 10.4 / 36, "int8": 10.4 / 90}
"""Seconds of drafting a token over those of verifying, by its author's records (Llama-3.2 1B for 3B)."""
DRAFT_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
SIGNALS, CONTROL = "signals", "signals, network of 32"
LINEAR, NETWORK = "signals and state, linear", "signals and state, network of 32"


class Set(NamedTuple):
    """The prompts of one split.

    Attributes:
        trace: of them.
        state: ``[P, H]`` the target's state behind the token before the last, at every position.
        stand: ``[P, G]`` the chance that all of 0, 1, ... drafted tokens stand.
        following: ``[P, G]`` by the signals alone, the chance that the next one would too.
    """

    trace: Trace
    state: NDArray[np.float32]
    stand: Floats
    following: Floats


class Foretold(NamedTuple):
    """What is foretold with some kind of knowledge.

    Attributes:
        fitted, judged: ``[P, G]`` the chance that one more token and all before it would stand, of either set.
        log_loss, auc: of the next token, where those before it stand, on the judged set.
    """

    fitted: Floats
    judged: Floats
    log_loss: float
    auc: float


def main() -> int:
    """Record, fit, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--work", type=Path, default=Path("build/target-states"), help="folder for what is recorded")
    parser.add_argument(
        "--costs", type=Path, default=Path("docs/results/final/runs/none"), help="run with a cost curve"
    )
    parser.add_argument("--per-task", type=int, default=160, help="training prompts of each task")
    parser.add_argument("--validation", type=int, default=24, help="validation prompts of each task")
    parser.add_argument("--gamma-max", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    args = parser.parse_args()
    trace, costs = _recorded(args), read_run(args.costs)[1]
    train, validation = split_trace(trace, TRAIN), split_trace(trace, VALIDATION)
    numbers = from_mapping(StoppingNumbers, fit_stopping([train], [costs]).parameters, "fit")
    target = load_model(PAIR_FOLDER / "target").module
    fitted, judged = (_set(part, numbers, target) for part in (train, validation))
    known = {SIGNALS: foretell(None, fitted, judged)}
    for name, classifier in {CONTROL: _network, LINEAR: linear, NETWORK: _network}.items():
        chances = fit_chances(classifier, fitted, None if name != CONTROL else 1 + DEPTHS)
        known[name] = foretell(chances, fitted, judged)
        console.print(f"{name}: log-loss {known[name].log_loss:.3f}, AUC {known[name].auc:.3f}", highlight=False)
    rows = [
        row for name, curve in _curves(costs).items() for row in rows_at(name, curve, numbers, fitted, judged, known)
    ]
    save(args.out, NAME, rows)
    return 0


def _recorded(args: argparse.Namespace) -> Trace:
    """Prompts of the bundled pair's own kinds, more than it ships with, recorded densely."""
    prompts = args.work / "prompts"
    if not prompts.exists():
        counts = {TRAIN: args.per_task, VALIDATION: args.validation}
        save_prompts(load_tokenizer(PAIR_FOLDER / "target"), prompts, per_task=counts)
    profile(
        out=args.work / "run",
        prompts=prompts,
        gamma_max=args.gamma_max,
        max_new_tokens=args.max_new_tokens,
        progress=show_progress,
    )
    return read_run(args.work / "run")[0]


def _curves(costs: CostCurve) -> dict[str, CostCurve]:
    """The measured curve, and imagined ones whose verification is flat."""
    named = {f"SpecKV's pair, {compression}": share for compression, share in SPECKV.items()}
    named |= {f"draft {share:.0%}": share for share in DRAFT_SHARES}
    return {"measured": costs} | {name: imagined(costs, share, 0.0) for name, share in named.items()}


def _set(trace: Trace, numbers: StoppingNumbers, target: Any) -> Set:
    models, stand = AcceptanceModels(numbers), np.ones(trace.positions)
    stands, following = [], []
    for state in islice(states(text_view(trace)), trace.gamma_max):
        if state.depth:
            stand = stand * models.all_stand(state)
        stands.append(stand)
        following.append(models.all_next_stand(state))
    return Set(trace, _states(trace, target), np.stack(stands, axis=1), np.stack(following, axis=1))


@torch.inference_mode()
def _states(trace: Trace, target: Any) -> NDArray[np.float32]:
    """What the target's last layer left behind at every position, normalised as the head reads it."""
    plan, parts = TapPlan(hidden_layers=(target.config.num_hidden_layers - 1,)), []
    for prompt, begin, end in zip(trace.prompts, trace.offsets, trace.offsets[1:], strict=False):
        text = torch.tensor([[*prompt.prompt_token, *trace.token[begin:end].tolist()]])
        hidden = batch_features(target, text, plan).hidden
        assert hidden is not None
        first = max(prompt.prompt_tokens - 2, 0)
        parts.append(target.model.norm(hidden[0, first : first + end - begin, 0].to(target.dtype)).float().numpy())
    return np.concatenate(parts)


def _features(part: Set, depth: int, rows: NDArray[np.bool_]) -> NDArray[np.float32]:
    """``[n, F]`` after ``depth`` drafted tokens: the logit of the signals, the depth, the state."""
    chance = np.clip(part.following[rows, depth], 1e-6, 1 - 1e-6)
    at_depth = np.zeros((len(chance), DEPTHS), np.float32)
    at_depth[:, min(depth, DEPTHS - 1)] = 1
    logit = np.log(chance / (1 - chance)).astype(np.float32)
    return np.concatenate([logit[:, None], at_depth, part.state[rows]], axis=1)


def _judged(part: Set, prompts: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.bool_], Floats]:
    """Features, outcomes and the chances of the signals alone, of all states before a token that was judged."""
    trace, caps = part.trace, draft_caps(part.trace)
    chosen = np.repeat(prompts, np.diff(trace.offsets))
    features, stood, chances = [], [], []
    for depth in range(trace.gamma_max):
        rows = chosen & (trace.accepted >= depth) & (caps > depth)
        features.append(_features(part, depth, rows))
        stood.append(trace.accepted[rows] > depth)
        chances.append(part.following[rows, depth])
    return np.concatenate(features), np.concatenate(stood), np.concatenate(chances)


def fit_chances(classifier: Callable[[], Any], part: Set, width: int | None) -> Chances:
    """A classifier of the first standardised features, its logits calibrated on prompts that it has not seen."""
    held_back = np.arange(len(part.trace.prompts)) % HELD_BACK == 0
    features, stood, _ = _judged(part, ~held_back)
    features = features[:, :width]
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-6
    fitted = classifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped early on purpose
        fitted.fit((features - mean) / spread, stood)

    def logits(values: NDArray[np.float32]) -> Floats:
        chance = np.clip(fitted.predict_proba((values[:, :width] - mean) / spread)[:, 1], 1e-6, 1 - 1e-6)
        return np.log(chance / (1 - chance))[:, None]

    unseen, outcomes, _ = _judged(part, held_back)
    calibration = LogisticRegression().fit(logits(unseen), outcomes)
    return lambda values: calibration.predict_proba(logits(values))[:, 1]


def linear() -> Any:
    return LogisticRegression(C=0.01, tol=1e-3)


def _network() -> Any:
    return MLPClassifier((32,), alpha=1.0, batch_size=512, learning_rate_init=2e-3, max_iter=6, random_state=0)


def rows_at(
    name: str,
    curve: CostCurve,
    numbers: StoppingNumbers,
    fitted: Set,
    judged: Set,
    known: Mapping[str, Foretold],
) -> Iterator[dict[str, Any]]:
    """What the rule gains at one cost curve with each kind of knowledge."""
    trace = judged.trace
    gamma = best_fixed_gamma(fitted.trace, curve)
    every = replay_fixed_all(trace, curve)
    fixed, optimum = every[gamma], hindsight_optimum(trace, curve).replay
    seconds = deciding_seconds(curve, trace.gamma_max, DecisionSeconds())
    by_signals: Replay | None = None
    for reads, foretold in known.items():
        rate = _rate(foretold.fitted, fitted.trace, curve, seconds, numbers)
        outcome = _played(foretold.judged, rate, trace, curve, seconds, numbers)
        by_signals = by_signals or outcome
        gain, more = _gain(outcome, fixed), _gain(outcome, by_signals)
        console.print(f"{name}: {reads} {gain.estimate:+.1%}, over signals alone {more.estimate:+.1%}", highlight=False)
        yield {
            "curve": name,
            "draft_share": float((curve.draft[0][1] - curve.draft[0][0]) / curve.verify[0][0]),
            "reads": reads,
            "prompts": len(trace.prompts),
            "training_prompts": len(fitted.trace.prompts),
            "distinct_4grams": distinct_ratio(prompt_gram_counts(trace)),
            "best_fixed": gamma,
            "best_fixed_over_plain": fixed.tokens_per_second / every[0].tokens_per_second,
            "hindsight": _gain(optimum, fixed).estimate,
            "gain": gain.estimate,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "over_signals": more.estimate,
            "over_signals_low": more.low,
            "over_signals_high": more.high,
            "drafted_per_step": float(outcome.drafted.sum() / outcome.steps.sum()),
            "log_loss": foretold.log_loss,
            "auc": foretold.auc,
        }


def foretell(chances: Chances | None, fitted: Set, judged: Set) -> Foretold:
    features, stood, of_signals = _judged(judged, np.ones(len(judged.trace.prompts), np.bool_))
    given = of_signals if chances is None else chances(features)
    everywhere = [_next_stand(part, chances) for part in (fitted, judged)]
    return Foretold(*everywhere, float(log_loss(stood, given)), float(roc_auc_score(stood, given)))


def _next_stand(part: Set, chances: Chances | None) -> Floats:
    """``[P, G]`` the chance that one more token and all before it would stand."""
    if chances is None:
        return part.stand * part.following
    everywhere = np.ones(part.trace.positions, np.bool_)
    corrected = [chances(_features(part, depth, everywhere)) for depth in range(part.trace.gamma_max)]
    return part.stand * np.stack(corrected, axis=1)


def _played(
    chances: Floats, rate: float, trace: Trace, curve: CostCurve, seconds: Floats, numbers: StoppingNumbers
) -> Replay:
    """The rule at a rate: draft on while the chance is worth its time."""
    goes_on = chances > thresholds(rate, seconds, numbers.onward, numbers.horizon)
    lengths = np.where(goes_on.all(axis=1), chances.shape[1], (~goes_on).argmax(axis=1))
    reads: Reads = ThroughputStopping.reads
    return replay_lengths(trace, lengths, curve, Charge(reads))


def _rate(chances: Floats, trace: Trace, curve: CostCurve, seconds: Floats, numbers: StoppingNumbers) -> float:
    """The rate that the rule reaches where it prices seconds by the rate that it reaches, over whole outputs."""
    rate = 1 / float(seconds[0])
    for _ in range(8):
        rate = _played(chances, rate, trace, curve, seconds, numbers).tokens_per_second
    return rate


def _gain(outcome: Replay, base: Replay) -> Comparison:
    return paired_gain(outcome.committed, outcome.seconds, base.committed, base.seconds)


if __name__ == "__main__":
    sys.exit(main())
