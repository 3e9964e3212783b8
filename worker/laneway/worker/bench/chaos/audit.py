"""The verdict over a run: a pure function of what was accepted, what results say and what workers logged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from laneway.worker.bench.chaos.plan import Kind

ENDS = frozenset(
    {
        "job.settled",
        "job.fenced",
        "job.handed_back",
        "job.retried",
        "job.lost",
    }
)
"""Facts after which a worker has the job no more."""

FAIR_EXITS = frozenset({"0", "3", "-15"})
"""Exit codes of a worker that was told to end, of one whose engine died, and of one told to end before it could hear."""


class Line(Struct, frozen=True, kw_only=True):
    """A fact about a job, as one worker logged it."""

    process: str
    """The worker's log: one for each process, also where one takes the place of another."""
    at: float
    """Seconds since 1970."""
    event: str
    job_id: str


class Accepted(Struct, frozen=True, kw_only=True):
    """A job that the producer was told is in the queue."""

    job_id: str
    kind: Kind


class Ended(Struct, frozen=True, kw_only=True):
    """A stored outcome."""

    state: str
    by_worker: bool
    """False: settled by the cancel itself, while no worker had the job."""


class Death(Struct, frozen=True, kw_only=True):
    """A worker was killed."""

    process: str
    at: float


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything that a run left behind."""

    accepted: Sequence[Accepted]
    ended: Mapping[str, Ended]
    """Job id to outcome."""
    lines: Sequence[Line]
    deaths: Sequence[Death] = ()
    waiting: int = 0
    """Entries left in the lanes."""
    pending: int = 0
    """Entries left in the hands of a worker."""
    exits: Mapping[int, int] = {}
    """Exit codes of workers that nobody killed, and how often."""


class Report(Struct, frozen=True, kw_only=True):
    """What became of the jobs."""

    accepted: int
    outcomes: int
    missing: int
    """Accepted jobs without an outcome."""
    double: int
    """Jobs with more than one stored outcome."""
    innocent: int
    """Jobs that failed although they harm nobody."""
    wrong: int
    """Jobs with an outcome that nobody asked for: cancelled or expired without a cancel or a deadline."""
    poison: int
    """Poison jobs that were found out."""
    poison_sent: int
    recovery_s_max: float
    """Longest time from a kill to the moment at which another worker had one of its jobs, for jobs not claimed before."""
    recoveries: int
    """Jobs in hand at a kill that another worker took over."""
    suspect_s_max: float
    """The same as `recovery_s_max` for jobs that had been claimed before: they may wait for an engine of their own."""
    waiting: int
    pending: int
    states: dict[str, int]
    exits: dict[str, int]

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        faults = self.missing, self.double, self.innocent, self.wrong, self.waiting, self.pending
        return not any(faults) and self.poison == self.poison_sent and self.exits.keys() <= FAIR_EXITS


def audit(evidence: Evidence) -> Report:
    """Count what went well and what did not."""
    kinds = {job.job_id: job.kind for job in evidence.accepted}
    ended = {job_id: end for job_id, end in evidence.ended.items() if job_id in kinds}
    failed = {job_id for job_id, end in ended.items() if end.state == "failed"}
    poison = {job_id for job_id, kind in kinds.items() if kind is Kind.POISON}
    recoveries = list(_recoveries(evidence.lines, evidence.deaths))
    return Report(
        accepted=len(kinds),
        outcomes=len(ended),
        missing=len(kinds.keys() - ended.keys()),
        double=sum(count > 1 for count in _stored(evidence).values()),
        innocent=len(failed - poison),
        wrong=sum(not _is_fair(kinds[job_id], end.state) for job_id, end in ended.items()),
        poison=len(failed & poison),
        poison_sent=len(poison),
        recovery_s_max=_longest(recoveries, first=True),
        suspect_s_max=_longest(recoveries, first=False),
        recoveries=len(recoveries),
        waiting=evidence.waiting,
        pending=evidence.pending,
        states=dict(sorted(Counter(end.state for end in ended.values()).items())),
        exits={str(code): count for code, count in sorted(evidence.exits.items())},
    )


def _longest(recoveries: Iterable[tuple[float, bool]], *, first: bool) -> float:
    return round(max((seconds for seconds, is_first in recoveries if is_first is first), default=0.0), 3)


def _stored(evidence: Evidence) -> Counter[str]:
    """How many outcomes were stored for each job: a worker says so, or the result bears no worker's name."""
    stored = Counter(line.job_id for line in evidence.lines if line.event == "job.settled")
    stored.update(job_id for job_id, end in evidence.ended.items() if not end.by_worker)
    return stored


def _is_fair(kind: Kind, state: str) -> bool:
    match state:
        case "cancelled":
            return kind is Kind.CANCEL
        case "expired":
            return kind is Kind.DEADLINE
        case _:
            return True


def _recoveries(lines: Sequence[Line], deaths: Iterable[Death]) -> Iterable[tuple[float, bool]]:
    """For each job in hand at a kill and claimed again: the seconds in between, and whether it was its first crash."""
    by_process: dict[str, list[Line]] = defaultdict(list)
    by_job: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line.at):
        by_process[line.process].append(line)
        by_job[line.job_id].append(line)
    for death in deaths:
        for job_id in _in_hand(by_process[death.process]):
            later = [line.at for line in by_job[job_id] if line.event == "job.claimed" and line.at > death.at]
            earlier = sum(line.event == "job.claimed" and line.at <= death.at for line in by_job[job_id])
            if later:
                yield later[0] - death.at, earlier == 1


def _in_hand(lines: Iterable[Line]) -> set[str]:
    held: set[str] = set()
    for line in lines:
        if line.event == "job.claimed":
            held.add(line.job_id)
        elif line.event in ENDS:
            held.discard(line.job_id)
    return held
