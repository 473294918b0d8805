"""``python -m recipes.reference_pair train``: the bundled pair from nothing but a Python installation.

Documentation and source of the installation, and generated tasks -> tokenizer -> target (next-token cross-entropy) ->
answers by the target -> drafts (distilled from the target on text and on those answers) -> folders that
``from_pretrained`` loads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from draftgauge.core.files import atomic_write_text
from draftgauge.core.provenance import environment, timestamp
from draftgauge.models.spec import no_bars
from draftgauge.training.memory import keep_freed_memory
from recipes.reference_pair import data, packing, pretrain, regenerate, tokenizer
from recipes.reference_pair.card import RECORD_NAME
from recipes.reference_pair.children import deaf_to_interrupts
from recipes.reference_pair.loop import Phase, Plan, train

Texts = Mapping[str, Sequence[str]]
Report = Callable[[str, dict[str, float]], None]
TOKENIZER_CHARACTERS, LEAST_TOKENIZER_CHARACTERS = 24_000_000, 2_000_000
PROBED_WINDOWS = 8
FEWEST_STEPS = 16  # of a scaled target, as long as a step holds its windows
ANSWERS = "answers"
SEALED, SEALED_NAME = "sealed", "sealed.jsonl"  # where nothing that reads a folder of prompts comes upon it
DISTILLED_SHARES = {packing.PLAIN: 0.1, data.PROSE: 0.1, data.EXPLANATIONS: 0.05, ANSWERS: 0.75}
DRAFT_SHAPES = {"draft": pretrain.DRAFT, "draft-small": pretrain.SMALL_DRAFT}


@dataclass(frozen=True)
class Recipe:
    """One run of the kind that the bundled pair was trained with, in several; some five hours on two quiet cores.

    Attributes:
        target_tokens: training tokens of the target; 0 takes it as it is where the run starts.
        draft_tokens: training tokens of the drafts, which learn side by side.
        vocabulary: entries of the tokenizer.
        questions: training questions that the target answers for its drafts.
        seed: of everything random.
        short, long: window lengths of the target's training, whose steps alternate between them.
        long_share: of the target's tokens in long windows, the only ones that hold long conversations and reports.
        draft_text_share: of the drafts' tokens that are training text; in the others the target's answers prevail.
        step_tokens: tokens of one optimiser step.
        learning_rate: of the target's matrices at its highest; embeddings and norms learn at half of it.
        decay_share: of the target's steps over which the rate falls.
    """

    target_tokens: int = 62_000_000
    draft_tokens: int = 12_000_000
    vocabulary: int = 4096
    questions: int = 2400
    seed: int = 0
    short: int = 512
    long: int = 1536
    long_share: float = 0.4
    draft_text_share: float = 0.3
    step_tokens: int = 9216
    learning_rate: float = 8e-3
    decay_share: float = 0.4

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with ``factor`` times the tokens and questions, and shorter steps where few would be left."""
        target_tokens = max(8192, int(self.target_tokens * factor))
        shortest = 2 * self.long  # half a step holds a long window
        return replace(
            self,
            target_tokens=target_tokens,
            step_tokens=min(self.step_tokens, max(shortest, target_tokens // FEWEST_STEPS)),
            draft_tokens=max(8192, int(self.draft_tokens * factor)),
            questions=max(8, int(self.questions * factor)),
        )


def _tokenizer(texts: Texts, recipe: Recipe, work: Path, start: Path | None) -> PreTrainedTokenizerFast:
    if start is not None:
        return PreTrainedTokenizerFast.from_pretrained(start / "target")
    if not (work / "tokenizer" / "tokenizer.json").exists():
        rng = np.random.default_rng(recipe.seed)
        characters = min(TOKENIZER_CHARACTERS, LEAST_TOKENIZER_CHARACTERS + recipe.target_tokens)
        shares = data.shares(recipe.long_share)
        chosen = [text for kind, share in shares.items() for text in data.sample(texts[kind], share * characters, rng)]
        tokenizer.train_tokenizer(chosen, recipe.vocabulary).save_pretrained(work / "tokenizer")
    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def _initial(shape: dict[str, int], tokens: PreTrainedTokenizerFast, seed: int, start: Path | None) -> Qwen3ForCausalLM:
    """A model of a shape with random weights, or with those of a folder."""
    model = pretrain.build(shape, len(tokens), tokens.eos_token_id, seed)
    if start is not None:
        with no_bars():
            model.load_state_dict(Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    return model


def marks_of(tokens: PreTrainedTokenizerFast) -> pretrain.Marks:
    """The ids of the tokens that tell prompts, answers and plain text apart."""
    ids = (tokens.convert_tokens_to_ids(name) for name in (tokenizer.USER, tokenizer.ASSISTANT, tokenizer.END))
    return pretrain.Marks(*ids)


def train_target(
    texts: Texts,
    tokens: PreTrainedTokenizerFast,
    recipe: Recipe,
    work: Path,
    device: torch.device,
    report: Report,
    start: Path | None = None,
) -> Qwen3ForCausalLM:
    """Train the target on short and long windows by turns; then bring its states to sizes around one."""
    model = _initial(pretrain.TARGET, tokens, recipe.seed, start and start / "target").to(device)
    kinds = (
        (recipe.short, 1 - recipe.long_share, data.SHORT_SHARES),
        (recipe.long, recipe.long_share, data.LONG_SHARES),
    )
    phases = []
    for number, (length, share, mixture) in enumerate(kinds, start=1):
        count = _windows(recipe.target_tokens * share, length)
        phases.append(Phase(data.windows(texts, tokens, count, length, recipe.seed + number, mixture), share))
    plan = Plan(
        recipe.target_tokens,
        step_tokens=recipe.step_tokens,
        micro_tokens=recipe.step_tokens // 2,
        learning_rate=recipe.learning_rate,
        embedding_rate=recipe.learning_rate / 2,
        decay_share=recipe.decay_share,
        seed=recipe.seed,
        interleaved=True,
    )
    loss = pretrain.language_model_loss(model, marks_of(tokens))
    train(model, loss, phases, plan, work / "target", lambda row: report("target", row))
    probe = torch.from_numpy(phases[-1].windows[:PROBED_WINDOWS].astype(np.int64)).to(device)
    pretrain.rescale_states(model, pretrain.centering_factor(pretrain.state_sizes(model, probe)))
    return model


def train_drafts(
    texts: Texts,
    tokens: PreTrainedTokenizerFast,
    target: Qwen3ForCausalLM,
    recipe: Recipe,
    work: Path,
    report: Report,
    start: Path | None = None,
) -> dict[str, Qwen3ForCausalLM]:
    """Distil every draft from the target: on text first unless already trained, then mostly on its answers."""
    target = target.eval().requires_grad_(False)
    cache = work / "answers.json"
    if not cache.exists():
        questions = data.training_questions(recipe.questions, recipe.seed)
        atomic_write_text(cache, json.dumps(_answered_apart(target, tokens, questions, work, report)))
    mixed = {**texts, ANSWERS: json.loads(cache.read_text())}
    apart = 0.0 if start is not None else recipe.draft_text_share
    phases = []
    if apart:
        count = _windows(recipe.draft_tokens * apart, recipe.short)
        phases.append(
            Phase(data.windows(texts, tokens, count, recipe.short, recipe.seed + 3, data.SHORT_SHARES), apart)
        )
    count = _windows(recipe.draft_tokens * (1 - apart), recipe.long)
    answered = data.windows(mixed, tokens, count, recipe.long, recipe.seed + 4, DISTILLED_SHARES)
    phases.append(Phase(answered, 1 - apart))
    drafts = nn.ModuleDict(
        {name: _initial(shape, tokens, recipe.seed + 5, start and start / name) for name, shape in DRAFT_SHAPES.items()}
    ).to(target.device)
    models = {name: model for name, model in drafts.items() if isinstance(model, Qwen3ForCausalLM)}
    loss = pretrain.distillation_loss(target, list(models.values()), marks_of(tokens))
    plan = Plan(
        recipe.draft_tokens,
        step_tokens=recipe.step_tokens,
        micro_tokens=recipe.step_tokens // 2,
        learning_rate=8e-3,
        embedding_rate=4e-3,
        decay_share=0.6,
        seed=recipe.seed,
    )
    train(drafts, loss, phases, plan, work / "drafts", lambda row: report("drafts", row))
    return models


def _windows(tokens: float, length: int) -> int:
    return max(8, int(tokens / length))


def _answered_apart(
    target: Qwen3ForCausalLM,
    tokens: PreTrainedTokenizerFast,
    questions: list[data.Messages],
    work: Path,
    report: Report,
) -> list[str]:
    """The target's answers, found by processes of their own, on a CPU one a core.

    Generating and compiling in one process does not go well: compiled after ``generate``, the target once taught its
    drafts a flat distribution.
    """
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        with no_bars():
            target.save_pretrained(scratch)
        tokens.save_pretrained(scratch)
        report("answers", {})
        workers = 1 if target.device.type != "cpu" else max(1, torch.get_num_threads())
        parts = [questions[number::workers] for number in range(workers)]
        with _process_pool(workers) as pool:
            device = str(target.device)
            with deaf_to_interrupts():
                jobs = [pool.submit(regenerate.answers_of, Path(scratch), part, device, workers) for part in parts]
            return [answer for job in jobs for answer in job.result()]


@contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """New processes for jobs submitted inside :func:`deaf_to_interrupts`; an error or Ctrl-C kills them at once."""
    others = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.kill()
            raise


def save_model(model: Qwen3ForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model in bfloat16 with its tokenizer, as ``AutoModelForCausalLM.from_pretrained`` expects it."""
    shutil.rmtree(folder, ignore_errors=True)
    model = model.to("cpu", torch.bfloat16)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = tokens.eos_token_id
    with no_bars():
        model.save_pretrained(folder)
    # Stored in half the space; what the pair computes in is float32, where greedy outputs are compared token by token.
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))
    tokens.save_pretrained(folder)


def save_prompts(
    tokens: PreTrainedTokenizerFast,
    folder: Path,
    seed: int = 0,
    per_task: Mapping[str, int] = data.PROMPTS_PER_SPLIT,
) -> dict[str, int]:
    """Write the prompts, a JSON Lines file a split, the sealed one beside the folder; returns how many each holds.

    Args:
        tokens: of the pair.
        folder: to write to.
        seed: of the prompts.
        per_task: how many of each task, by split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, examples in data.choose_prompts(tokens, seed, counts=per_task).items():
        lines = []
        for number, e in enumerate(examples):
            row = {
                "id": f"{split}-{number:03d}",
                "task": e.task,
                "split": split,
                "template": e.template,
                "messages": [{"role": role, "content": content} for role, content in e.messages],
                "reference": e.answer,
                "check": e.check,
            }
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        path = folder.parent / SEALED_NAME if split == SEALED else folder / f"{split}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        counts[split] = len(lines)
    return counts


def train_reference(
    out: Path,
    work: Path,
    recipe: Recipe,
    device: torch.device,
    report: Report = lambda stage, row: None,
    start: Path | None = None,
) -> Path:
    """Train the target and its drafts and write them, their tokenizer and their prompts into ``out``.

    Every stage leaves its result in ``work``, so that an interrupted run goes on where it was.

    Args:
        out: receives ``target/``, ``draft/``, ``draft-small/`` and ``prompts/``.
        work: for checkpoints and intermediate files.
        recipe: sizes and seeds.
        device: to train on.
        report: told the stage and its running figures.
        start: folder of a pair of the same shapes to go on from, with its tokenizer; without it, from nothing. Needed
            if the recipe has no tokens for the target.
    """
    with keep_freed_memory(device):
        work.mkdir(parents=True, exist_ok=True)
        report("data", {})
        enough = max(recipe.target_tokens, recipe.draft_tokens)
        texts = data.training_texts(enough, data.shares(recipe.long_share), recipe.seed)
        tokens = _tokenizer(texts, recipe, work, start)
        if recipe.target_tokens:
            target = train_target(texts, tokens, recipe, work, device, report, start)
        else:
            target = _initial(pretrain.TARGET, tokens, recipe.seed, start and start / "target").to(device)
        drafts = train_drafts(texts, tokens, target, recipe, work, report, start)
        save_model(target, tokens, out / "target")
        for name, model in drafts.items():
            save_model(model, tokens, out / name)
        counts = save_prompts(tokens, out / "prompts")
        save_training_record(out, work, recipe, counts, start)
    return out


def save_training_record(
    out: Path, work: Path, recipe: Recipe, prompts: dict[str, int], start: Path | None = None
) -> None:
    """Write ``training.json``: what the card says of how the pair was made, and the pair that it went on from."""
    states = {
        stage: json.loads(next((work / stage).glob("step-*/state.json")).read_text())
        for stage in (("target", "drafts") if recipe.target_tokens else ("drafts",))
    }
    target = states.get("target", {"tokens": 0, "seconds": 0.0, "loss": None})
    machine = environment()
    record = {
        **asdict(recipe),
        "target_tokens": target["tokens"],
        "target_seconds": target["seconds"],
        "target_loss": target["loss"],
        "draft_tokens": states["drafts"]["tokens"],
        "draft_seconds": states["drafts"]["seconds"],
        "trained_drafts": list(DRAFT_SHAPES),
        "shapes": {"target": pretrain.TARGET, **DRAFT_SHAPES},
        "shares": data.shares(recipe.long_share) if recipe.target_tokens else DISTILLED_SHARES,
        "prompts": prompts,
        "machine": machine["gpu"] or f"{machine['cores']} cores of an {machine['cpu']}",
        "python": machine["python"],
        "torch": machine["versions"]["torch"],
        "date": timestamp()[:10],
    }
    earlier = start and start / RECORD_NAME
    if earlier is not None and earlier.is_file():
        record["before"] = json.loads(earlier.read_text(encoding="utf-8"))
    (out / RECORD_NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
