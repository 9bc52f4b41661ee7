"""Detection of features in a model request: hosted tools, URLs to fetch, stored state.

A plain request is answered from its content alone. Everything else that a vendor offers in the
same call (a web search, a remote tool server, a URL to fetch, a stored answer) is a named feature.
The tables below are allow-lists of plain parts. Anything unlisted counts as a feature, so a new
vendor feature is refused until the configuration allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from retinue.gateway.providers import ANTHROPIC, GEMINI

WEB_SEARCH, WEB_FETCH, MCP = "web_search", "web_fetch", "mcp"
CODE, COMPUTER, FILE_SEARCH = "code_interpreter", "computer_use", "file_search"
IMAGES, URLS, FILES = "image_generation", "urls", "files"
BACKGROUND, STORE, TIER = "background", "store", "service_tier"

Document = dict[str, Any]

# Vendors' names for these features, without the date suffix that some carry.
_SAME = {
    "web_search_preview": WEB_SEARCH,
    "web_search_options": WEB_SEARCH,
    "web_search_call": WEB_SEARCH,
    "web_search_tool_result": WEB_SEARCH,
    "google_search": WEB_SEARCH,
    "google_search_retrieval": WEB_SEARCH,
    "enterprise_web_search": WEB_SEARCH,
    "search_parameters": WEB_SEARCH,
    "enable_search": WEB_SEARCH,
    "web_fetch_tool_result": WEB_FETCH,
    "url_context": WEB_FETCH,
    "mcp_servers": MCP,
    "mcp_toolset": MCP,
    "mcp_call": MCP,
    "mcp_list_tools": MCP,
    "mcp_approval_request": MCP,
    "mcp_approval_response": MCP,
    "mcp_tool_use": MCP,
    "mcp_tool_result": MCP,
    "container": CODE,
    "code_execution": CODE,
    "code_execution_result": CODE,
    "code_execution_tool_result": CODE,
    "bash_code_execution_tool_result": CODE,
    "text_editor_code_execution_tool_result": CODE,
    "code_interpreter_call": CODE,
    "executable_code": CODE,
    "shell": CODE,
    "computer": COMPUTER,
    "computer_use_preview": COMPUTER,
    "computer_call": COMPUTER,
    "computer_call_output": COMPUTER,
    "file_search_call": FILE_SEARCH,
    "image_generation_call": IMAGES,
    "container_upload": FILES,
    "file_data": URLS,
    "previous_response_id": STORE,
    "conversation": STORE,
    "prompt": STORE,
    "item_reference": STORE,
    "cached_content": STORE,
    "speed": TIER,
}
_DATED = re.compile(r"[_-](?:\d{8}|\d{4}[_-]\d{2}[_-]\d{2})\Z")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")

# Parameters that only concern the model, for each endpoint.
_SAMPLING = {
    *("model", "stream", "stream_options", "temperature", "top_p", "top_k", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
    *("top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "metadata", "user"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity"),
}
_CHAT = _SAMPLING | {
    *(
        "messages",
        "functions",
        "function_call",
        "response_format",
        "reasoning_effort",
        "prediction",
    ),
    *("audio", "reasoning", "include_reasoning", "reasoning_format", "thinking", "think"),
    *("enable_thinking", "chat_template_kwargs", "grammar", "json_schema", "format", "usage"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("cache_prompt", "keep_alive", "suffix", "echo", "encoding_format", "input"),
    # `modalities` has its own check; `prompt` is the text of a completion.
    *("modalities", "prompt"),
}
_RESPONSES = _SAMPLING | {
    *("input", "instructions", "max_tool_calls", "reasoning", "text", "truncation", "include"),
    *("client_metadata", "context_management"),
}
_MESSAGES = {
    *("model", "messages", "system", "metadata", "stop_sequences", "stream", "temperature"),
    *("top_k", "top_p", "tools", "tool_choice", "thinking", "cache_control"),
    *("context_management", "output_config", "output_format", "diagnostics"),
}
_GENERATE = {
    *("model", "contents", "content", "system_instruction", "tools", "tool_config"),
    *("safety_settings", "generation_config", "labels", "requests", "generate_content_request"),
    *("task_type", "title", "output_dimensionality", "embed_content_config"),
}
_TIERS = {"auto", "default", "standard", "standard_only", "unspecified", "on_demand"}
_MODALITIES = {"text", "audio"}

# Tools that the client runs itself, or that only search among its tools.
_OWN_TOOLS = {
    *("function", "custom", "namespace", "local_shell", "apply_patch", "tool_search"),
    *("bash", "text_editor", "memory", "tool_search_tool_regex", "tool_search_tool_bm25"),
}
# Input items of the responses endpoint that the client or the model made.
_ITEMS = {
    *("message", "function_call", "function_call_output", "custom_tool_call"),
    *("custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output", "shell_call", "shell_call_output"),
    *("tool_search_call", "tool_search_output", "reasoning", "compaction", "compaction_summary"),
    *("compaction_trigger", "additional_tools", "agent_message"),
}
# Content parts that hold only text, or come from the model.
_WORDS = {
    *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"),
    *("thinking", "redacted_thinking", "tool_use", "tool_reference", "compaction"),
    *("search_result", "tool_search_tool_result", "encrypted_content"),
}
_MEDIA = {
    *("image", "document", "image_url", "input_image", "input_file", "file", "video_url"),
    *("audio_url", "input_audio", "input_video"),
}
_GEMINI_PARTS = {
    *("text", "inline_data", "function_call", "function_response", "thought"),
    *("thought_signature", "video_metadata", "media_resolution", "part_metadata"),
}
_ADDRESS_KEYS = {"url", "image_url", "file_url", "video_url", "audio_url", "file_uri"}
_FILE_KEYS = {"file_id", "file_ids"}
# Names that determine the meaning of an object. Some servers ignore the case of names.
_DECIDING = {
    *("type", "tools", "content", "output", "environment", "function", "name", "source", "file"),
    *("text", "input"),
    *_ADDRESS_KEYS,
    *_FILE_KEYS,
}
# Names whose values are text or inline data, never an address.
_TEXT_KEYS = {"text", "title", "context", "content", "filename", "name", "type", "data"}
_LEADING = _ADDRESS_KEYS | _FILE_KEYS
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//|\\\\", re.IGNORECASE)


class UnknownShape(ValueError):
    """The request is not in the vendor's documented format; the message says where."""


