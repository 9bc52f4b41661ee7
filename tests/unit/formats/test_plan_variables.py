"""Variables and matrices of plan files."""

from __future__ import annotations

import pytest

from retinue.core.errors import BadInput
from retinue.core.plan import Plan
from retinue.formats.plan_document import load_stored_plan, parse_plan, plan_to_json

TRANSLATE = """
goal: Translate {{what}}
vars: {what: the site}
steps:
  - id: text
    matrix: {lang: [de, fr], size: [1, 2]}
    title: Translate {{what}} into {{ lang }}
    command: [sh, -c, "echo {{lang}} $HOME ${x} {{size}}"]
    owns: ["{{lang}}/{{size}}.md"]
  - id: index
    depends_on: [text]
    command: [ls]
  - id: one
    depends_on: [text-de-2]
    command: [ls]
"""


def parse(text: str, **variables: str) -> Plan:
    return parse_plan(text, where="plan.yaml", variables=variables)


def refusal(text: str, **variables: str) -> BadInput:
    with pytest.raises(BadInput) as refused:
        parse(text, **variables)
    return refused.value


def test_a_matrix_makes_a_step_of_each_combination() -> None:
    plan = parse(TRANSLATE)
    ids = ["text-de-1", "text-de-2", "text-fr-1", "text-fr-2"]
    assert [step.id for step in plan.steps] == [*ids, "index", "one"]
    assert plan.goal == "Translate the site"
    last = plan.steps[3]
    assert last.title == "Translate the site into fr"
    assert last.command == ("sh", "-c", "echo fr $HOME ${x} 2")
    assert last.owns == ("fr/2.md",)
    assert list(plan.steps[4].depends_on) == ids
    assert plan.steps[5].depends_on == ("text-de-2",)


def test_the_caller_replaces_a_variable() -> None:
    assert parse(TRANSLATE, what="the book").goal == "Translate the book"
    refused = refusal(TRANSLATE, whta="x")
    assert (refused.code, refused.hint) == ("invalid_plan", "its vars: what")


def test_the_stored_plan_is_the_expanded_one() -> None:
    plan = parse(TRANSLATE)
    assert load_stored_plan(plan_to_json(plan)) == plan


def test_braces_mean_nothing_in_a_plan_without_variables() -> None:
    plan = parse('goal: g\nsteps: [{command: [echo, "{{name}}"]}]')
    assert plan.steps[0].command == ("echo", "{{name}}")


def test_values_are_not_expanded_again() -> None:
    text = 'goal: g\nvars: {a: "{{a}}"}\nsteps: [{command: [echo, "{{a}} {{.Names}}"]}]'
    assert parse(text).steps[0].command == ("echo", "{{a}} {{.Names}}")


def test_an_id_with_a_variable_is_used_as_written() -> None:
    text = 'goal: g\nsteps: [{id: "{{a}}-build", matrix: {a: [x, y]}, command: [ls]}]'
    assert [step.id for step in parse(text).steps] == ["x-build", "y-build"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("goal: '{{b}}'\nvars: {a: x}\nsteps: [{command: [ls]}]", "unknown variable b"),
        ("goal: g\nvars: [a]\nsteps: [{command: [ls]}]", "vars is not a mapping"),
        ("goal: g\nvars: {a: 1.10}\nsteps: [{command: [ls]}]", "vars.a is not a text"),
        ("goal: g\nvars: {a: true}\nsteps: [{command: [ls]}]", "vars.a is not a text"),
        ("goal: g\nvars: {a-b: x}\nsteps: [{command: [ls]}]", "is not the name of a variable"),
        ("goal: g\nsteps: [{matrix: {a: []}, command: [ls]}]", "matrix.a is not a list"),
        ("goal: g\nsteps: [{matrix: {}, command: [ls]}]", "matrix is not a mapping"),
        (
            "goal: g\nvars: {a: x}\nsteps: [{matrix: {a: [y]}, command: [ls]}]",
            "a is a variable of the plan",
        ),
        (
            "goal: g\nsteps: [{id: s, matrix: {a: ['x!', 'x?']}, command: [ls]}]",
            "two steps have the id",
        ),
    ],
)
def test_a_plan_with_a_wrong_variable_is_refused(text: str, said: str) -> None:
    assert said in refusal(text).message


def test_a_matrix_is_bounded_before_it_is_made() -> None:
    values = ", ".join(map(str, range(100)))
    dims = ", ".join(f"v{n}: [{values}]" for n in range(8))
    assert "more than 1000" in refusal(f"goal: g\nsteps: [{{matrix: {{{dims}}}}}]").message


def test_an_error_in_a_step_names_its_line_in_the_file() -> None:
    text = "goal: g\nsteps:\n- matrix: {a: [x, y, z]}\n  command: [ls]\n- comand: [ls]\n"
    assert "line 5" in refusal(text).message
