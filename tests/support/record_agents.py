"""Record what installed agents say, for the unit tests: `python tests/support/record_agents.py`.

Each recording is a session with an answer and a tool call. Long texts and lists are cut, and the
paths of the machine are replaced.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from retinue.agents.link import Json, RawLine, Update
from retinue.agents.process_link import AgentProcess
from support.coding_agents import (
    AGENTS,
    MODULES,
    connect_agent,
    launch_agent,
    read_version,
    run_in_shell,
)
from support.prompted_model import TextStep, prompting

RECORDINGS = Path(__file__).parents[1] / "unit" / "agents" / "recordings"
LONGEST = 120
MOST = 2


async def record(name: str, folder: Path) -> list[Document]:
    entries: list[Document] = []

    class Recorder(AgentProcess):
        def write(self, message: Json) -> None:
            entries.append({"in": message})
            super().write(message)

    def observe(update: Update) -> None:
        if isinstance(update, RawLine):
            entries.append({"out": json.loads(update.data)})

    plans = {"TOKTOOL": [run_in_shell(name, "echo MARK"), TextStep(text="it printed MARK")]}
    with prompting(plans) as model:
        launch = launch_agent(name, model.url, folder)
        link = connect_agent(name, launch, observe, connect=Recorder)
        try:
            await link.open()
            await link.prompt("say hello")
            await link.prompt("use the TOKTOOL")
        finally:
            await link.close()
    return entries


def cut(value: Any, folder: Path) -> Any:
    """Return a JSON value without this machine's paths, long texts and long lists."""
    if isinstance(value, str):
        return value.replace(str(folder), "/agent").replace(str(MODULES), "/modules")[:LONGEST]
    if isinstance(value, list):
        return [cut(each, folder) for each in value[:MOST]]
    if isinstance(value, dict):
        return {key: cut(each, folder) for key, each in value.items()}
    return value


Document = dict[str, Any]


def main() -> None:
    RECORDINGS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or AGENTS:
        with tempfile.TemporaryDirectory(prefix="record-", ignore_cleanup_errors=True) as given:
            folder = Path(given)
            entries = asyncio.run(record(name, folder))
            lines = [json.dumps({"agent": name, "version": read_version(name)})]
            lines += [json.dumps(cut(entry, folder)) for entry in entries]
        (RECORDINGS / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
