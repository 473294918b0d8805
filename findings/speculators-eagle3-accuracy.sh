#!/usr/bin/env bash
# speculators 0.9.0 (transformers 5.19.0): the accuracy that training of an EAGLE-3 draft reports, `full_acc_k`, `cond_acc_k`.
# Expected: the share of drafts whose token k the target would accept, and that share where those before it were right.
# Behaviour: the target's logits are cut to the draft's vocabulary before their maximum is taken. Where the target's own
#   token lies outside, which is always a rejection, the best token inside counts as right. `cond_acc_k` divides by drafts
#   that reach past the end of the trained text as well, where none counts as right: short answers lower it, whatever the
#   draft. Acceptance read off a training run is too high by the one and too low by the other.
# Output seen (three of four tokens in the draft's vocabulary, and the draft says what the target's head says of them):
#   text of all tokens: full_acc_0 1.00, 0.74 of the drafts are the target's token
#   a draft that is always right, one long answer: cond_acc_0 to 2 1.00 1.00 1.00
#   a draft that is always right, answers of 5 tokens: cond_acc_0 to 2 1.00 0.80 0.60
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 speculators==0.9.0
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio
HF_HUB_OFFLINE=1 TORCHDYNAMO_DISABLE=1 "$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON' || { tail -n 20 "$folder/log"; exit 1; }
import sys
from pathlib import Path

import torch
from loguru import logger
from speculators.models.eagle3 import Eagle3DraftModel
from transformers import LlamaConfig, LlamaForCausalLM

logger.remove()
torch.manual_seed(0)
size, width, length, answer = 64, 32, 800, 5
sizes = dict(vocab_size=size, hidden_size=width, intermediate_size=width, num_attention_heads=4, head_dim=8)
sizes |= dict(max_position_embeddings=length + 8, tie_word_embeddings=False)
target, path = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=4)), Path(sys.argv[1]) / "target"
target.save_pretrained(path)
inside = torch.arange(size) % 4 != 0  # three of four tokens are in the draft's vocabulary
ids = inside.nonzero()[:, 0]
options = dict(norm_before_residual=False, ttt_steps=3, draft_attn_impl="eager", target_layer_ids=[0, 1, 2])
options |= dict(t2d=inside, d2t=ids - torch.arange(len(ids)), draft_vocab_size=len(ids), verifier_name_or_path=str(path))
draft = Eagle3DraftModel.from_training_args(LlamaConfig(**sizes, num_hidden_layers=1), **options)
with torch.no_grad():  # the draft hands on the state that it is given: its head then says what the target's says
    for weight in (draft.layers[0].self_attn.o_proj.weight, draft.layers[0].mlp.down_proj.weight, draft.fc.weight):
        weight.zero_()
    draft.fc.weight[:, -width:] = torch.eye(width)
_, settings = draft.get_trainer_kwargs(loss_fn="kl_div", loss_implementation="eager", ttt_steps=3, ttt_step_loss_decay=1.0)


@torch.no_grad()
def train(states, mask):
    """What a step of training reports, and the share of first drafts that are the target's own token."""
    given = dict(input_ids=torch.zeros(1, length, dtype=torch.long), document_ids=torch.zeros(1, length, dtype=torch.long))
    given |= dict(loss_mask=mask, verifier_last_hidden_states=states)
    drafts, _, metrics = draft(torch.cat([states] * 3, dim=-1), **given, **settings)
    names = [f"{kind}_acc_{at}" for kind in ("full", "cond") for at in range(3)]
    own = target.lm_head(target.model.norm(states)).argmax(-1)
    agreed = (ids[drafts[0]] == own)[mask].float().mean().item()
    return {name: (metrics[f"{name}_sum"] / metrics[f"{name}_total"]).item() for name in names}, agreed


everywhere = torch.ones(1, length, dtype=torch.bool)
open_text, agreed = train(torch.randn(1, length, width), everywhere)
print(f"text of all tokens: full_acc_0 {open_text['full_acc_0']:.2f}, {agreed:.2f} of the drafts are the target's token")
token = next(state for state in torch.randn(100, width) if inside[target.lm_head(target.model.norm(state)).argmax()])
same = token.expand(1, length, width)
seen = []
for name, mask in (
    ("one long answer", everywhere),
    (f"answers of {answer} tokens", (torch.arange(length) // answer % 2 == 0)[None]),
):
    rates, right = train(same, mask)
    seen.append([rates[f"cond_acc_{at}"] for at in range(3)])
    print(f"a draft that is always right, {name}: cond_acc_0 to 2 {' '.join(f'{rate:.2f}' for rate in seen[-1])}")
    assert right == 1, "the draft is wrong"
if open_text["full_acc_0"] < 0.99 or agreed > 0.9 or min(seen[0]) < 0.99 or not seen[1][2] < seen[1][1] < 0.9:
    sys.exit("the behaviour has changed")
print("as described: tokens that the draft cannot say count as accepted, and the end of an answer as rejected")
PYTHON
