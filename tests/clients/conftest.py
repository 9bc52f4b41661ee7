"""After the tests: figures, which versions of the agents ran, and what failed with each."""

from __future__ import annotations

import pytest

from support.coding_agents import AGENTS, find_agent, read_version


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _show_figures(terminalreporter)
    failed = [
        report.nodeid.partition("::")[2]
        for kind in ("failed", "error")
        for report in terminalreporter.stats.get(kind, [])
    ]
    terminalreporter.section("versions")
    told: set[str] = set()
    for name in AGENTS:
        try:
            version = read_version(name)
        except (OSError, KeyError, ValueError):
            version = ""
        is_tested = version and find_agent(name).is_tested(version)
        known = "tested" if is_tested else "new" if version else "not installed"
        own = [each for each in failed if name in each.partition("[")[2]]
        told |= set(own)
        failures = f"{len(own)} failed" if own else "nothing failed"
        terminalreporter.write_line(f"{name} {version} ({known}): {failures}".replace("  ", " "))
        for each in own:
            terminalreporter.write_line(f"  {each}")
    for each in failed:
        if each not in told:
            terminalreporter.write_line(f"not of one agent: {each}")


def _show_figures(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests recorded as properties, one row for each agent."""
    rows: dict[str, dict[str, str]] = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, []):
            found = {name: str(value) for name, value in report.user_properties}
            if "agent" in found:
                rows.setdefault(found["agent"], {}).update(found)
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    terminalreporter.section("figures: medians, with a model that answers at once")
    table = [columns, *([row.get(name, "-") for name in columns] for row in rows.values())]
    widths = [max(len(row[at]) for row in table) for at in range(len(columns))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
