"""Compile a profile and a request into the command that starts a coding agent.

Pure: nothing is read, written or started here. The result is isolated from the user's own
configuration and from everything in the workspace that the program would run by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.agents.profiles import AgentProfile, find_profile
from retinue.core.errors import BadInput

SERVER = "retinue"  # name of our tool server, as the agents see it


@dataclass(frozen=True, kw_only=True)
class ToolServerAddress:
    """MCP server with the tools of the team, over HTTP on the child's loopback."""

    url: str
    token: str


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What is asked of an agent, in Retinue's terms.

    `base_url` has the form of the variable that the vendor's SDK reads: ANTHROPIC_BASE_URL and
    GOOGLE_GEMINI_BASE_URL have no version, OPENAI_BASE_URL ends in /v1.
    """

    program: tuple[str, ...]  # the native program, or node and the script
    model: str  # empty: the agent's own default
    home: str  # folder of the member's own, kept for `continue`
    cwd: str
    base_url: str = ""
    token: str = ""
    tools: tuple[str, ...] | None = None  # Retinue's names; None: all
    role: str = ""  # appended to the agent's own system prompt
    tool_server: ToolServerAddress | None = None
    native_tools: bool = False  # the vendor's own subagents, web access and schedules
    login: Literal["gateway", "own"] = "gateway"
    turns: int = 0  # 0: no limit but the gateway's
    access: Literal["read", "write"] = "write"
    path: str = "/usr/local/bin:/usr/bin:/bin"  # PATH of the child
    temporary: str = "/tmp"  # caches that need not be kept
    # Folder of its own, in memory, that ends with the child; empty: there is none.
    memory: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentLaunch:
    """How to start an agent. `files` and `folders` have to exist before."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete: nothing of the caller's is inherited
    files: Mapping[str, str] = field(default_factory=dict)  # absolute path -> text, mode 0600
    folders: tuple[str, ...] = ()  # absolute
    masks: tuple[str, ...] = ()  # paths relative to the workspace that have to be hidden
    cwd: str = ""
    tool_server: ToolServerAddress | None = None  # for dialects that name it in the conversation


