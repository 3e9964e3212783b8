"""The harness that breaks things on purpose: a short run keeps the promises, and a planted bug does not go unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.servers import binaries

from laneway.worker.bench.chaos.audit import (
    FAIR_EXITS,
    Accepted,
    Ended,
    Evidence,
    Line,
    Outage,
    Report,
    Silence,
    audit,
)
from laneway.worker.bench.chaos.fleet import ENTRY
from laneway.worker.bench.chaos.plan import LEASE_S, Fault, Kind, Plan, Strike, make_plan
from laneway.worker.bench.chaos.run import chaos
from laneway.worker.policy.quarantine import SUSPECT

JOBS, WORKERS = 300, 4
PLANTED = "laneway.worker.bench.chaos.planted"


async def trial(plan: Plan, entry: Sequence[str] = ENTRY) -> Report:
    """A run on the first server that this machine has."""
    found = binaries()
    if not found:
        pytest.skip("no server: neither laneway[embedded] nor /usr/bin/redis-server is installed")
    return await chaos(plan, WORKERS, next(iter(found.values())), entry)


def only(fault: Fault) -> Plan:
    """A run without poison in which each worker but one is hit once, by that fault."""
    plan = make_plan(JOBS, 1, WORKERS)
    return replace(
        plan,
        arrivals=tuple(arrival for arrival in plan.arrivals if arrival.kind is not Kind.POISON),
        strikes=tuple(
            Strike(at=3.0 + 2 * worker, fault=fault, worker=worker, seconds=2.2 * LEASE_S)
            for worker in range(WORKERS - 1)
        ),
    )


# --- real processes -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(180)
@pytest.mark.case("A7")
async def test_no_job_is_lost_and_none_answered_twice() -> None:
    """Workers killed and frozen, the server restarted, replies dropped, engines poisoned: one outcome for each job."""
    report = await trial(make_plan(JOBS, 1, WORKERS))
    assert report.accepted == JOBS
    assert (report.missing, report.double, report.wrong, report.garbled) == (0, 0, 0, 0), report
    assert report.innocent == 0, report
    assert (report.waiting, report.pending) == (0, 0), report
    assert report.poison == report.poison_sent, report
    assert report.exits.keys() <= FAIR_EXITS, report
    assert report.recoveries, "no kill hit a worker with jobs in hand"


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(180)
async def test_a_result_stored_after_the_acknowledgement_shows_as_missing() -> None:
    """Whoever dies in between takes the job along: the harness must see it."""
    report = await trial(only(Fault.KILL), (PLANTED, "ack-first"))
    assert report.exits.keys() <= FAIR_EXITS, report
    assert report.missing, report
    assert not report.clean


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(180)
async def test_a_renewal_that_takes_jobs_back_shows_as_double() -> None:
    """A worker that thaws and trusts such a renewal answers jobs that another has answered: the harness must see it."""
    report = await trial(only(Fault.FREEZE), (PLANTED, "blind-renewal"))
    assert report.exits.keys() <= FAIR_EXITS, report
    assert report.double, report
    assert not report.clean


# --- the audit ----------------------------------------------------------------


def line(process: str, at: float, event: str, job_id: str = "a") -> Line:
    return Line(process=process, at=at, event=event, job_id=job_id)


def judge(
    kind: Kind = Kind.PLAIN,
    state: str | None = "completed",
    by_worker: bool = True,
    garbled: bool = False,
    **more: Any,
) -> Report:
    """The verdict over one job, which was settled once unless told otherwise."""
    ended = {} if state is None else {"a": Ended(state=state, by_worker=by_worker, garbled=garbled)}
    given = {"lines": [line("w", 2.0, "job.settled")] if by_worker else [], **more}
    return audit(Evidence(accepted=[Accepted(job_id="a", kind=kind)], ended=ended, **given))


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (Kind.PLAIN, "completed"),
        (Kind.CANCEL, "completed"),
        (Kind.CANCEL, "cancelled"),
        (Kind.DEADLINE, "completed"),
        (Kind.DEADLINE, "expired"),
        (Kind.POISON, "failed"),
    ],
)
def test_a_job_that_ended_as_it_should_is_clean(kind: Kind, state: str) -> None:
    """Each kind of job has its own good ends."""
    assert judge(kind, state).clean


@pytest.mark.parametrize(
    ("field", "report"),
    [
        ("missing", judge(state=None)),
        ("innocent", judge(state="failed")),
        ("innocent", judge(Kind.CANCEL, "failed")),
        ("wrong", judge(state="cancelled")),
        ("wrong", judge(state="expired")),
        ("garbled", judge(garbled=True)),
        ("waiting", judge(waiting=1)),
        ("pending", judge(pending=1)),
        ("double", judge(lines=[line("w", 2.0, "job.settled"), line("v", 3.0, "job.settled")])),
        ("double", judge(Kind.CANCEL, "cancelled", by_worker=False, lines=[line("v", 3.0, "job.settled")])),
    ],
)
def test_each_broken_promise_is_counted_by_its_name(field: str, report: Report) -> None:
    """One job, one fault: its count is 1, and the run is not clean."""
    assert getattr(report, field) == 1
    assert not report.clean


def test_poison_that_completes_was_not_found_out() -> None:
    """A poison job kills every engine: it cannot have run."""
    report = judge(Kind.POISON, "completed")
    assert (report.poison, report.poison_sent, report.clean) == (0, 1, False)


def test_a_worker_that_ends_of_a_defect_is_a_fault() -> None:
    """0 is a drain and 3 a dead engine; nothing else may happen."""
    assert judge(exits={0: 4, 3: 2}).clean
    assert not judge(exits={1: 1}).clean


def claimed(process: str, at: float, job_id: str = "a", attempt: int = 1, losses: int = 0) -> Line:
    return Line(process=process, at=at, event="job.claimed", job_id=job_id, attempt=attempt, losses=losses)


def test_recovery_counts_from_the_silence_until_the_job_runs() -> None:
    """Of the jobs that were in hand, not of those that had left it."""
    lines = [
        claimed("w", 1.0, "a"),
        claimed("w", 1.0, "b"),
        line("w", 1.5, "job.settled", "b"),
        claimed("v", 5.0, "a", attempt=2, losses=1),
        line("v", 5.5, "job.started", "a"),
    ]
    report = judge(lines=lines, silences=[Silence(process="w", at=2.0)])
    assert (report.recoveries, report.recovery_s_max, report.recovery_s_p50) == (1, 3.5, 3.5)
    assert (report.again, report.suspects) == (0, 0)


def test_what_of_a_recovery_the_server_was_away_is_told_apart() -> None:
    """Both figures are there: how long it took, and how long of that somebody could have done something."""
    lines = [claimed("w", 1.0), claimed("v", 8.0, attempt=2), line("v", 8.0, "job.started")]
    outages = [Outage(begin=0.0, end=3.0), Outage(begin=4.0, end=6.0), Outage(begin=7.5, end=9.0)]
    report = judge(lines=lines, silences=[Silence(process="w", at=2.0)], outages=outages)
    assert (report.recovery_s_max, report.recovery_up_s_max) == (6.0, 2.5)


def test_a_recovery_of_more_than_two_leases_breaks_a_promise() -> None:
    """What of it the server was away does not count; nothing else is forgiven, a machine that is too busy neither."""
    lines = [claimed("w", 1.0), claimed("v", 8.0, attempt=2), line("v", 8.0, "job.started")]
    lines.append(line("v", 9.0, "job.settled"))
    given: dict[str, Any] = {"lines": lines, "silences": [Silence(process="w", at=2.0)], "lag_s": 2.0}
    late, ready = judge(**given, lease_s=2.9), judge(**given, lease_s=3.0)
    assert (late.late, late.clean, late.lag_s_max) == (1, False, 2.0)
    assert (ready.late, ready.clean) == (0, True)
    assert judge(**given, lease_s=2.9, outages=[Outage(begin=3.0, end=3.5)]).clean


def test_what_a_thawed_worker_still_ends_was_not_lost() -> None:
    """The lease held; what another runs later has another reason."""
    lines = [claimed("w", 1.0), line("w", 3.0, "job.handed_back"), claimed("v", 9.0, attempt=2)]
    report = judge(lines=[*lines, line("v", 9.0, "job.started")], silences=[Silence(process="w", at=2.0)])
    assert report.recoveries == 0


def test_what_a_thawed_worker_finds_lost_is_a_recovery() -> None:
    """It says so after the other has begun."""
    lines = [
        claimed("w", 1.0),
        claimed("v", 5.0, attempt=2),
        line("v", 5.0, "job.started"),
        line("w", 6.0, "job.lost"),
    ]
    report = judge(lines=lines, silences=[Silence(process="w", at=2.0)])
    assert (report.recoveries, report.recovery_s_max) == (1, 3.0)


def test_a_job_hit_again_on_its_way_counts_apart() -> None:
    """An attempt in between that nobody ran: its clock tells of two losses, not of one."""
    lines = [claimed("w", 1.0), claimed("v", 9.0, attempt=3, losses=1), line("v", 9.0, "job.started")]
    report = judge(lines=lines, silences=[Silence(process="w", at=2.0)])
    assert (report.recoveries, report.again, report.again_s_max) == (0, 1, 7.0)


def test_a_suspect_counts_apart() -> None:
    """It may wait for an engine of its own, which is another promise than a quick recovery."""
    lines = [claimed("w", 1.0), claimed("v", 9.0, attempt=2, losses=SUSPECT), line("v", 9.0, "job.started")]
    report = judge(lines=lines, silences=[Silence(process="w", at=2.0)])
    assert (report.recoveries, report.suspects, report.suspect_s_max) == (0, 1, 7.0)


def test_a_report_says_which_job_broke_a_promise() -> None:
    """By its id, kind and end."""
    assert judge(Kind.CANCEL, "failed").faults == ("a (cancel) is failed",)
    assert judge().faults == ()


# --- the plan -----------------------------------------------------------------


def test_a_seed_makes_the_same_plan_again() -> None:
    """A run that found something can be repeated; another seed draws another one."""
    assert make_plan(JOBS, 7, WORKERS) == make_plan(JOBS, 7, WORKERS)
    assert make_plan(JOBS, 7, WORKERS) != make_plan(JOBS, 8, WORKERS)


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_holds_every_kind_of_job_and_of_fault(seed: int) -> None:
    """However short the run."""
    plan = make_plan(JOBS, seed, WORKERS)
    assert {arrival.kind for arrival in plan.arrivals} == set(Kind)
    assert {strike.fault for strike in plan.strikes} == set(Fault)
    assert sum(arrival.kind is Kind.POISON for arrival in plan.arrivals) == 3