def find_features(wire: str, path: str, document: Document) -> dict[str, str]:
    """Return the features that a request uses, each with a description for error texts.

    Raises:
        UnknownShape: the request cannot be interpreted.
    """
    if wire == ANTHROPIC:
        found = _scan_messages(document)
    elif wire == GEMINI:
        found = _scan_generate(document)
    elif path.endswith("/responses"):
        found = _scan_responses(document)
    else:
        found = _scan_chat(document)
    used: dict[str, str] = {}
    for name, what in found:
        used.setdefault(name, what)
    return used


def normalize_feature(spelled: str) -> str:
    """Return our name for a vendor's feature."""
    plain = _DATED.sub("", _to_snake_case(spelled))
    plain = _SAME.get(plain, plain)
    return plain if _NAME.fullmatch(plain) else "unknown"


Found = Iterator[tuple[str, str]]


def _scan_chat(document: Document) -> Found:
    yield from _scan_parameters(document, _CHAT)
    yield from _scan_modalities(document.get("modalities"))
    yield from _scan_tools(document.get("tools"))
    for message in _check_objects(document.get("messages"), "messages"):
        yield from _scan_content(message.get("content"), "messages")
    # The input of an embedding: text, token numbers or media.
    inputs = document.get("input")
    for each in inputs if isinstance(inputs, list) else [inputs]:
        if isinstance(each, dict):
            yield from _scan_media(each)


def _scan_responses(document: Document) -> Found:
    yield from _scan_parameters(document, _RESPONSES)
    yield from _scan_tools(document.get("tools"))
    items = document.get("input")
    if isinstance(items, str):
        return
    for item in _check_objects(items, "input"):
        # An item without a type is a message.
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            yield _make_feature(kind, "the item")
        yield from _scan_tools(item.get("tools"))
        output = item.get("output")
        for said in (item.get("content"), output if isinstance(output, list) else None):
            yield from _scan_content(said, "input")


def _scan_messages(document: Document) -> Found:
    yield from _scan_parameters(document, _MESSAGES)
    yield from _scan_tools(document.get("tools"))
    yield from _scan_content(document.get("system"), "system")
    for message in _check_objects(document.get("messages"), "messages"):
        yield from _scan_content(message.get("content"), "messages")


def _scan_generate(document: Document) -> Found:
    document = _to_snake_keys(document)
    yield from _scan_parameters(document, _GENERATE)
    for tool in _check_objects(document.get("tools"), "tools"):
        for name, value in _to_snake_keys(tool).items():
            if value is not None and name != "function_declarations":
                yield _make_feature(name, "the tool")
    config = document.get("generation_config")
    if isinstance(config, dict):
        yield from _scan_modalities(_to_snake_keys(config).get("response_modalities"))
    for name in ("contents", "content", "system_instruction"):
        contents = document.get(name)
        if isinstance(contents, str):
            continue
        for content in _check_objects([contents] if isinstance(contents, dict) else contents, name):
            yield from _scan_parts(content.get("parts"))
    # Batch and token-count requests contain whole requests, which need the same checks.
    inner = document.get("generate_content_request")
    for request in _check_objects(document.get("requests"), "requests"):
        yield from _scan_generate(request)
    for request in _check_objects(None if inner is None else [inner], "generate_content_request"):
        yield from _scan_generate(request)


def _scan_parts(parts: Any) -> Found:
    if isinstance(parts, str):
        return
    for part in _check_objects([parts] if isinstance(parts, dict) else parts, "parts"):
        for name, value in _to_snake_keys(part).items():
            if name not in _GEMINI_PARTS and value is not None:
                yield _make_feature(name, "the part")
            if name == "function_response" and isinstance(value, dict):
                yield from _scan_parts(value.get("parts"))


