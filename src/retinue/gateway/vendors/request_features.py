"""Detection of features in a model request: hosted tools, URLs to fetch, stored state.

A plain request is answered from its content alone. Everything else that a vendor offers in the
same call (a web search, a remote tool server, a URL to fetch, a stored answer) is a named feature.
The tables here and in the vendors' modules are allow-lists of plain parts. Anything unlisted counts
as a feature, so a new vendor feature is refused until the configuration allows it.

The tables here are shared: servers with OpenAI's format often accept other vendors' names too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from retinue.gateway.vendors.base import Document, Features

WEB_SEARCH, WEB_FETCH, MCP = "web_search", "web_fetch", "mcp"
CODE, COMPUTER, FILE_SEARCH = "code_interpreter", "computer_use", "file_search"
IMAGES, URLS, FILES = "image_generation", "urls", "files"
BACKGROUND, STORE, TIER = "background", "store", "service_tier"

# Vendors' names for these features, without the date suffix that some carry.
_SYNONYMS = {
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

_TIERS = {"auto", "default", "standard", "standard_only", "unspecified", "on_demand"}
_MODALITIES = {"text", "audio"}

# Tools that the client runs itself, or that only search among its tools.
_CLIENT_TOOLS = {
    *("function", "custom", "namespace", "local_shell", "apply_patch", "tool_search"),
    *("bash", "text_editor", "memory", "tool_search_tool_regex", "tool_search_tool_bm25"),
}
# Content parts that hold only text, or come from the model.
_TEXT_PARTS = {
    *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"),
    *("thinking", "redacted_thinking", "tool_use", "tool_reference", "compaction"),
    *("search_result", "tool_search_tool_result", "encrypted_content"),
}
_MEDIA_PARTS = {
    *("image", "document", "image_url", "input_image", "input_file", "file", "video_url"),
    *("audio_url", "input_audio", "input_video"),
}
_ADDRESS_KEYS = {"url", "image_url", "file_url", "video_url", "audio_url", "file_uri"}
_FILE_KEYS = {"file_id", "file_ids"}
# Names that determine the meaning of an object. Some servers ignore the case of names.
_TYPE_NAMES = {
    *("type", "tools", "content", "output", "environment", "function", "name", "source", "file"),
    *("text", "input"),
    *_ADDRESS_KEYS,
    *_FILE_KEYS,
}
# Names whose values are text or inline data, never an address.
_TEXT_KEYS = {"text", "title", "context", "content", "filename", "name", "type", "data"}
_FETCHED_KEYS = _ADDRESS_KEYS | _FILE_KEYS
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//|\\\\", re.IGNORECASE)


class UnknownShape(ValueError):
    """The request is not in the vendor's documented format; the message says where."""


def normalize_feature(spelled: str) -> str:
    """Return our name for a vendor's feature."""
    plain = _DATED.sub("", _to_snake_case(spelled))
    plain = _SYNONYMS.get(plain, plain)
    return plain if _NAME.fullmatch(plain) else "unknown"


def scan_parameters(document: Document, plain: Iterable[str]) -> Features:
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
        yield make_feature(name, "the parameter")


def scan_tools(tools: Any) -> Features:
    for tool in check_objects(tools, "tools"):
        kind = tool.get("type") or _detect_tool_type(tool)
        plain = _DATED.sub("", kind) if isinstance(kind, str) else ""
        environment = tool.get("environment")
        # OpenAI's shell tool runs at the client if its environment is local.
        if (
            plain == "shell"
            and isinstance(environment, dict)
            and environment.get("type") == "local"
        ):
            continue
        if plain not in _CLIENT_TOOLS:
            yield make_feature(kind, "the tool")
        if plain == "namespace":
            yield from scan_tools(tool.get("tools"))


def _detect_tool_type(tool: Document) -> str:
    """Return the type of a tool without one: a client's own tool has a name or a function."""
    own = isinstance(tool.get("name"), str) or isinstance(tool.get("function"), dict)
    return "function" if own else next(iter(tool), "unknown")


def scan_content(content: Any, where: str) -> Features:
    if isinstance(content, str):
        return
    for part in check_objects([content] if isinstance(content, dict) else content, where):
        kind = part.get("type")
        # Some servers infer a missing type from the other names.
        if kind is None:
            yield from scan_media(part)
        elif not isinstance(kind, str):
            raise UnknownShape(f"the type of a part of {where}")
        elif kind == "tool_result":
            yield from scan_content(part.get("content"), where)
        elif kind == "server_tool_use":
            name = part.get("name")
            if not (isinstance(name, str) and name.startswith("tool_search_tool")):
                yield make_feature(name, "the tool")
        elif kind in _MEDIA_PARTS:
            yield from scan_media(part)
        elif kind not in _TEXT_PARTS:
            yield make_feature(kind, "the part")
        else:
            # A lenient server might follow an address in a text part.
            yield from scan_media(
                {name: part[name] for name in part if _to_snake_case(name) in _FETCHED_KEYS}
            )


def scan_media(part: Document) -> Features:
    """Yield a feature for each address or stored file; inline data is plain."""
    # A loop instead of recursion: the depth of the document is the child's choice.
    unseen: list[tuple[str, Any]] = list(part.items())
    while unseen:
        key, value = unseen.pop()
        name = _to_snake_case(key)
        if isinstance(value, dict):
            nested = value.get("content")
            if value.get("type") == "content" and not isinstance(nested, str):
                yield from scan_content(nested, "document")
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
    start = value.lstrip()
    if start[:5].lower() == "data:":
        return False
    return name in _ADDRESS_KEYS or not start or _ADDRESS.match(start) is not None


def scan_modalities(wanted: Any) -> Features:
    for each in [] if wanted is None else wanted if isinstance(wanted, list) else [wanted]:
        if not isinstance(each, str) or each.lower() not in _MODALITIES:
            yield IMAGES, f"an answer that is {str(each)[:40]!a}"


def make_feature(spelled: Any, what: str) -> tuple[str, str]:
    text = spelled if isinstance(spelled, str) else "unknown"
    return normalize_feature(text), f"{what} {text[:60]!a}"


def check_objects(value: Any, where: str) -> Iterable[Document]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UnknownShape(where)
    # A name such as "Type" would be skipped here, but read by a server that ignores case.
    for each in value:
        for name in each:
            if name not in _TYPE_NAMES and name.lower() in _TYPE_NAMES:
                raise UnknownShape(f"the name {name[:40]!a}")
    return value


def _normalize_tier(value: str) -> str:
    return value.lower().removeprefix("service_tier_")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_snake_keys(document: Document) -> Document:
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
