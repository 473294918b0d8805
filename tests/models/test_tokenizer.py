"""From prompts to token ids: chat templates, what they must not leave out, and what looks wrong with answers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from draftgauge.core.errors import PromptError
from draftgauge.core.parts import Rendering
from draftgauge.models.tokenizer import answers_warning, encode_prompt
from tiny import tiny_tokenizer

ASK = {"role": "user", "content": " What is 37 + 45? "}
FRENCH = "Answer in French."
# Knows some roles, trims, and cuts the thinking off earlier answers, as published templates do.
SELECTIVE = (
    "{% for m in messages %}{% if m.role in ROLES %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1] | trim }}{% endif %}{% endfor %}<assistant>"
)


def selective(*roles: str) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = SELECTIVE.replace("ROLES", repr(list(roles)))
    return tokenizer


def test_text_goes_through_the_template_where_there_is_one() -> None:
    plain, chat = tiny_tokenizer(), tiny_tokenizer(chat=True)
    assert plain.decode(encode_prompt(plain, "hello")) == "hello"
    assert chat.decode(encode_prompt(chat, "hello")) == "<user>hello<assistant>"
    assert chat.decode(encode_prompt(chat, "hello", Rendering(system="x"))) == "<system>x<user>hello<assistant>"
    assert chat.decode(encode_prompt(chat, "hello", Rendering(chat=False))) == "hello"


def test_conversations_with_and_without_a_template() -> None:
    plain, chat = tiny_tokenizer(), tiny_tokenizer(chat=True)
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]
    assert chat.decode(encode_prompt(chat, messages)) == "<system>x<user>hi<assistant>"
    assert encode_prompt(plain, messages) == [89, 0, 0, 73, 74]  # x, a blank line (unknown characters here), hi


@pytest.mark.parametrize(
    ("roles", "messages", "system", "lost"),
    [
        (("user", "assistant"), [ASK], FRENCH, "system"),
        (("user", "assistant"), [{"role": "system", "content": FRENCH}, ASK], None, "system"),
        (("system", "user", "assistant"), [{"role": "developer", "content": FRENCH}, ASK], None, "developer"),
        (("system", "user", "assistant"), [{"role": "human", "content": "hi"}], None, "human"),
        (
            ("system", "user", "assistant"),
            [ASK, {"role": "assistant", "content": "wait"}, {"role": "tool", "content": "82"}],
            None,
            "tool",
        ),
    ],
)
def test_a_message_that_the_template_leaves_out_is_refused_by_its_role(
    roles: tuple[str, ...], messages: list[dict[str, str]], system: str | None, lost: str
) -> None:
    with pytest.raises(PromptError, match=f"leaves out message .*'{lost}'"):
        encode_prompt(selective(*roles), messages, Rendering(system=system))


TOOLS = (
    "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}{% endfor %}{# 'tool' #}"
)
CALLED = [
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g"}}]}
]


@pytest.mark.parametrize(
    ("template", "messages", "lost"),
    [
        (TOOLS, [ASK, *CALLED, {"role": "tool", "content": "82"}], None),
        (TOOLS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"), [ASK, *CALLED, ASK], "leaves out tool_calls"),
        (TOOLS.replace("t.name", "1"), [ASK], "leaves out tools"),
        (TOOLS.replace("tools or", ""), [ASK], "does not read 'tools'"),
        (TOOLS, [ASK, {"role": "observation", "content": "82"}], "not know the role 'observation' of message 2"),
        ({"rag": TOOLS}, [ASK], "chat templates rag and no default"),
        (None, [ASK], "no chat template"),
    ],
)
def test_tools_calls_and_roles_reach_the_template_or_are_refused(
    template: Any, messages: list[dict[str, Any]], lost: str | None
) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = template
    asked = Rendering({"tools": [{"name": "t"}]})
    if lost is None:
        assert "(f)(g)" in (text := tokenizer.decode(encode_prompt(tokenizer, messages, asked)))
        assert text.startswith("[t]<user>")
    else:
        with pytest.raises(PromptError, match=lost):
            encode_prompt(tokenizer, messages, asked)


def test_templates_may_trim_and_cut_off_thinking() -> None:
    tokenizer = selective("system", "user", "assistant")
    messages = [ASK, {"role": "assistant", "content": "<think>hm</think>"}, {"role": "user", "content": "so?"}]
    text = tokenizer.decode(encode_prompt(tokenizer, messages))
    assert text == "<user>What is 37 + 45?<assistant><user>so?<assistant>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for",
    ],
)
def test_templates_that_fail_are_refused(template: str) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = template
    with pytest.raises(PromptError, match="chat template refuses these messages"):
        encode_prompt(tokenizer, [ASK])


def test_prompts_that_cannot_be_used() -> None:
    plain, chat = tiny_tokenizer(), tiny_tokenizer(chat=True)
    with pytest.raises(PromptError, match="empty"):
        encode_prompt(plain, "")
    with pytest.raises(PromptError, match="no chat template: leave out chat,"):
        encode_prompt(plain, "hi", Rendering(chat=True))
    with pytest.raises(PromptError, match="takes no system message"):
        encode_prompt(chat, "hi", Rendering(chat=False, system="x"))
    answered = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for tokenizer in (plain, chat):
        with pytest.raises(PromptError, match="ends with the assistant's message"):
            encode_prompt(tokenizer, answered)


def test_answers_that_are_empty_or_repeat_themselves_are_warned_of() -> None:
    varied = list(range(40))
    assert answers_warning([varied, [7, 7, 7]]) is None  # three tokens say nothing yet
    assert "of 3 answers 1 are empty" in (answers_warning([varied, [1], [2, 1]], frozenset({1})) or "")
    assert "1 repeat themselves" in (answers_warning([varied, [3, 4] * 20]) or "")
