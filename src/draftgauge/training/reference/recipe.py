"""``draftgauge reference train``: the bundled pair from nothing but a Python installation.

Standard-library text and generated arithmetic -> tokenizer -> target (next-token cross-entropy) -> answers by the target ->
drafts (distilled from the target on text and on those answers) -> folders that ``from_pretrained`` loads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from draftgauge.core.provenance import environment, timestamp
from draftgauge.training.allocator import keep_freed_memory
from draftgauge.training.loop import Phase, Plan, train
from draftgauge.training.reference import data, packing, pretrain, regenerate, tokenizer

Report = Callable[[str, dict[str, float]], None]
DRAFT_SHAPES = {"draft": pretrain.DRAFT, "draft-small": pretrain.SMALL_DRAFT}


@dataclass(frozen=True)
class Recipe:
    """What the bundled pair was trained with; ``scaled`` gives a shorter run of the same kind.

    Attributes:
        target_tokens: training tokens of the target.
        draft_tokens: training tokens of the drafts, which learn side by side.
        vocabulary: entries of the tokenizer.
        questions: training questions that the target answers for its drafts.
        seed: of everything random.
        short, long: window lengths of the two phases of the target's training.
        long_share: of the target's tokens in long windows.
        draft_text_share: of the drafts' tokens that are training text; in the others the target's answers prevail.
    """

    target_tokens: int = 16_384_000
    draft_tokens: int = 11_500_000
    vocabulary: int = 4096
    questions: int = 3840
    seed: int = 0
    short: int = 512
    long: int = 1024
    long_share: float = 0.26
    draft_text_share: float = 0.3

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with ``factor`` times the tokens and questions."""
        return replace(
            self,
            target_tokens=max(8192, int(self.target_tokens * factor)),
            draft_tokens=max(8192, int(self.draft_tokens * factor)),
            questions=max(8, int(self.questions * factor)),
        )