def _scan_parameters(document: Document, plain: Iterable[str]) -> Found:
    for name, value in document.items():
        # A number can tune a model, but cannot name an address or a tool.
        if name in plain or value is None or _is_number(value):
            continue
        # These parameters are harmless with the value that switches them off.
        if name in (BACKGROUND, STORE) and value is False:
            continue
        if name in (TIER, "speed") and isinstance(value, str) and _normalize_tier(value) in _TIERS:
            continue
        if name == "mcp_servers" and value == []:
            continue
        yield _make_feature(name, "the parameter")


def _scan_tools(tools: Any) -> Found:
    for tool in _check_objects(tools, "tools"):
        kind = tool.get("type") or _detect_tool_type(tool)
        plain = _DATED.sub("", kind) if isinstance(kind, str) else ""
        where = tool.get("environment")
        # OpenAI's shell tool runs at the client if its environment is local.
        if plain == "shell" and isinstance(where, dict) and where.get("type") == "local":
            continue
        if plain not in _OWN_TOOLS:
            yield _make_feature(kind, "the tool")
        if plain == "namespace":
            yield from _scan_tools(tool.get("tools"))


def _detect_tool_type(tool: Document) -> str:
    """Return the type of a tool without one: a client's own tool has a name or a function."""
    own = isinstance(tool.get("name"), str) or isinstance(tool.get("function"), dict)
    return "function" if own else next(iter(tool), "unknown")


def _scan_content(content: Any, where: str) -> Found:
    if isinstance(content, str):
        return
    for part in _check_objects([content] if isinstance(content, dict) else content, where):
        kind = part.get("type")
        # Some servers infer a missing type from the other names.
        if kind is None:
            yield from _scan_media(part)
        elif not isinstance(kind, str):
            raise UnknownShape(f"the type of a part of {where}")
        elif kind == "tool_result":
            yield from _scan_content(part.get("content"), where)
        elif kind == "server_tool_use":
            name = part.get("name")
            if not (isinstance(name, str) and name.startswith("tool_search_tool")):
                yield _make_feature(name, "the tool")
        elif kind in _MEDIA:
            yield from _scan_media(part)
        elif kind not in _WORDS:
            yield _make_feature(kind, "the part")
        else:
            # A lenient server might follow an address in a text part.
            yield from _scan_media(
                {name: part[name] for name in part if _to_snake_case(name) in _LEADING}
            )


def _scan_media(part: Document) -> Found:
    """Yield a feature for each address or stored file; inline data is plain."""
    # A loop instead of recursion: the depth of the document is the child's choice.
    unseen: list[tuple[str, Any]] = list(part.items())
    while unseen:
        key, value = unseen.pop()
        name = _to_snake_case(key)
        if isinstance(value, dict):
            nested = value.get("content")
            if value.get("type") == "content" and not isinstance(nested, str):
                yield from _scan_content(nested, "document")
            unseen += value.items()
        elif isinstance(value, list):
            unseen += [(key, each) for each in value]
        elif not isinstance(value, str) or name in _TEXT_KEYS:
            continue
        elif name in _FILE_KEYS:
            yield FILES, f"a file that is stored at the provider ({name})"
        elif _is_address(name, value):
            yield URLS, f"an address for the provider to fetch ({name})"


def _is_address(name: str, value: str) -> bool:
    # A data URL contains the bytes themselves; there is nothing to fetch.
    begins = value.lstrip()
    if begins[:5].lower() == "data:":
        return False
    return name in _ADDRESS_KEYS or not begins or _ADDRESS.match(begins) is not None


def _scan_modalities(wanted: Any) -> Found:
    for each in [] if wanted is None else wanted if isinstance(wanted, list) else [wanted]:
        if not isinstance(each, str) or each.lower() not in _MODALITIES:
            yield IMAGES, f"an answer that is {str(each)[:40]!a}"


def _make_feature(spelled: Any, what: str) -> tuple[str, str]:
    text = spelled if isinstance(spelled, str) else "unknown"
    return normalize_feature(text), f"{what} {text[:60]!a}"


def _check_objects(value: Any, where: str) -> Iterable[Document]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UnknownShape(where)
    # A name such as "Type" would be skipped here, but read by a server that ignores case.
    for each in value:
        for name in each:
            if name not in _DECIDING and name.lower() in _DECIDING:
                raise UnknownShape(f"the name {name[:40]!a}")
    return value


def _normalize_tier(value: str) -> str:
    return value.lower().removeprefix("service_tier_")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_snake_keys(document: Document) -> Document:
    """Convert names to snake_case; Google accepts both spellings.

    Raises:
        UnknownShape: a name occurs in both spellings, so one value would go unchecked.
    """
    found = {_to_snake_case(name): value for name, value in document.items()}
    if len(found) != len(document):
        raise UnknownShape("one name in two spellings")
    return found


def _to_snake_case(name: str) -> str:
    return _HUMP.sub(lambda found: "_" + found[0].lower(), name).lower().lstrip("_")


_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")
