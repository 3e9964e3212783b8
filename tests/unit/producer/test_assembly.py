"""Whatever is repeated, lost or redone on the way, the texts that a consumer sees join to one answer."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laneway.producer.assembly import Assembler
from laneway.schemas import (
    Cancelled,
    Choice,
    Completed,
    Ended,
    Event,
    Failed,
    JobError,
    Outcome,
    Restarted,
    Result,
    Started,
    Tokens,
    Usage,
)
from laneway.schemas.ids import new_job_id
from laneway.schemas.record import Kept

ID = new_job_id("demo", 0)


def tokens(attempt: int, seq: int, text: str, index: int = 0) -> Tokens:
    return Tokens(job_id=ID, attempt=attempt, seq=seq, text=text, index=index)


def pieces(attempt: int, answer: str) -> list[Event]:
    """One token event per character."""
    return [tokens(attempt, seq, text) for seq, text in enumerate(answer)]


def result(text: str, attempt: int = 1, outcome: Outcome | None = None) -> Result:
    completed = Completed(choices=(Choice(text=text, finish_reason="stop"),), usage=Usage())
    return Result(job_id=ID, attempt=attempt, outcome=outcome or completed)


def shown(events: list[Event]) -> str:
    """What a consumer has on its screen: `Restarted` wipes it."""
    text = ""
    for event in events:
        if isinstance(event, Restarted):
            text = ""
        elif isinstance(event, Tokens):
            text += event.text
    return text


def run(*events: Event) -> tuple[Assembler, list[Event]]:
    assembler = Assembler(ID)
    return assembler, [seen for event in events for seen in assembler.feed(event)]


def test_events_in_order_pass_through_unchanged() -> None:
    """The ordinary case: nothing is added, nothing held back."""
    events = [Started(job_id=ID, attempt=1), *pieces(1, "hello")]
    assembler, seen = run(*events)
    assert seen == events
    assert list(assembler.finish(result("hello"))) == [Ended(job_id=ID, attempt=1, state="completed")]


def test_repeated_events_are_dropped() -> None:
    """A reader that goes on after a reconnect, or replays history, shows nothing twice."""
    _, seen = run(*pieces(1, "abc"), *pieces(1, "abcd"))
    assert shown(seen) == "abcd"


def test_events_of_a_lower_attempt_are_dropped() -> None:
    """A worker that was thought dead and still talks is not listened to."""
    _, seen = run(*pieces(1, "ab"), *pieces(2, "xy"), tokens(1, 2, "c"), Started(job_id=ID, attempt=1))
    assert shown(seen) == "xy"


def test_a_later_attempt_that_begins_anew_is_announced() -> None:
    """The consumer is told to forget what it showed, before the new text comes."""
    _, seen = run(*pieces(1, "ab"), Started(job_id=ID, attempt=2), *pieces(2, "xy"))
    assert Restarted(job_id=ID, attempt=2) in seen
    assert shown(seen) == "xy"


def test_an_announcement_by_the_worker_is_not_repeated() -> None:
    """One `Restarted` for one restart, whoever noticed it."""
    _, seen = run(*pieces(1, "ab"), Restarted(job_id=ID, attempt=2), *pieces(2, "xy"))
    assert [type(event) for event in seen].count(Restarted) == 1


def test_a_later_attempt_that_goes_on_is_one_uninterrupted_stream() -> None:
    """A job continued from its generated tokens keeps counting: the consumer notices nothing."""
    resumed = Started(job_id=ID, attempt=2, resumes_at=2, origin=1)
    _, seen = run(*pieces(1, "ab"), resumed, tokens(2, 2, "c"), tokens(2, 3, "d"))
    assert shown(seen) == "abcd"
    assert not any(isinstance(event, Restarted) for event in seen)


def kept(attempt: int, answer: str) -> list[Kept]:
    """What the server keeps: one event per character."""
    return [Kept(attempt=attempt, text=text) for text in answer]


def test_what_was_missed_before_a_resumption_is_filled_from_what_is_kept() -> None:
    """Kept, but never sent: the consumer gets it, once, and only then learns that a second attempt goes on."""
    assembler, seen = run(*pieces(1, "ab"), Started(job_id=ID, attempt=2, resumes_at=4, origin=1))
    assert assembler.gap
    seen += assembler.catch_up(kept(1, "abcd"))
    assert not assembler.gap
    seen += assembler.feed(tokens(2, 4, "e"))
    assert shown(seen) == "abcde"
    assert not any(isinstance(event, Restarted) for event in seen)
    attempts = [event.attempt for event in seen]
    assert attempts == sorted(attempts)
    assert attempts.count(2) == 2  # Started and "e"


def test_a_resumption_behind_what_is_shown_is_a_restart() -> None:
    """The server lost its last second: what was shown beyond may not be what follows now."""
    assembler, seen = run(*pieces(1, "abcd"), Started(job_id=ID, attempt=2, resumes_at=2, origin=1))
    assert Restarted(job_id=ID, attempt=2) in seen
    seen += assembler.catch_up(kept(1, "ab"))
    seen += assembler.feed(tokens(2, 2, "x"))
    assert shown(seen) == "abx"


def test_a_resumption_of_another_text_is_a_restart() -> None:
    """Attempt 2 began anew unseen and attempt 3 goes on from it: however well the numbers fit, the text is another."""
    assembler, seen = run(*pieces(1, "ab"), Started(job_id=ID, attempt=3, resumes_at=2, origin=2))
    seen += assembler.catch_up([*kept(2, "xy"), *kept(3, "z")])
    assert shown(seen) == "xyz"
    assert seen.count(Restarted(job_id=ID, attempt=3)) == 1


def test_who_comes_late_gets_the_beginning_from_what_is_kept() -> None:
    """A consumer that attaches to a running job need not wait for its end."""
    assembler, seen = run(tokens(1, 3, "d"))
    seen += assembler.catch_up(kept(1, "abcd"))
    seen += assembler.feed(tokens(1, 4, "e"))
    assert shown(seen) == "abcde"


def test_what_is_kept_of_a_text_given_up_is_not_shown() -> None:
    """A read that was under way while another attempt began anew changes nothing."""
    assembler, seen = run(*pieces(2, "xy"), tokens(2, 3, "!"))
    assert list(assembler.catch_up(kept(1, "abcd"))) == []
    assert shown(seen) == "xy"


def test_a_later_attempt_whose_beginning_was_lost_is_not_taken_for_the_same_text() -> None:
    """Token 1 of attempt 2 does not follow token 0 of attempt 1, however well the numbers fit."""
    assembler, seen = run(tokens(1, 0, "a"), tokens(2, 1, "y"))
    assert assembler.gap
    assert shown(seen + list(assembler.finish(result("xy", attempt=2)))) == "xy"


def test_nothing_passes_a_gap_until_it_is_filled() -> None:
    """Text with a hole in it is never shown; what arrives late closes the hole."""
    assembler, seen = run(tokens(1, 0, "a"), tokens(1, 2, "c"))
    assert assembler.gap
    assert shown(seen) == "a"
    seen += [event for piece in pieces(1, "abc") for event in assembler.feed(piece)]
    assert not assembler.gap
    assert shown(seen) == "abc"


def test_the_stored_result_fills_what_never_came() -> None:
    """The last words of a stream are always the whole answer."""
    assembler, seen = run(tokens(1, 0, "a"), tokens(1, 2, "c"))
    assert shown(seen + list(assembler.finish(result("abcd")))) == "abcd"


def test_the_result_of_an_unseen_attempt_replaces_the_text() -> None:
    """The stream broke off in attempt 1, attempt 2 answered otherwise."""
    assembler, seen = run(*pieces(1, "abc"))
    seen += assembler.finish(result("xyz", attempt=2))
    assert Restarted(job_id=ID, attempt=2) in seen
    assert shown(seen) == "xyz"


def test_the_result_of_another_life_replaces_the_text() -> None:
    """A server that was emptied counts the attempts of a job that was submitted again from 1: numbers say nothing."""
    assembler, seen = run(*pieces(1, "ab"), *pieces(2, "abc"))
    seen += assembler.finish(result("xyz", attempt=1))
    assert Restarted(job_id=ID, attempt=1) in seen
    assert shown(seen) == "xyz"


def test_a_result_that_holds_no_text_takes_none_away() -> None:
    """What was shown of a failed or cancelled job stays on the screen."""
    for outcome in (Failed(error=JobError(code="x", message="y")), Cancelled()):
        assembler, seen = run(*pieces(1, "abc"))
        seen += assembler.finish(result("", outcome=outcome))
        assert shown(seen) == "abc"
        assert isinstance(seen[-1], Ended)


def test_several_answers_are_kept_apart() -> None:
    """With n > 1 each answer is completed on its own."""
    assembler, _ = run(tokens(1, 0, "a", 0), tokens(1, 1, "x", 1))
    choices = (Choice(index=0, text="ab"), Choice(index=1, text="xy"))
    rest = list(assembler.finish(result("", outcome=Completed(choices=choices, usage=Usage()))))
    assert [(event.index, event.text) for event in rest if isinstance(event, Tokens)] == [(0, "b"), (1, "y")]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Event], str, int]:
    """Events of up to three attempts as a log may hold them: lost ones, repeated ones, late ones of dead workers."""
    attempts = draw(st.integers(1, 3))
    answers = draw(st.lists(st.text("ab", min_size=1, max_size=6), min_size=attempts, max_size=attempts))
    log: list[Event] = []
    for attempt, answer in enumerate(answers, start=1):
        log += [event for event in pieces(attempt, answer) if draw(st.integers(0, 4))]
        if attempt > 1 and draw(st.booleans()):
            log += pieces(attempt - 1, answers[attempt - 2])
    repeats = draw(st.integers(0, len(log)))
    return log[:repeats] + log, answers[-1], attempts


@given(deliveries())
@pytest.mark.case("B30")
def test_the_joined_text_is_always_the_stored_answer(delivery: tuple[list[Event], str, int]) -> None:
    """For every loss, repetition and restart: at the end the consumer shows the result, each event came once."""
    events, answer, attempts = delivery
    assembler, seen = run(*events)
    seen += assembler.finish(result(answer, attempt=attempts))
    assert shown(seen) == answer
    assert isinstance(seen[-1], Ended)
    since_restart = [event.seq for event in seen if isinstance(event, Tokens) and event.attempt == attempts]
    assert since_restart == sorted(set(since_restart))


class Attempts:
    """Attempts at one job as a server sees them: what is kept, and what consumers were sent, which is never more."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.given_up: list[str] = []
        """Texts of answers that were begun anew; who was cut off since shows a beginning of one."""
        self.log: list[Event] = []
        self.attempt = 0
        self._count = 0

    def begin(self, anew: bool) -> None:
        """A further attempt takes over."""
        self.attempt += 1
        if anew or not self.kept:
            self.given_up.append(self.text)
            self.kept = []
            if self.attempt > 1:
                self.log.append(Restarted(job_id=ID, attempt=self.attempt))
            self.log.append(Started(job_id=ID, attempt=self.attempt))
        else:
            origin, at = self.kept[0].attempt, len(self.kept)
            self.log.append(Started(job_id=ID, attempt=self.attempt, resumes_at=at, origin=origin))

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(event.text for event in self.kept)

    def generate(self, sent: bool) -> None:
        """A token that no other attempt would have drawn."""
        self._count += 1
        event = Kept(attempt=self.attempt, text=chr(0x4E00 + self._count))
        self.kept.append(event)
        if sent:
            self.log.append(tokens(self.attempt, len(self.kept) - 1, event.text))


