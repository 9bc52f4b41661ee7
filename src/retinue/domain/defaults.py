"""Which model answers where nobody named one."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.staffing import ModelBackend

LOCAL = "local"
LOCAL_MODEL = "smollm2-135m-instruct"
LOCAL_NOTE = (
    "the local model has 135 million parameters: it demonstrates delegation, and its words are "
    "not to be relied on"
)
NOT_SET = "is not set where the steward was started"
SET_IT = "set it, then 'retinue steward stop': the next command starts a new one"

# variable -> (type, model), in the order in which they are looked for
USUAL = {
    "ANTHROPIC_API_KEY": ("anthropic", "claude-sonnet-4-5"),
    "OPENAI_API_KEY": ("openai", "gpt-5-mini"),
    "GEMINI_API_KEY": ("gemini", "gemini-2.5-flash"),
    "GOOGLE_API_KEY": ("gemini", "gemini-2.5-flash"),
}
USUAL_MODELS = {LOCAL: LOCAL_MODEL, **dict(USUAL.values())}  # by the type of the backend


def default_backends(environment: Mapping[str, str]) -> tuple[ModelBackend, ...]:
    """The first provider whose key is set, alone; without any key, the local model.

    Ask it where a configuration names no backend and the work needs a model. It looks at names of
    variables and never keeps a key; the environment is the steward's.
    """
    for variable, (kind, model) in USUAL.items():
        if environment.get(variable, "").strip():
            return (ModelBackend(name=kind, type=kind, model=model, api_key_env=variable),)
    return (ModelBackend(name=LOCAL, type=LOCAL, model=LOCAL_MODEL),)
