"""Tiny random drafters in every layout that is read, with what speculators' own forward computes for them.

Runs in an environment with speculators, without draftgauge (``make test-speculators`` sets it up):

    python tests/speculators_reference.py OUT [SEED]
    python tests/speculators_reference.py --exported FOLDER   # of a DFlash that draftgauge wrote: expectations only

Each folder is a checkpoint as its tool writes it, and ``expected.safetensors``: tokens ``[T]``, the target's states
``hidden [T, S, H]``, what the checkpoint borrows of the target, and logits (and DSpark's chances of acceptance).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HIDDEN, VOCABULARY, DRAFTED, TAPS, LENGTH, DEPTHS, BLOCK = 16, 48, 24, [2, 4, 5], 18, 4, 4
FIRST_ANCHOR = 3  # of the blocks
SIZES = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 256}
SIZES |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
SHARED = ("embed_tokens.weight", "lm_head.weight")
CONVOLVED = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}
DEEPSPEC = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
Tensors = dict[str, torch.Tensor]


def main(out: Path, seed: int = 0) -> None:
    torch.manual_seed(seed)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    yarn = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}}
    llama, qwen = LlamaConfig(**SIZES, num_hidden_layers=1, **rope), Qwen3Config(**SIZES, num_hidden_layers=2, **yarn)
    biased = LlamaConfig(**SIZES, num_hidden_layers=1, attention_bias=True, **rope)
    eagle3(out / "eagle3-sglang", llama, DRAFTED, flat=True)
    eagle3(out / "eagle3-norms", qwen, VOCABULARY, drop=SHARED[:1], norm_before_residual=True, norm_before_fc=True)
    eagle3(out / "eagle3-fc-norm", biased, DRAFTED, fc_norm=True, norm_output=True)

    windows = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 5}
    layers = {"num_hidden_layers": 2, **rope}
    full, sliding = Qwen3Config(**SIZES, **layers), Qwen3Config(**SIZES, **layers, **windows)
    block(out / "dflash-speculators", DFlashSpeculatorConfig, sliding, DRAFTED, drop=SHARED[:1])
    block(out / "dflash-flat", DFlashSpeculatorConfig, full, VOCABULARY, drop=SHARED, flat="z-lab")
    heads = {"markov_rank": 6, "sample_from_anchor": True}
    block(out / "dspark-speculators", DSparkSpeculatorConfig, full, DRAFTED, markov_head_type="gated", **heads)
    block(
        out / "dspark-deepspec", DSparkSpeculatorConfig, full, VOCABULARY, "deepspec", markov_head_type="rnn", **heads
    )
    heads["confidence_head_with_markov"] = False  # SpecForge trains from the anchor on, and writes no field for it
    block(out / "dspark-specforge", DSparkSpeculatorConfig, full, VOCABULARY, "z-lab", drop=SHARED, **heads)
    two = LlamaConfig(**SIZES, num_hidden_layers=2, **rope)
    peagle(out / "peagle-speculators", two, VOCABULARY, fc_norm=True)
    peagle(out / "peagle-flat", llama, DRAFTED, flat=True, norm_before_residual=True)
    block(out / "dflash2-speculators", DFlash2SpeculatorConfig, sliding, VOCABULARY, drop=SHARED[:1], **CONVOLVED)
    block(out / "dflash2-flat", DFlash2SpeculatorConfig, full, VOCABULARY, drop=SHARED, flat="z-lab", **CONVOLVED)


def speculators(algorithm: str, drafted: int = BLOCK - 1) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=drafted)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=[]),
    )


def random_weights(model: torch.nn.Module) -> Tensors:
    """Fill a model with random weights that no norm or bias leaves unseen, and a vocabulary map."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn(parameter.shape)
            near_one = parameter.ndim == 1 and not name.endswith("bias")
            parameter.copy_(1 + 0.2 * spread if near_one else 0.2 * spread)
    if model.t2d is not None:
        ids = torch.randperm(VOCABULARY)[:DRAFTED].sort().values
        model.t2d.copy_(torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True))
        model.d2t.copy_(ids - torch.arange(DRAFTED))
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("verifier_")}


