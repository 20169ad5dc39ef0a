# SPDX-License-Identifier: Apache-2.0
"""The chats that the engines themselves are asked about, besides those of
../templates/chats.json: what the engines read in ways of their own, and images."""

import base64
import struct
import zlib


def png(width, height, shade=0):
    """A black or white picture as a data URI."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    row = b"\0" + bytes([shade]) * ((width + 7) // 8)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def text(t):
    return {"type": "text", "text": t}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def call(arguments, id="123456789", name="get_weather"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


WEATHER = tool("get_weather", description="The weather <now> & \"here\"", parameters={
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})

ASKED = [message("system", "Be brief."), message("user", "Is it raining in Brest?")]
CALLED = [*ASKED, message("assistant", None, tool_calls=[call('{"days": 1.0, "city": "Brest"}')]),
          message("tool", "It is.", tool_call_id="123456789")]

TEXT = {
    "tool": {"messages": ASKED, "tools": [WEATHER]},
    "tool_order": {"messages": ASKED, "tools": [{"function": {
        "parameters": {"b": 1, "a": [True, None]}, "strict": True, "name": "f", "other": 2}, "type": "function", "more": 3}]},
    "tool_bare": {"messages": ASKED, "tools": [tool("f")]},
    "tool_none": {"messages": ASKED, "tools": [WEATHER], "tool_choice": "none"},
    "tool_named": {"messages": ASKED, "tools": [WEATHER, tool("f")], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    "tool_strict": {"messages": ASKED, "tools": [tool("f", strict=False)]},
    "called": {"messages": CALLED, "tools": [WEATHER]},
    "called_without_tools": {"messages": CALLED},
    "called_twice": {"messages": [*ASKED, message("assistant", "I look.", tool_calls=[
        call('{"city":"Brest"}'), call("{}", "abcdefghi", "f")]), message("tool", "b", tool_call_id="abcdefghi"),
        message("tool", [text("a"), text("c")], tool_call_id="123456789"), message("user", "So?")], "tools": [WEATHER]},
    "called_empty": {"messages": [*ASKED, message("assistant", "", tool_calls=[call("")]), message("tool", "x", tool_call_id="123456789")]},
    "called_broken": {"messages": [*ASKED, message("assistant", "", tool_calls=[call("{")]), message("tool", "x", tool_call_id="123456789")]},
    "called_list": {"messages": [*ASKED, message("assistant", "", tool_calls=[call("[1]")]), message("tool", "x", tool_call_id="123456789")]},
    "no_calls": {"messages": [message("user", "a"), message("assistant", "b", tool_calls=[]), message("user", "c")]},
    "parts_two": {"messages": [message("user", [text("a"), text("b\n"), text("")]), message("assistant", [text("c")]), message("user", [text("d")])]},
    "part_input": {"messages": [message("user", [{"type": "input_text", "text": "a"}])]},
    "part_string": {"messages": [message("user", ["a", "b"])]},
    "names": {"messages": [message("user", "a", name="Ann"), message("assistant", "b", name="Bob"), message("user", "c")]},
    "reasoned": {"messages": [message("user", "a"), message("assistant", "b", reasoning="because"), message("user", "c")]},
    "reasoned_content": {"messages": [message("user", "a"), message("assistant", "b", reasoning_content="because")], "add_generation_prompt": False},
    "reasoned_open": {"messages": [*CALLED[:2], message("assistant", None, reasoning_content="look", tool_calls=CALLED[2]["tool_calls"]), CALLED[3]]},
    "effort_low": {"messages": ASKED, "reasoning_effort": "low"},
    "effort_none": {"messages": ASKED, "reasoning_effort": "none"},
    "effort_both": {"messages": ASKED, "reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False}},
    "thinking": {"messages": ASKED, "chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
    "prompt_twice": {"messages": ASKED, "chat_template_kwargs": {"add_generation_prompt": False}},
    "answered": {"messages": [message("user", "a"), message("assistant", "b")]},
    "answered_no_prompt": {"messages": [message("user", "a"), message("assistant", "b")], "add_generation_prompt": False},
    "going_on": {"messages": [message("user", "a"), message("assistant", "The sky ")], "add_generation_prompt": False, "continue_final_message": True},
    "going_on_user": {"messages": [message("user", "The sky ")], "add_generation_prompt": False, "continue_final_message": True},
    "going_on_parts": {"messages": [message("user", "a"), message("assistant", [text("The "), text("sky")])],
                       "add_generation_prompt": False, "continue_final_message": True},
    "special": {"messages": [message("user", "a")], "add_special_tokens": True},
    "documents": {"messages": [message("user", "a")], "documents": [{"title": "t", "text": "x"}]},
    "role_case": {"messages": [message("System", "a"), message("user", "b")]},
    "role_developer": {"messages": [message("developer", "a"), message("user", "b")]},
    "role_developer_later": {"messages": [message("system", [text("a"), text("b")]), message("user", "c"), message("developer", "d"),
                                          message("user", "e")]},
    "billing": {"messages": [message("system", "x-anthropic-billing-header: a\nBe brief."), message("user", "b")]},
    "billing_parts": {"messages": [message("system", [text("x-anthropic-billing-header: a"), text("Be brief.")]), message("user", "b")]},
    "role_function": {"messages": [message("user", "a"), message("function", "b", name="f"), message("user", "c")]},
    "role_other": {"messages": [message("critic", "a"), message("user", "b")]},
    "null": {"messages": [message("system", None), message("user", "b")]},
    "no_content": {"messages": [message("user", "a"), {"role": "assistant"}, message("user", "b")]},
    "refusal": {"messages": [message("user", "a"), message("assistant", [{"type": "refusal", "refusal": "no"}]), message("user", "b")]},
}

IMAGES = {
    "image": {"messages": [message("user", [text("What is "), image(png(640, 480)), text(" this?")])]},
    "image_first": {"messages": [message("user", [image(png(28, 28)), text("\nWhat?")])]},
    "image_wide": {"messages": [message("user", [text("a\n\n"), image(png(2000, 30))])]},
    "image_large": {"messages": [message("user", [image(png(5000, 4000)), text("\n\nb")])]},
    "image_tiny": {"messages": [message("user", [text("a"), image(png(3, 5))])]},
    "image_turns": {"messages": [
        message("system", "Be brief."), message("user", [image(png(300, 200)), image(png(300, 200, 255)), text("Which?")]),
        message("assistant", "The white one."), message("user", [text("And "), image(png(123, 457))])]},
    "image_of_tool": {"messages": [*ASKED, message("assistant", None, tool_calls=[call('{"city":"Brest"}')]),
                                   message("tool", [text("see"), image(png(100, 60))], tool_call_id="123456789")]},
    "image_string": {"messages": [message("user", [{"type": "image_url", "image_url": png(64, 64)}, text("x")])]},
    "image_detail": {"messages": [message("user", [{"type": "image_url", "image_url": {"url": png(64, 65), "detail": "low"}}])]},
    "image_input": {"messages": [message("user", [{"type": "input_image", "image_url": png(64, 66)}])]},
    "image_too_wide": {"messages": [message("user", [text("a"), image(png(3000, 4))])]},
    "image_and_mark": {"messages": [message("user", [text("<|image_pad|> and "), image(png(64, 64))])]},
    "image_after_lines": {"messages": [message("user", [text("a\n"), image(png(64, 64)), text("\nb"), image(png(64, 64)), text("\n\nc")])]},
    "image_alone": {"messages": [message("user", [image(png(64, 64))]), message("assistant", "\n"), message("user", [image(png(64, 64)), image(png(64, 64))])]},
    "mark_only": {"messages": [message("user", [text("<|image_pad|> and no more")])]},
}
