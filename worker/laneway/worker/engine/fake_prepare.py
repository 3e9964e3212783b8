"""What the fake engine refuses, and what it makes of the rest."""

from __future__ import annotations

from laneway.schemas.job import Chat, Job, Payload, Prompt, TokenIds
from laneway.worker.engine.checks import check_again, check_prompt, check_token_ids, fit_tokens, text_of
from laneway.worker.engine.fake_text import tokenise
from laneway.worker.errors import JobRefused
from laneway.worker.ports import EngineInfo, Prepared

_ROLES = ("system", "user", "assistant", "tool")


def prepare(job: Job, info: EngineInfo, answer_tokens: int) -> Prepared:
    """The job, checked and tokenised. Raises `JobRefused`."""
    check_again(job)
    ids = _token_ids(job.payload, info.vocabulary)
    check_token_ids(job, ids, info.vocabulary)
    if job.lora is not None and not info.max_loras:
        raise JobRefused("adapters_off", "lora: this engine runs without adapters", "lora")
    room = fit_tokens(len(ids), job.sampling.max_tokens, info)
    if job.sampling.max_tokens is None:
        room = min(room, answer_tokens)
    return Prepared(job=job, prompt_token_ids=ids, max_tokens=room)


def _token_ids(payload: Payload, vocabulary: int) -> tuple[int, ...]:
    match payload:
        case Prompt():
            return tokenise(check_prompt(payload.text), vocabulary)
        case TokenIds():
            return payload.ids
        case Chat():
            return tokenise(check_prompt(_render(payload)), vocabulary)


def _render(chat: Chat) -> str:
    lines = []
    for message in chat.messages:
        if message.role not in _ROLES:
            raise JobRefused("template_refused", "messages: the template knows no such role", "messages")
        lines.append(f"{message.role}: {text_of(message)}\n")
    return "".join(lines) + "assistant:"
