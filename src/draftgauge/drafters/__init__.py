"""What is drafted from: a small language model, the text itself, or what the target computed."""

from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
