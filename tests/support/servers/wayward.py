"""An MCP server that does by turns all that one should not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TAKES = {"type": "object", "properties": {"what": {"type": "string"}}}
PAGES = [
    [
        *("crash", "die", "die_oddly", "hang", "huge", "long", "garbage", "picture"),
        *("depth", "nothing", "asks", "odd name!", "odd name?", "twice", "twice"),
        *("x" * 100, "leave"),
    ],
    ["later"],
]


def say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(number: Any, result: Any) -> None:
    say({"jsonrpc": "2.0", "id": number, "result": result})


def text(number: Any, words: str) -> None:
    answer(number, {"content": [{"type": "text", "text": words}]})


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels else {}


def call(number: Any, name: str) -> None:
    match name:
        case "crash":
            sys.exit("out of cheese")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die_oddly":
            os.kill(os.getpid(), 40)  # a signal without a name
        case "hang":
            time.sleep(600)
        case "huge":
            text(number, "y" * (9 << 20))
        case "long":
            text(number, "z" * 100_000)
        case "garbage":
            sys.stdout.write("this is no message\n[1, 2]\n")
            sys.stdout.flush()
        case "picture":
            picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
            answer(number, {"content": [picture]})
        case "depth":
            answer(number, {"structuredContent": nested(500)})
        case "nothing":
            answer(number, "not an object")
        case "asks":
            say({"jsonrpc": "2.0", "id": "mine", "method": "sampling/createMessage", "params": {}})
            heard = json.loads(sys.stdin.readline())
            text(number, f"told {heard['error']['code']}")
        case "leave":
            sleep = [sys.executable, "-c", "import time; time.sleep(600)", *sys.argv[1:]]
            subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
            text(number, "something is left")
        case _:
            text(number, f"did {name}")


def main() -> None:
    with Path("starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if "mute" in sys.argv:
        time.sleep(600)
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params") or {}
        match message["method"]:
            case "initialize":
                about = {"name": "wayward", "version": "1"}
                answer(number, {"protocolVersion": "2024-11-05", "serverInfo": about})
            case "tools/list":
                page = int(params.get("cursor", 0))
                tools: list[Any] = [{"name": each, "inputSchema": TAKES} for each in PAGES[page]]
                if page:
                    tools += [{"name": "bad", "inputSchema": 7}, 8]
                    tools += [{"name": "deep", "inputSchema": nested(500)}]
                more = {"nextCursor": str(page + 1)} if page + 1 < len(PAGES) else {}
                answer(number, {"tools": tools} | more)
            case "tools/call":
                call(number, params["name"])
    if "stubborn" in sys.argv:
        time.sleep(600)


if __name__ == "__main__":
    main()
