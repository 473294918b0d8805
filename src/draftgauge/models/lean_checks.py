"""Whether a model is still what transformers made: code of our own over its weights is right only then."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn
from transformers import PreTrainedModel

PLAIN_TENSORS: tuple[type, ...] = (nn.Parameter, Tensor)
_LIBRARIES = ("torch.nn.", "transformers.activations")
_IDLE_HOOKS = (
    "transformers.utils.output_capturing"  # stay behind after hidden states were asked for, and then do nothing
)


def why_changed(model: PreTrainedModel, linears: list[nn.Module]) -> str | None:
    """What was changed in a model of one of transformers' families, or None if nothing was.

    Args:
        model: its class is the family's own.
        linears: those that are called as modules if they are not plain, so that whatever they do is done.
    """
    called = {id(part) for linear in linears if type(linear) is not nn.Linear for part in linear.modules()}
    dtype = model.get_input_embeddings().weight.dtype
    for name, module in model.named_modules():
        if id(module) in called:
            continue
        what = _changed(module, type(model).__module__)
        if what is not None:
            return f"{name or 'the model'} {what}"
        for part, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None and type(tensor) not in PLAIN_TENSORS:
                return f"{name}.{part} is a {type(tensor).__name__} and not a plain tensor"
        for part, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype != dtype:
                return f"{name}.{part} is {parameter.dtype}, and the embeddings {dtype}"
    return None


def _changed(module: nn.Module, family: str) -> str | None:
    kind = type(module)
    if kind.__module__ != family and not kind.__module__.startswith(_LIBRARIES):
        return f"is a {kind.__name__} of {kind.__module__}"
    definer = next(base for base in kind.__mro__ if "forward" in vars(base))
    if "forward" in vars(module) or getattr(vars(definer)["forward"], "__module__", None) != definer.__module__:
        return "has had its forward replaced"
    hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
    if any(getattr(hook, "__module__", None) != _IDLE_HOOKS for hook in hooks):
        return "has hooks"
    return None
