"""Table of the coding agents that can be subagents: what differs between them, as data.

`launch.py` turns a profile and a request into a command; `claude_link.py`, `codex_link.py` and
`acp_link.py` speak to the program that it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from retinue.core.errors import BadInput

Dialect = Literal["claude", "codex", "acp"]
Wire = Literal["anthropic", "responses", "chat", "gemini"]
ToolControl = Literal["list", "shell", "none"]
WIRES: tuple[Wire, ...] = ("anthropic", "responses", "chat", "gemini")

NO_TOOLS: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, kw_only=True)
class Credential:
    """File that keeps a user's own login with the vendor (`login: own`)."""

    source: str  # relative to the user's home folder
    target: str  # relative to the member's home folder; the program rewrites it, so it is a copy


@dataclass(frozen=True, kw_only=True)
class AgentProfile:
    """One coding agent.

    `tools` says how far a list of allowed tools is enforced by the program itself: `list` (any
    list), `shell` (no tools, or the shell and with it everything), `none` (not at all).
    """

    name: str  # type of its backend in a configuration
    title: str
    dialect: Dialect
    wire: Wire
    aliases: tuple[str, ...] = ()  # as users type it after --agent
    program: str = ""  # looked up on PATH
    packages: tuple[str, ...] = ()  # npm packages that install it
    # Places of the native program, relative to the node_modules folder that holds the package.
    # The npm command is only a script that starts it; {platform} is like linux-x64.
    native: tuple[str, ...] = ()
    tools: ToolControl = "none"
    tool_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ours -> vendor's
    # Paths of a workspace from which the program would run code or read permissions.
    masks: tuple[str, ...] = ()
    needs_masks: bool = False  # a tool list is enforced only while the masks are in force
    resume: Literal["native", "transcript"] = "native"
    steer: Literal["in_turn", "after"] = "after"
    schema: Literal["native", "checked"] = "checked"
    # Where an ACP agent tells the name of a tool: in the call's id or in its first title.
    names_tools_in: Literal["", "id", "title"] = ""
    # Beginnings of messages that the program writes into the model's text itself.
    own_words: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()  # versions that the tests were run with
    credentials: tuple[Credential, ...] = ()
    argv: tuple[str, ...] = ()  # words after the program, of an agent by configuration
    environment: tuple[tuple[str, str], ...] = ()  # its variables, with {base_url} and so on

    @property
    def short_name(self) -> str:
        """Name that users type."""
        return self.aliases[0] if self.aliases else self.name

    def is_tested(self, version: str) -> bool:
        """Return whether this version, or one with the same first two numbers, was tried."""
        known = {tuple(each.split(".")[:2]) for each in self.tested}
        return tuple(version.split(".")[:2]) in known


CLAUDE_CODE = AgentProfile(
    name="claude_code",
    title="Claude Code",
    aliases=("claude",),
    program="claude",
    packages=("@anthropic-ai/claude-code",),
    native=("@anthropic-ai/claude-code-{platform}/claude",),
    dialect="claude",
    wire="anthropic",
    tools="list",
    tool_names={
        "read_file": ("Read",),
        "write_file": ("Write",),
        "edit_file": ("Edit",),
        "list_files": ("Glob",),
        "search_files": ("Grep",),
        "run_command": ("Bash",),
    },
    masks=(".claude", ".mcp.json"),
    steer="in_turn",
    schema="native",
    tested=("2.1.327",),
    credentials=(
        Credential(source=".claude/.credentials.json", target="claude/.credentials.json"),
    ),
)

CODEX = AgentProfile(
    name="codex",
    title="Codex",
    aliases=("codex",),
    program="codex",
    packages=("@openai/codex",),
    native=("@openai/codex-{platform}/vendor/{target}/bin/codex",),
    dialect="codex",
    wire="responses",
    tools="shell",
    tool_names={"run_command": ("exec_command",)},
    masks=(".codex",),
    steer="in_turn",
    schema="native",
    tested=("0.169.0",),
    credentials=(Credential(source=".codex/auth.json", target="codex/auth.json"),),
)

