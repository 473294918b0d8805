"""What is drafted from: an independent small language model, or the text itself."""

from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter

__all__ = ["Draft", "Drafter", "KeepDrafting", "LanguageModelDrafter", "PromptLookupDrafter"]