def write(folder: Path, config: dict[str, Any], tensors: Tensors, expected: Tensors, drop: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    expected |= {name: tensors[name] for name in drop}
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in drop}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")


def plain(config: Any) -> dict[str, Any]:
    ignored = ("transformers_version", "_attn_implementation", "_attn_implementation_autoset", "dtype")
    return {name: value for name, value in config.to_dict().items() if name not in ignored and value is not None}


def eagle3(
    folder: Path, decoder: Any, drafted: int, flat: bool = False, drop: tuple[str, ...] = (), **norms: bool
) -> None:
    decoder._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=drafted,
        eagle_aux_hidden_state_layer_ids=TAPS,
        speculators_config=speculators("eagle3"),
        **norms,
    )
    model = Eagle3DraftModel(config).eval()
    tensors = random_weights(model)
    tokens, hidden = torch.randint(VOCABULARY, (LENGTH,)), torch.randn(LENGTH, len(TAPS), HIDDEN)
    logits: list[torch.Tensor] = []
    with torch.no_grad(), model.lm_head.register_forward_hook(lambda head, inputs, output: logits.append(output[0])):
        model(hidden.flatten(1)[None], tokens[None], torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=DEPTHS)
    expected = {"tokens": tokens, "hidden": hidden, "logits": torch.stack(logits)}
    written = plain(config)
    if flat:  # SGLang's: the layers' outputs, in a part of its own
        engine = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in TAPS], "use_aux_hidden_state": True}
        written = {**plain(decoder), "draft_vocab_size": drafted, "eagle_config": engine}
        written |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    write(folder, written, tensors, expected, drop)


def peagle(folder: Path, decoder: Any, drafted: int, flat: bool = False, **norms: bool) -> None:
    """Logits ``[BLOCK, anchors, V]`` of the places of each anchor's block, all blocks whole."""
    decoder._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=drafted,
        eagle_aux_hidden_state_layer_ids=TAPS,
        mask_token_id=VOCABULARY - 1,
        speculators_config=speculators("peagle", BLOCK),
        **norms,
    )
    model = PEagleDraftModel(config).eval()
    tensors = random_weights(model)
    tokens, hidden = torch.randint(VOCABULARY - 1, (LENGTH,)), torch.randn(LENGTH, len(TAPS), HIDDEN)
    module, anchors, seen = sys.modules[PEagleDraftModel.__module__], LENGTH - BLOCK, {}
    anchor = torch.cat((torch.arange(LENGTH), torch.arange(anchors).repeat(BLOCK - 1)))
    depth = torch.cat((torch.zeros(LENGTH).long(), torch.arange(1, BLOCK).repeat_interleave(anchors)))

    def look(logits: torch.Tensor, **options: Any) -> Any:
        seen["logits"] = torch.cat((logits[0, :anchors], logits[0, LENGTH:])).unflatten(0, (BLOCK, anchors))
        return torch.zeros(()), {}

    given = (hidden.flatten(1)[None], tokens[None], torch.zeros(1, LENGTH, dtype=torch.long))
    with (
        torch.no_grad(),
        patch.object(module, "generate_cod_sample_indices", lambda **options: (anchor, depth)),
        patch.object(module, "compute_metrics", look),
    ):
        model(*given, verifier_last_hidden_states=torch.zeros(1, LENGTH, HIDDEN))
    written = plain(config)
    if flat:
        engine = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in TAPS], "use_aux_hidden_state": True}
        written = {**plain(decoder), **norms, "draft_vocab_size": drafted, "eagle_config": engine, "block_size": BLOCK}
        written |= {"architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": VOCABULARY - 1}
    write(folder, written, tensors, {"tokens": tokens, "hidden": hidden, **seen}, ())


