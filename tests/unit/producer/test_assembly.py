"""Whatever is repeated, lost or redone on the way, the texts that a consumer sees join to one answer."""

from __future__ import annotations

from hypothesis import given
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
    resumed = Started(job_id=ID, attempt=2, resumes_at=2)
    _, seen = run(*pieces(1, "ab"), resumed, tokens(2, 2, "c"), tokens(2, 3, "d"))
    assert shown(seen) == "abcd"
    assert not any(isinstance(event, Restarted) for event in seen)


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
def test_the_joined_text_is_always_the_stored_answer(delivery: tuple[list[Event], str, int]) -> None:
    """For every loss, repetition and restart: at the end the consumer shows the result, each event came once."""
    events, answer, attempts = delivery
    assembler, seen = run(*events)
    seen += assembler.finish(result(answer, attempt=attempts))
    assert shown(seen) == answer
    assert isinstance(seen[-1], Ended)
    since_restart = [event.seq for event in seen if isinstance(event, Tokens) and event.attempt == attempts]
    assert since_restart == sorted(set(since_restart))