def _tokenizer(texts: data.Texts, recipe: Recipe, work: Path) -> PreTrainedTokenizerFast:
    if not (work / "tokenizer" / "tokenizer.json").exists():
        rng = np.random.default_rng(recipe.seed)
        sample = [
            v
            for kind, values in texts.training.items()
            for v in _some(values, 9000 if kind != packing.PLAIN else len(values), rng)
        ]
        tokenizer.train_tokenizer(sample, recipe.vocabulary).save_pretrained(work / "tokenizer")
    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def _some(values: list[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[i] for i in rng.permutation(len(values))[:count]]


def train_target(
    texts: data.Texts, tokens: PreTrainedTokenizerFast, recipe: Recipe, work: Path, device: torch.device, report: Report
) -> Qwen3ForCausalLM:
    """Train the target: short windows first, long ones (which hold whole summaries) for the last quarter."""
    model = pretrain.build(pretrain.TARGET, len(tokens), tokens.eos_token_id, recipe.seed).to(device)
    phases = []
    for number, (length, share) in enumerate(
        ((recipe.short, 1 - recipe.long_share), (recipe.long, recipe.long_share)), start=1
    ):
        count = _windows(recipe.target_tokens * share, length)
        phases.append(Phase(data.windows(texts, tokens, count, length, recipe.seed + number), share))
    plan = Plan(recipe.target_tokens, seed=recipe.seed)
    train(model, pretrain.language_model_loss(model), phases, plan, work / "target", lambda row: report("target", row))
    return model


def train_drafts(
    texts: data.Texts,
    tokens: PreTrainedTokenizerFast,
    target: Qwen3ForCausalLM,
    recipe: Recipe,
    work: Path,
    report: Report,
) -> dict[str, Qwen3ForCausalLM]:
    """Distil every draft from the target, first on text, then mostly on the target's own answers."""
    target = target.eval().requires_grad_(False)
    cache = work / "answers.json"
    if not cache.exists():
        questions = training_questions(texts, recipe)
        cache.write_text(json.dumps(_answered_apart(target, tokens, questions, work, report)))
    mixed = data.Texts({packing.PLAIN: texts.training[packing.PLAIN], "answers": json.loads(cache.read_text())}, {})
    apart, answered = recipe.draft_text_share, 1 - recipe.draft_text_share
    first = data.windows(
        texts, tokens, _windows(recipe.draft_tokens * apart, recipe.short), recipe.short, recipe.seed + 3
    )
    shares = {packing.PLAIN: 0.2, "answers": 0.8}
    second = data.windows(
        mixed, tokens, _windows(recipe.draft_tokens * answered, recipe.long), recipe.long, recipe.seed + 4, shares
    )
    drafts = nn.ModuleDict(
        {
            name: pretrain.build(shape, len(tokens), tokens.eos_token_id, recipe.seed + 5)
            for name, shape in DRAFT_SHAPES.items()
        }
    ).to(target.device)
    loss = pretrain.distillation_loss(target, list(drafts.values()))
    plan = Plan(recipe.draft_tokens, learning_rate=1e-2, embedding_rate=6e-3, seed=recipe.seed)
    phases = [Phase(first, apart), Phase(second, answered)]
    train(drafts, loss, phases, plan, work / "drafts", lambda row: report("drafts", row))
    return {name: model for name, model in drafts.items() if isinstance(model, Qwen3ForCausalLM)}


def _windows(tokens: float, length: int) -> int:
    return max(8, int(tokens / length))


def training_questions(texts: data.Texts, recipe: Recipe) -> list[str]:
    """Questions of the training text, tasks in turn."""
    rng = Random(recipe.seed)
    rendered = [
        rng.choice(texts.training[task]) for task in data.TASK_CYCLE * (recipe.questions // len(data.TASK_CYCLE))
    ]
    return [
        text.split(f"{tokenizer.ASSISTANT}\n")[0].removeprefix(f"{tokenizer.USER}\n").rstrip("\n") for text in rendered
    ]


def _answered_apart(
    target: Qwen3ForCausalLM, tokens: PreTrainedTokenizerFast, questions: list[str], work: Path, report: Report
) -> list[str]:
    """The target's answers, found by a process of its own.

    Generating and compiling in one process does not go well: compiled after ``generate``, the target once taught its drafts a
    flat distribution.
    """
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        target.save_pretrained(scratch)
        tokens.save_pretrained(scratch)
        report("answers", {})
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(regenerate.answers_of, Path(scratch), questions, str(target.device)).result()


def save_model(model: Qwen3ForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model in bfloat16 with its tokenizer, as ``AutoModelForCausalLM.from_pretrained`` expects it."""
    shutil.rmtree(folder, ignore_errors=True)
    model = model.to("cpu", torch.bfloat16)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = tokens.eos_token_id
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)


def save_prompts(texts: data.Texts, tokens: PreTrainedTokenizerFast, folder: Path) -> dict[str, int]:
    """Write the reserved prompts, one JSON Lines file a split; how many each holds."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, examples in data.choose_prompts(texts, tokens).items():
        lines = []
        for number, e in enumerate(examples):
            messages = [{"role": "user", "content": e.question}]
            row = {
                "id": f"{split}-{number:03d}",
                "task": e.task,
                "split": split,
                "source": e.source,
                "messages": messages,
                "reference": e.answer,
            }
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        counts[split] = len(lines)
    return counts


def train_reference(
    out: Path, work: Path, recipe: Recipe, device: torch.device, report: Report = lambda stage, row: None
) -> Path:
    """Train the target and its drafts and write them, their tokenizer and their prompts into ``out``.

    Every stage leaves its result in ``work``, so that an interrupted run goes on where it was.

    Args:
        out: receives ``target/``, ``draft/``, ``draft-small/`` and ``prompts/``.
        work: for checkpoints and intermediate files.
        recipe: sizes and seeds.
        device: to train on.
        report: told the stage and its running figures.
    """
    keep_freed_memory()
    work.mkdir(parents=True, exist_ok=True)
    report("data", {})
    texts = data.collect(recipe.seed)
    tokens = _tokenizer(texts, recipe, work)
    target = train_target(texts, tokens, recipe, work, device, report)
    drafts = train_drafts(texts, tokens, target, recipe, work, report)
    save_model(target, tokens, out / "target")
    for name, model in drafts.items():
        save_model(model, tokens, out / name)
    counts = save_prompts(texts, tokens, out / "prompts")
    save_training_record(out, work, recipe, counts)
    return out


def save_training_record(out: Path, work: Path, recipe: Recipe, prompts: dict[str, int]) -> None:
    """Write ``training.json``: what the card says of how the pair was made."""
    states = {
        stage: json.loads(next((work / stage).glob("step-*/state.json")).read_text()) for stage in ("target", "drafts")
    }
    machine = environment()
    record = {
        **asdict(recipe),
        "target_tokens": states["target"]["tokens"],
        "target_seconds": states["target"]["seconds"],
        "target_loss": states["target"]["loss"],
        "draft_tokens": states["drafts"]["tokens"],
        "draft_seconds": states["drafts"]["seconds"],
        "shapes": {"target": pretrain.TARGET, **DRAFT_SHAPES},
        "shares": data.SHARES,
        "prompts": prompts,
        "machine": machine["gpu"] or f"{machine['cores']} cores of an {machine['cpu']}",
        "python": machine["python"],
        "torch": machine["versions"]["torch"],
        "date": timestamp()[:10],
    }
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