@settings(max_examples=400)
@example(["token", "read", "anew", "token", "look", "read"])
@given(st.lists(st.sampled_from(["anew", "resume", "token", "token", "unsent", "read", "look"]), max_size=40))
def test_resumptions_join_to_what_is_kept(steps: list[str]) -> None:
    """Whatever is lost, resumed or begun anew: what is shown was the beginning of one answer at every moment, and a
    consumer with a gap that looks at what is kept has no gap. Attempts never go down."""
    server, assembler, seen = Attempts(), Assembler(ID), list[Event]()
    server.begin(anew=True)
    read = 0
    for step in steps:
        if step in {"anew", "resume"}:
            server.begin(anew=step == "anew")
        elif step in {"token", "unsent"}:
            server.generate(sent=step == "token")
        elif step == "read":
            seen += [event for sent in server.log[read:] for event in assembler.feed(sent)]
            read = len(server.log)
            if assembler.gap:
                seen += assembler.catch_up(server.kept)
                assert not assembler.gap
            assert any(text.startswith(shown(seen)) for text in (server.text, *server.given_up))
        else:
            read = len(server.log)  # an outage: what was sent went nowhere
    server.begin(anew=False)
    seen += assembler.finish(result(server.text, attempt=server.attempt))
    assert shown(seen) == server.text
    attempts = [event.attempt for event in seen]
    assert attempts == sorted(attempts)
