"""Every key of a configuration is documented, with the default that is in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from architecture.source import TOP
from retinue.core.task_config import Limits, TaskConfig
from retinue.formats.schemas.config_schema import Config, TaskSection

PAGE = TOP / "docs" / "reference" / "configuration.md"
TASK = "`config` in `task.yaml`"


def models(model: type[BaseModel], place: str = "The file") -> Iterator[tuple[str, Any]]:
    """Each model below one, once, with the heading that it is documented under."""
    yield place, model
    for name, field in model.model_fields.items():
        inner, many = nested(field.annotation)
        if inner is not None:
            above = "" if place == "The file" else f"{place.strip('`')}."
            yield from models(inner, f"`{above}{name}{'[]' if many else ''}`")


def nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for each in get_args(annotation):
        inner, _ = nested(each)
        if inner is not None:
            return inner, True
    return None, False


def once() -> dict[str, type[BaseModel]]:
    """Without those that are a part of another list's members: told in words there."""
    repeated = ("subagent_agents[]", "subagent_orchestrator.agents[]")
    return {
        place: model
        for place, model in models(Config)
        if not any(each in place for each in repeated)
    }


def rows(heading: str) -> dict[str, str]:
    """Key and default of each row below a heading."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"\n## {heading}\n" in text, f"there is no heading {heading}"
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert all(meaning.strip() for _, _, meaning in cells)
    return {key.strip().strip("`"): default.strip() for key, default, _ in cells}


def written(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "below"
    if default is None or default == "":
        return "-"
    return f"`{plain(default)}`"


def plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(("heading", "model"), once().items(), ids=once().keys())
def test_every_key_stands_under_its_section_with_its_default(
    heading: str, model: type[BaseModel]
) -> None:
    assert rows(heading) == {name: written(each) for name, each in model.model_fields.items()}


def test_the_keys_that_a_task_adds_are_documented() -> None:
    own = TaskSection.model_fields
    added = {name: written(own[name]) for name in own if name not in Config.model_fields}
    assert rows(TASK) == added


def test_no_section_is_documented_that_does_not_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = {line[3:] for line in text.splitlines() if line.startswith("## ")}
    assert headings == {*once(), TASK}


def test_the_defaults_that_are_told_in_words_are_the_ones_in_force() -> None:
    text = PAGE.read_text(encoding="utf-8")
    usual = Limits()
    for words in (
        f"memory of a child; `-` is {usual.memory_mb}",
        f"threads at once; `-` is {usual.processes}",
        f"that it may write; `-` is {usual.file_mb}",
        f"with what it has; `-` is {TaskConfig().grace_turn_ms // 1000}",
    ):
        assert words in text