GEMINI_CLI = AgentProfile(
    name="gemini_cli",
    title="Gemini CLI",
    aliases=("gemini",),
    program="gemini",
    packages=("@google/gemini-cli",),
    dialect="acp",
    wire="gemini",
    tools="list",
    tool_names={
        "read_file": ("read_file",),
        "write_file": ("write_file",),
        "edit_file": ("replace",),
        "list_files": ("list_directory", "glob"),
        "search_files": ("grep_search",),
        "run_command": ("run_shell_command",),
    },
    masks=(".gemini",),
    # Loading a session in the minute in which it was written destroys it.
    resume="transcript",
    names_tools_in="id",
    tested=("0.61.0",),
    credentials=(
        Credential(source=".gemini/oauth_creds.json", target=".gemini/oauth_creds.json"),
        Credential(source=".gemini/google_accounts.json", target=".gemini/google_accounts.json"),
    ),
)

OPENCODE = AgentProfile(
    name="opencode",
    title="opencode",
    aliases=("opencode",),
    program="opencode",
    packages=("opencode-ai",),
    native=("opencode-{platform}/bin/opencode",),
    dialect="acp",
    wire="chat",
    tools="list",
    tool_names={
        "read_file": ("read",),
        "write_file": ("edit",),
        "edit_file": ("edit",),
        "list_files": ("list", "glob"),
        "search_files": ("grep",),
        "run_command": ("bash",),
    },
    masks=(".opencode", "opencode.json", "opencode.jsonc"),
    needs_masks=True,  # it runs the plugins of a workspace, whatever its options say
    steer="in_turn",
    names_tools_in="title",
    tested=("1.18.33",),
    credentials=(
        Credential(source=".local/share/opencode/auth.json", target="data/opencode/auth.json"),
    ),
)

GOOSE = AgentProfile(
    name="goose",
    title="Goose",
    aliases=("goose",),
    program="goose",
    packages=("@aaif/goose-acp",),
    native=("@aaif/goose-binary-{platform}/bin/goose",),
    dialect="acp",
    wire="chat",
    tested=("1.50.0",),
    credentials=(
        Credential(source=".config/goose/config.yaml", target="config/goose/config.yaml"),
        Credential(source=".config/goose/secrets.yaml", target="config/goose/secrets.yaml"),
    ),
)

COPILOT = AgentProfile(
    name="copilot",
    title="Copilot CLI",
    aliases=("copilot",),
    program="copilot",
    packages=("@github/copilot",),
    native=("@github/copilot-{platform}/copilot",),
    dialect="acp",
    wire="chat",
    # It runs the hooks of a workspace, whatever its settings say.
    masks=(".github/hooks", ".github/copilot"),
    own_words=("Info: Disabled tools: ", "Info: Unknown tool name"),
    tested=("1.0.102",),
    credentials=(Credential(source=".copilot/config.json", target="copilot/config.json"),),
)

PROFILES: tuple[AgentProfile, ...] = (CLAUDE_CODE, CODEX, GEMINI_CLI, OPENCODE, GOOSE, COPILOT)
_BY_NAME = {name: each for each in PROFILES for name in (each.name, *each.aliases)}


def find_profile(name: str) -> AgentProfile | None:
    """Return the profile with this backend type or alias; None if there is none."""
    return _BY_NAME.get(name)


def make_acp_profile(
    *,
    name: str,
    argv: Iterable[str],
    wire: str,
    environment: Mapping[str, str] | None = None,
    masks: Iterable[str] = (),
) -> AgentProfile:
    """Return the profile of an agent that is not in the table and speaks ACP.

    In `argv` after its first word and in the values of `environment`, `{base_url}`, `{token}`,
    `{model}`, `{home}` and `{cwd}` are filled in when it is started.

    Raises:
        BadInput: there is no program, or the wire is unknown.
    """
    words = tuple(argv)
    if not words or not words[0]:
        raise BadInput(
            f"the agent {name[:40]} has no program",
            hint="set argv to the program and the words that make it speak ACP",
        )
    if wire not in WIRES:
        raise BadInput(
            f"the agent {name[:40]} has the unknown wire {wire[:40]!a}",
            hint=f"set wire to one of {', '.join(WIRES)}",
        )
    known: Wire = next(each for each in WIRES if each == wire)
    return AgentProfile(
        name=name,
        title=name,
        program=words[0],
        dialect="acp",
        wire=known,
        argv=words[1:],
        environment=tuple((environment or {}).items()),
        masks=tuple(masks),
    )
