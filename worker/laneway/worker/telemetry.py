"""What a worker tells of itself. The work emits these facts; logs and metrics only listen.

| event | told when |
| --- | --- |
| `phase.changed` | the worker enters a phase of its life |
| `job.claimed` | a job is in hand, under a lease |
| `job.started` | its attempt enters the engine |
| `job.preempted` | it left the engine for a job that could not wait, and goes on from its `tokens` later |
| `job.resumed` | it goes on from the tokens of an earlier attempt |
| `job.first_token` | the first token came |
| `job.settled` | its outcome is stored and the job has left its lane |
| `job.fenced` | its outcome was refused: another worker owns the job, or it had ended already |
| `job.handed_back` | it went back to its lane unharmed, at no cost of an attempt |
| `job.retried` | an attempt failed and another will follow |
| `job.dead_lettered` | attempts are used up, or the entry cannot be read |
| `job.lost` | its lease lapsed or was taken: the worker dropped it |
| `queue.unavailable`, `queue.recovered` | the server went away, and came back |
| `engine.progress` | the engine's start reaches a step |
| `warmup.skipped` | the engine refused a warm-up prompt |
| `engine.died` | the engine is gone; the process is about to end |

No event carries a prompt, an answer or metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from laneway.schemas.ids import JobId


class Fact(Struct, frozen=True, kw_only=True):
    """One thing that happened. `event` is dotted, past tense and stable; details are in fields, never in a sentence."""

    event: str
    job_id: JobId | None = None
    slo: str = ""
    bucket: str = ""
    lora: str = ""
    outcome: str = ""
    seconds: float = 0.0
    """What the event measures: queue wait for `job.claimed`, TTFT for `job.first_token`, the job's whole life for
    `job.settled`, the phase just left for `phase.changed`."""
    data: dict[str, Any] = {}


Listener = Callable[[Fact], None]


class Telemetry:
    """Hands each fact to every listener. A listener that fails is dropped: telling must not stop the work."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` every later fact."""
        self._listeners.append(listener)

    def tell(self, event: str, **fields: Any) -> None:
        """Emit a fact; fields that `Fact` does not know go to its `data`."""
        known = {
            name: fields.pop(name) for name in Fact.__struct_fields__ if name in fields and name != "data"
        }
        fact = Fact(event=event, data=fields, **known)
        for listener in tuple(self._listeners):
            try:
                listener(fact)
            except Exception:
                self._listeners.remove(listener)
