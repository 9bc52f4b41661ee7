"""Places of context paths below RETINUE_CONTEXT."""

from __future__ import annotations

from retinue.core.contract import Context, find_original_path, list_context_places

ROOT = "/p/.retinue"
OUTPUT = f"{ROOT}/tasks/t/agents/a/workspace"


def test_a_nested_path_has_its_own_place_only_if_hidden_in_the_outer_one() -> None:
    context = Context(base="/p", paths=("/p", "/p/src", OUTPUT), hidden=(ROOT,))
    assert list_context_places(context) == [
        ("/p", "paths"),
        (OUTPUT, "paths/.retinue/tasks/t/agents/a/workspace"),
    ]


def test_outside_paths_of_the_same_name_have_two_places() -> None:
    context = Context(base="/p", paths=("/a/lib", "/b/lib", "/a/lib/x"))
    assert list_context_places(context) == [("/a/lib", "outside/lib"), ("/b/lib", "outside/lib-2")]


def test_a_place_maps_back_to_its_original_path() -> None:
    context = Context(base="/p", paths=("/p/src", "/q/lib", OUTPUT), hidden=(ROOT,))
    assert find_original_path(context, "paths/src/a/b.py") == "/p/src/a/b.py"
    assert find_original_path(context, "outside/lib") == "/q/lib"
    assert find_original_path(context, f"paths{OUTPUT.removeprefix('/p')}/f") == f"{OUTPUT}/f"
    assert (
        find_original_path(context, "paths/other") == find_original_path(context, "files/x") == ""
    )
