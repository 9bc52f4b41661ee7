"""A team with a member of each vendor: one brief, three formats, one way through the gateway."""

from __future__ import annotations

import pytest

from support.models import ledger, model_task, models
from support.roots import Root
from support.teams import brief, require_sound, status_of
from support.upstream import INPUT, KEYS, OUTPUT, WORDS, provider

__all__ = ["models"]

pytestmark = pytest.mark.timeout(60)


def test_members_of_every_vendor_answer_and_report_their_cost(models: Root) -> None:
    with provider() as upstream:
        task = model_task(models, upstream)
        (result,) = models.run(task, brief(subagent_id="mixed"))
        asked = upstream.asked
    # Each answers with the words that the provider always says, and votes with none of them.
    assert (result["status"], result["answer"]) == ("partial", "".join(WORDS))
    assert {each.path.rpartition("/")[2] for each in asked} == {
        "completions",
        "messages",
        "gemini-2.5-flash:streamGenerateContent",
    }
    assert {key for each in asked for key in KEYS.values() if key in str(each.headers)} == set(
        KEYS.values()
    )
    usage, spent = result["token_usage"], (len(asked) * INPUT, len(asked) * OUTPUT)
    assert (usage["input_tokens"], usage["output_tokens"]) == spent
    assert len(ledger(models, task)) == len(asked) >= 3
    status = status_of(models, task, "mixed")
    require_sound(status)
    costs = status["costs"]
    assert (costs["total_input_tokens"], costs["total_output_tokens"]) == spent
    assert costs["total_estimated_cost"] == pytest.approx(usage["estimated_cost"])
    assert usage["estimated_cost"] > 0