def block(
    folder: Path,
    config_class: type,
    decoder: Any,
    drafted: int,
    flat: str = "",
    drop: tuple[str, ...] = (),
    **heads: Any,
) -> None:
    decoder._attn_implementation = "eager"
    dspark = config_class is DSparkSpeculatorConfig
    config = config_class(
        transformer_layer_config=decoder,
        draft_vocab_size=drafted,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=TAPS,
        mask_token_id=VOCABULARY - 1,
        speculators_config=speculators("dspark", BLOCK) if dspark else speculators("dflash"),
        **heads,
    )
    convolved = config_class is DFlash2SpeculatorConfig
    model = (DSparkDraftModel if dspark else DFlash2DraftModel if convolved else DFlashDraftModel)(config).eval()
    tensors = random_weights(model)
    expected = blocks_of(model)
    written = plain(config)
    below = [layer - 1 for layer in TAPS]
    if flat == "z-lab":  # also SpecForge's: settings in a part of their own
        own = {"mask_token_id": VOCABULARY - 1, "target_layer_ids": below}
        own |= {name: getattr(config, name) for name in DEEPSPEC if dspark}
        own |= {name: getattr(config, name) for name in CONVOLVED if convolved}
        name = type(model).__name__
        written = {**plain(decoder), "block_size": BLOCK, "num_target_layers": 6, "dflash_config": own}
        written |= {"architectures": [name], "auto_map": {"AutoModel": f"dflash.{name}"}}
    elif flat == "deepspec":
        own = {name: getattr(config, name) for name in (*DEEPSPEC, "block_size", "mask_token_id")}
        written = {**plain(decoder), **own, "target_layer_ids": below, "architectures": ["Qwen3DSparkModel"]}
    write(folder, written, tensors, expected, drop)


def blocks_of(model: torch.nn.Module) -> Tensors:
    """A random text, and what a model predicts in the blocks of consecutive anchors in it."""
    size, config = model.config.block_size, model.config
    tokens, hidden = torch.randint(VOCABULARY - 1, (LENGTH,)), torch.randn(LENGTH, len(TAPS), HIDDEN)
    mask = torch.zeros(1, LENGTH)
    mask[:, FIRST_ANCHOR:] = 1
    seen: dict[str, torch.Tensor] = {}

    def look(*others: Any, **options: Any) -> Any:
        if config.speculators_model_type == "dflash2":  # with the candidates' scores among them, of the text's tokens
            kept, scores = options["training_candidate_ids"], options["candidate_logits"]
            scored = torch.full_like(options["unary_logits"], -torch.inf).scatter(-1, kept, scores)
            seen["logits"] = scored[0].unflatten(0, (-1, size))
            return torch.zeros(()), {}
        logits, _, *others = others
        seen["logits"] = logits[0].unflatten(0, (-1, size))
        if config.speculators_model_type == "dspark":
            seen["confidence"] = others[0][0].unflatten(0, (-1, size)).sigmoid()
        return torch.zeros(()), {}

    anchors = LENGTH - size - FIRST_ANCHOR
    arguments = (hidden.flatten(1)[None], tokens[None], mask, torch.zeros(1, LENGTH, HIDDEN))
    module = sys.modules[type(model).__module__]
    as_served = {"create": True, "new": lambda kept, targets: (kept, targets, targets)}  # no target is put among them
    with (
        torch.no_grad(),
        patch.object(module, "compute_metrics", look),
        patch.object(module, "selector_training_candidates", **as_served),
    ):
        model(*arguments, torch.zeros(1, LENGTH, dtype=torch.long), max_anchors=anchors)
    return {"tokens": tokens, "hidden": hidden, **seen}


def exported(folder: Path) -> None:
    """Leave what speculators computes from a checkpoint beside it, with what it takes of the target."""
    torch.manual_seed(0)
    config = DFlashSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = DFlashDraftModel.from_pretrained(folder, config=config).eval()
    taken = {name: model.state_dict()[name] for name in SHARED[: 1 if model.use_draft_vocab else 2]}
    expected = blocks_of(model) | taken
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    if sys.argv[1] == "--exported":
        exported(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