def build_launch(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    """Return how to start this agent.

    Raises:
        BadInput: `tools_not_enforced`, as `check_tools` says.
    """
    check_tools(profile, request.tools)
    # By the profile, not its name: a user may call an ACP agent "codex".
    known = find_profile(profile.name) is profile
    compile_agent = (
        _COMPILERS.get(profile.name, _compile_configured) if known else _compile_configured
    )
    launch = compile_agent(profile, request)
    # Complete, so that nothing of the steward's or the team's environment reaches the agent.
    common = {
        "PATH": request.path,
        "HOME": request.home,
        "TMPDIR": request.temporary,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
    return AgentLaunch(
        argv=launch.argv,
        environment=common | dict(launch.environment),
        files=launch.files,
        folders=(request.home, *launch.folders),
        masks=profile.masks,
        cwd=request.cwd,
        tool_server=request.tool_server,
    )


def check_tools(
    profile: AgentProfile,
    tools: Sequence[str] | None,
    *,
    served: Collection[str] = (),
    masked: bool = True,
) -> None:
    """Refuse a list of allowed tools that the agent's program would not enforce.

    Args:
        served: tools that our tool server offers to the agent; it enforces these itself.
        masked: whether the profile's masks are in force.

    Raises:
        BadInput: `tools_not_enforced`; the hint says what can be enforced.
    """
    if tools is None:
        return
    asked = [tool for tool in tools if tool not in served]
    named = f"tools, such as {asked[0][:40]}" if asked else "having no tools"
    if profile.tools == "none":
        raise _refuse_tools(
            f"{profile.title} cannot be held to {named}",
            "leave the tools out, or choose an agent that can be: claude, gemini, opencode",
        )
    if profile.needs_masks and not masked:
        raise _refuse_tools(
            f"{profile.title} cannot be held to {named}: plugins in its workspace would run",
            f"run it isolated, so that {', '.join(profile.masks)} can be hidden",
        )
    if profile.tools == "shell":
        if asked and "run_command" not in asked:
            raise _refuse_tools(
                f"{profile.title} cannot be held to {named}: it has a shell or nothing",
                "grant run_command, which brings all its tools, or no tools at all",
            )
        return
    for tool in asked:
        if tool not in profile.tool_names:
            raise _refuse_tools(
                f"{profile.title} has no tool for {tool[:40]}",
                f"it can be granted {', '.join(profile.tool_names)}",
            )
    granted = vendor_tools(profile, asked) or frozenset()
    for tool, own in profile.tool_names.items():
        # Two of our tools may be one of the vendor's: it grants both or neither.
        if tool not in asked and granted.issuperset(own):
            given = next(each for each in asked if set(own) & set(profile.tool_names[each]))
            raise _refuse_tools(
                f"{profile.title} cannot grant {given} without {tool}", f"grant {tool}, too"
            )


def vendor_tools(profile: AgentProfile, tools: Sequence[str] | None) -> frozenset[str] | None:
    """Return the vendor's names of the granted tools; None if everything is granted."""
    if tools is None or (profile.tools == "shell" and "run_command" in tools):
        return None
    return frozenset(own for tool in tools for own in profile.tool_names.get(tool, ()))


def _refuse_tools(message: str, hint: str) -> BadInput:
    return BadInput(message, code="tools_not_enforced", hint=hint)


def _compile_claude(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    words = [
        *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
        *("--include-partial-messages", "--replay-user-messages"),
        *("--permission-prompt-tool", "stdio"),
        # No MCP servers and no settings except ours: both can name programs to run.
        *("--strict-mcp-config", "--setting-sources="),
    ]
    files = {}
    own = vendor_tools(profile, request.tools)
    if own is not None:
        names = ",".join(sorted(own))
        allowed = ",".join([*sorted(own), *([f"mcp__{SERVER}"] if request.tool_server else [])])
        words += [f"--tools={names}", f"--allowedTools={allowed}"]
    else:
        words += ["--permission-mode", "bypassPermissions"]
        if not request.native_tools:
            words += [f"--tools={','.join(_CLAUDE_USUAL)}"]
    if not request.native_tools:
        words += ["--disable-slash-commands"]
    if request.model:
        words += ["--model", request.model]
    if request.role:
        words += ["--append-system-prompt", request.role]
    if request.turns:
        words += ["--max-turns", str(request.turns)]
    if (server := request.tool_server) is not None:
        headers = {"Authorization": f"Bearer {server.token}"}
        entry = {"type": "http", "url": server.url, "headers": headers}
        # In a file: every process of the child can read the words of a command.
        servers = f"{request.home}/claude-servers.json"
        files[servers] = json.dumps({"mcpServers": {SERVER: entry}})
        words += ["--mcp-config", servers]
    environment = {
        "CLAUDE_CONFIG_DIR": f"{request.home}/claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",  # else it retries a refused key for minutes
        "MCP_CONNECTION_NONBLOCKING": "0",  # the first turn waits for our tools
        "ENABLE_TOOL_SEARCH": "false",  # all tools are offered at once
        "IS_SANDBOX": "1",  # else it refuses all tools to uid 0
    }
    if request.login == "gateway":
        environment |= {
            "ANTHROPIC_BASE_URL": request.base_url,
            "ANTHROPIC_API_KEY": request.token,
        }
    return AgentLaunch(
        argv=(*request.program, *words),
        environment=environment,
        files=files,
        folders=(f"{request.home}/claude",),
    )


def _compile_codex(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    settings: dict[str, str] = {
        # Its own sandbox needs namespaces, which a child may not create; ours is in force.
        "sandbox_mode": _toml("danger-full-access"),
        "approval_policy": _toml("never"),
        "approvals_reviewer": _toml("user"),  # else a second model is asked
        # Without these two it waits 5 s for names that a child cannot resolve.
        "features.plugins": "false",
        "analytics.enabled": "false",
        "features.apps": "false",
        "features.hooks": "false",
        # It runs a login shell at the start to keep the user's settings; this one has none.
        "features.shell_snapshot": "false",
        "check_for_update_on_startup": "false",
        # The workspace's own configuration could start MCP servers.
        "projects": f"{{{_toml(request.cwd)}={{trust_level={_toml('untrusted')}}}}}",
    }
    if not request.native_tools:
        settings |= {
            "web_search": _toml("disabled"),
            "features.multi_agent": "false",
            "features.goals": "false",
            "features.image_generation": "false",
        }
    if vendor_tools(profile, request.tools) is not None:
        settings |= {"features.shell_tool": "false", "features.unified_exec": "false"}
    if request.model:
        settings["model"] = _toml(request.model)
    if request.role:
        settings["developer_instructions"] = _toml(request.role)
    environment = {"CODEX_HOME": f"{request.home}/codex"}
    folders = [f"{request.home}/codex"]
    if request.memory:
        # Indexes only: conversations are files of its home. On a disk, creating them takes
        # longer than all the rest of its start.
        environment["CODEX_SQLITE_HOME"] = f"{request.memory}/codex"
        folders.append(environment["CODEX_SQLITE_HOME"])
    if request.login == "gateway":
        provider = {
            "name": _toml(SERVER),
            "base_url": _toml(request.base_url),
            "wire_api": _toml("responses"),
            "env_key": _toml("RETINUE_TOKEN"),
            "request_max_retries": "0",
            "stream_max_retries": "0",
        }
        settings["model_provider"] = _toml(SERVER)
        settings[f"model_providers.{SERVER}"] = _toml_table(provider)
        environment["RETINUE_TOKEN"] = request.token
    if (server := request.tool_server) is not None:
        entry = {
            "url": _toml(server.url),
            "bearer_token_env_var": _toml("RETINUE_TOOLS_TOKEN"),
            "required": "true",
            "default_tools_approval_mode": _toml("approve"),
        }
        settings[f"mcp_servers.{SERVER}"] = _toml_table(entry)
        environment["RETINUE_TOOLS_TOKEN"] = server.token
    words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    return AgentLaunch(
        argv=(*request.program, "app-server", *words),
        environment=environment,
        folders=tuple(folders),
    )


def _compile_gemini(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    # --skip-trust as an option keeps hooks and servers of the workspace from starting; the
    # variable of the same purpose lets them.
    words = ["--acp", "--skip-trust", "-e", "none"]
    if request.model:
        words += ["-m", request.model]
    folder = f"{request.home}/.gemini"
    own_login = request.login == "own"
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "oauth-personal" if own_login else "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    if request.turns:
        settings["model"] = {"maxSessionTurns": request.turns}
    files = {f"{folder}/settings.json": json.dumps(settings)}
    own = vendor_tools(profile, request.tools)
    rules = []
    if own is not None:
        rules += [_gemini_rule("*", "deny", 100)]
        rules += [_gemini_rule(name, "allow", 200) for name in sorted(own)]
    else:
        rules += [_gemini_rule("*", "allow", 100)]
        if not request.native_tools:
            rules += [_gemini_rule(name, "deny", 300) for name in _GEMINI_NATIVE]
    if request.tool_server is not None:
        rules += [_gemini_rule(f"mcp_{SERVER}_*", "allow", 200)]
    # An administrator's policy has precedence over every other, a workspace's included.
    policy = f"{request.home}/policy.toml"
    files[policy] = "\n".join(rules)
    words += ["--admin-policy", policy]
    if request.role:
        files[f"{folder}/GEMINI.md"] = request.role
    environment = {
        "GEMINI_CLI_HOME": request.home,
        "GEMINI_CLI_NO_RELAUNCH": "1",  # one process instead of two
    }
    if not own_login:
        environment |= {
            "GOOGLE_GEMINI_BASE_URL": request.base_url,
            "GEMINI_API_KEY": request.token,
        }
    return AgentLaunch(
        argv=(*request.program, *words),
        environment=environment,
        files=files,
        folders=(folder,),
    )


def _compile_opencode(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    content: dict[str, Any] = {
        "share": "disabled",
        "autoupdate": False,
        "agent": {"title": {"disable": True}},  # else one more request for a title
    }
    environment = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
        **_make_xdg_variables(request),
    }
    settings = f"{request.home}/config/opencode"
    # It installs this package from npm for plugins, of which it has none, unless a lock file says
    # that it is there.
    needs = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    files = {f"{settings}/package-lock.json": json.dumps(needs)}
    model = request.model
    if request.login == "gateway":
        environment["OPENCODE_DISABLE_DEFAULT_PLUGINS"] = "1"  # ways to log in with vendors
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": request.base_url, "apiKey": "{env:RETINUE_TOKEN}"},
            "models": {request.model: {"tool_call": True}},
        }
        content["provider"] = {SERVER: provider}
        environment["RETINUE_TOKEN"] = request.token
        model = f"{SERVER}/{request.model}"
    if model:
        content |= {"model": model, "small_model": model}
    own = vendor_tools(profile, request.tools)
    if own is not None:
        content["permission"] = {"*": "deny", **dict.fromkeys(sorted(own), "allow")}
        if request.tool_server is not None:
            content["permission"][f"{SERVER}_*"] = "allow"
    else:
        content["permission"] = {"*": "allow"}
        if not request.native_tools:
            content["permission"] |= dict.fromkeys(_OPENCODE_NATIVE, "deny")
    if request.role:
        role = f"{request.home}/role.md"
        files[role] = request.role
        content["instructions"] = [role]
    environment["OPENCODE_CONFIG_CONTENT"] = json.dumps(content)
    return AgentLaunch(
        argv=(*request.program, "--pure", "acp"),
        environment=environment,
        files=files,
        folders=(f"{settings}/node_modules",),
    )


def _compile_goose(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    environment = {
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_MODE": "auto",
        "GOOSE_TELEMETRY_ENABLED": "false",
        "GOOSE_TELEMETRY_OFF": "1",
        "GOOSE_DISABLE_SESSION_NAMING": "true",  # else one more request for a title
        "GOOSE_PROVIDER_SKIP_BACKOFF": "true",  # the gateway waits where that helps
        **_make_xdg_variables(request),
    }
    folder = f"{request.home}/config/goose"
    files = {}
    if not request.native_tools:
        # Enabled unless they are named here: subagents, apps, changes to its own extensions.
        disabled = {name: {"type": "platform", "enabled": False} for name in _GOOSE_NATIVE}
        files[f"{folder}/config.yaml"] = json.dumps({"extensions": disabled})
    if request.role:
        files[f"{folder}/.goosehints"] = request.role
    if request.model:
        environment["GOOSE_MODEL"] = request.model
    if request.turns:
        environment["GOOSE_MAX_TURNS"] = str(request.turns)
    if request.login == "gateway":
        environment |= {
            "GOOSE_PROVIDER": "openai",
            "OPENAI_HOST": request.base_url,
            # Any path but its default: with that, it speaks another wire to some models.
            "OPENAI_BASE_PATH": "chat/completions",
            "OPENAI_API_KEY": request.token,
        }
    return AgentLaunch(
        argv=(*request.program, "acp", "--with-builtin", "developer"),
        environment=environment,
        files=files,
    )


def _compile_copilot(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    words = ["--acp", "--allow-all-tools", "--disable-builtin-mcps", "--disable-client-telemetry"]
    if not request.native_tools:
        words += [f"--excluded-tools={','.join(_COPILOT_NATIVE)}"]
    home = f"{request.home}/copilot"
    environment = {
        "COPILOT_HOME": home,
        "COPILOT_AUTO_UPDATE": "false",
        # It unpacks 240 MB there.
        "XDG_CACHE_HOME": f"{request.temporary}/copilot-cache",
    }
    # For hooks of the user; those of the workspace run in spite of it and are masked.
    settings = {"disableAllHooks": True, "autoUpdate": False}
    files = {f"{home}/settings.json": json.dumps(settings)}
    if request.role:
        files[f"{home}/copilot-instructions.md"] = request.role
    if request.model:
        environment["COPILOT_MODEL"] = request.model
    if request.login == "gateway":
        environment |= {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": request.base_url,
            "COPILOT_PROVIDER_API_KEY": request.token,
        }
    return AgentLaunch(
        argv=(*request.program, *words), environment=environment, files=files, folders=(home,)
    )


def _compile_configured(profile: AgentProfile, request: LaunchRequest) -> AgentLaunch:
    values = {
        "base_url": request.base_url,
        "token": request.token,
        "model": request.model,
        "home": request.home,
        "cwd": request.cwd,
    }

    def fill_in(text: str) -> str:
        # One pass, so that a value which looks like a name is not filled in again.
        return _PLACEHOLDER.sub(lambda found: values[found.group(1)], text)

    return AgentLaunch(
        argv=(*request.program, *map(fill_in, profile.argv)),
        environment=_make_xdg_variables(request)
        | {name: fill_in(value) for name, value in profile.environment},
    )


def _make_xdg_variables(request: LaunchRequest) -> dict[str, str]:
    return {
        "XDG_DATA_HOME": f"{request.home}/data",
        "XDG_STATE_HOME": f"{request.home}/state",
        "XDG_CONFIG_HOME": f"{request.home}/config",
        "XDG_CACHE_HOME": f"{request.home}/cache",
    }


def _gemini_rule(tool: str, decision: str, priority: int) -> str:
    return f'[[rule]]\ntoolName = "{tool}"\ndecision = "{decision}"\npriority = {priority}\n'


def _toml(text: str) -> str:
    """Return a TOML string: JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_table(entries: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{key}={value}" for key, value in entries.items()) + "}"


_PLACEHOLDER = re.compile(r"\{(base_url|token|model|home|cwd)\}")
# Beside these it has subagents, web access, schedules and messages to other sessions.
_CLAUDE_USUAL = ("Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "TaskStop", "Write")
_GEMINI_NATIVE = (
    "google_web_search",
    "web_fetch",
    "save_memory",
    "ask_user",
    "invoke_agent",
    "enter_plan_mode",
    "exit_plan_mode",
)
_OPENCODE_NATIVE = ("task", "webfetch", "websearch", "codesearch", "question", "skill")
_GOOSE_NATIVE = ("apps", "chatrecall", "extensionmanager", "orchestrator", "skills", "summon")
_COPILOT_NATIVE = (
    *("task", "list_agents", "read_agent", "write_agent", "web_fetch"),
    *("ask_user", "fetch_copilot_cli_documentation"),
)
_COMPILERS: Mapping[str, Callable[[AgentProfile, LaunchRequest], AgentLaunch]] = {
    "claude_code": _compile_claude,
    "codex": _compile_codex,
    "gemini_cli": _compile_gemini,
    "opencode": _compile_opencode,
    "goose": _compile_goose,
    "copilot": _compile_copilot,
}
