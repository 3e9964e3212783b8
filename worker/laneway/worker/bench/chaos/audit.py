"""The verdict over a run: a pure function of what was accepted, what results say and what workers logged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from laneway.worker.bench.chaos.plan import Kind
from laneway.worker.policy.quarantine import SUSPECT

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

DROPS = frozenset({"job.lost", "job.fenced"})
"""Those of them that tell that another has it."""

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
    attempt: int = 0
    """With `job.claimed`: number of the attempt."""
    losses: int = 0
    """With `job.claimed`: crashes at which the job had been in hand."""


class Accepted(Struct, frozen=True, kw_only=True):
    """A job that the producer was told is in the queue."""

    job_id: str
    kind: Kind


class Ended(Struct, frozen=True, kw_only=True):
    """A stored outcome."""

    state: str
    by_worker: bool
    """False: settled by the cancel itself, while no worker had the job."""
    code: str = ""
    """Of the error, where it failed."""
    garbled: bool = False
    """Its text, stored or streamed, is not what an undisturbed run answers, or a beginning of that where it was cut."""


class Silence(Struct, frozen=True, kw_only=True):
    """A worker was killed, or frozen past its lease: it says no more, and its jobs are lost."""

    process: str
    at: float


class Outage(Struct, frozen=True, kw_only=True):
    """The server was away."""

    begin: float
    end: float

    def within(self, begin: float, end: float) -> float:
        """Seconds of it that lie between two moments."""
        return max(0.0, min(end, self.end) - max(begin, self.begin))


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything that a run left behind."""

    accepted: Sequence[Accepted]
    ended: Mapping[str, Ended]
    """Job id to outcome."""
    lines: Sequence[Line]
    silences: Sequence[Silence] = ()
    outages: Sequence[Outage] = ()
    waiting: int = 0
    """Entries left in the lanes."""
    pending: int = 0
    """Entries left in the hands of a worker."""
    exits: Mapping[int, int] = {}
    """Exit codes of workers that nobody killed, and how often."""
    orphans: int = 0
    """Processes of engines that outlived their workers."""
    lease_s: float = 0.0
    """Recoveries are to take two of these at most; 0: they are not bounded."""
    lag_s: float = 0.0
    """Longest time by which this process itself was late to wake: the machine was short of processors then."""


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
    garbled: int
    """Jobs whose text, stored or streamed, is not the answer of an undisturbed run."""
    poison: int
    """Poison jobs that were found out."""
    poison_sent: int
    recovery_s_max: float
    """Longest time from a kill or the begin of a freeze to the moment at which another worker ran a job that was in hand,
    where nothing else hit the job in between."""
    recovery_s_p50: float
    recovery_s_p99: float
    recovery_up_s_max: float
    """Longest such time without what of it the server was away, when nobody can take anything over."""
    recoveries: int
    late: int
    """Those that took more than two leases although the server was up."""
    lag_s_max: float
    """Longest time by which the harness itself was late to wake. Where a machine is short of processors, so are workers."""
    again_s_max: float
    """The same for jobs that were hit again before they ran: claimed by a worker that never heard of it, because the
    reply was lost, or that fell silent at once."""
    again: int
    suspect_s_max: float
    """The same for suspects, which wait for an engine of their own."""
    suspects: int
    waiting: int
    pending: int
    states: dict[str, int]
    exits: dict[str, int]
    orphans: int = 0
    faults: tuple[str, ...] = ()
    """What broke a promise, a sentence each, at most 20."""

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        faults = (
            self.missing,
            self.double,
            self.innocent,
            self.wrong,
            self.garbled,
            self.waiting,
            self.pending,
            self.orphans,
            self.late,
        )
        return not any(faults) and self.poison == self.poison_sent and self.exits.keys() <= FAIR_EXITS


def audit(evidence: Evidence) -> Report:
    """Count what went well and what did not."""
    kinds = {job.job_id: job.kind for job in evidence.accepted}
    ended = {job_id: end for job_id, end in evidence.ended.items() if job_id in kinds}
    failed = {job_id for job_id, end in ended.items() if end.state == "failed"}
    poison = {job_id for job_id, kind in kinds.items() if kind is Kind.POISON}
    taken = list(recoveries(evidence.lines, evidence.silences, evidence.outages))
    plain = sorted(one.seconds for one in taken if not one.suspect and not one.again)
    up = [one.seconds - one.away for one in taken if not one.suspect and not one.again]
    again = [one.seconds for one in taken if not one.suspect and one.again]
    suspect = [one.seconds for one in taken if one.suspect]
    return Report(
        accepted=len(kinds),
        outcomes=len(ended),
        missing=len(kinds.keys() - ended.keys()),
        double=sum(count > 1 for count in _stored(evidence).values()),
        innocent=len(failed - poison),
        wrong=sum(not _is_fair(kinds[job_id], end.state) for job_id, end in ended.items()),
        garbled=sum(end.garbled for end in ended.values()),
        poison=len(failed & poison),
        poison_sent=len(poison),
        recovery_s_max=_longest(plain),
        recovery_s_p50=round(median(plain), 3) if plain else 0.0,
        recovery_s_p99=round(plain[int(0.99 * len(plain))], 3) if plain else 0.0,
        recovery_up_s_max=_longest(up),
        recoveries=len(plain),
        late=sum(seconds > 2 * evidence.lease_s > 0 for seconds in up),
        lag_s_max=round(evidence.lag_s, 3),
        again_s_max=_longest(again),
        again=len(again),
        suspect_s_max=_longest(suspect),
        suspects=len(suspect),
        waiting=evidence.waiting,
        pending=evidence.pending,
        states=dict(sorted(Counter(end.state for end in ended.values()).items())),
        exits={str(code): count for code, count in sorted(evidence.exits.items())},
        orphans=evidence.orphans,
        faults=tuple(_faults(kinds, ended, _stored(evidence)))[:20],
    )


def _longest(seconds: Sequence[float]) -> float:
    return round(max(seconds, default=0.0), 3)


def _faults(
    kinds: Mapping[str, Kind], ended: Mapping[str, Ended], stored: Mapping[str, int]
) -> Iterator[str]:
    for job_id, kind in kinds.items():
        end = ended.get(job_id)
        if end is None:
            yield f"{job_id} ({kind.value}) has no outcome"
        elif (end.state == "failed") != (kind is Kind.POISON) or not _is_fair(kind, end.state):
            yield f"{job_id} ({kind.value}) is {end.state} {end.code}".rstrip()
        elif end.garbled:
            yield f"{job_id} ({kind.value}) is {end.state} with a text of its own"
        if stored[job_id] > 1:
            yield f"{job_id} ({kind.value}) has {stored[job_id]} outcomes"


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


class Recovery(Struct, frozen=True, kw_only=True):
    """A job was lost with its worker, and ran on another."""

    job_id: str
    seconds: float
    away: float
    """Seconds of them in which the server was away."""
    again: bool
    """Something hit the job once more in between."""
    suspect: bool
    """It had been in hand at so many crashes that it had to wait for an engine of its own."""


def recoveries(
    lines: Sequence[Line], silences: Iterable[Silence], outages: Sequence[Outage] = ()
) -> Iterator[Recovery]:
    """For each job in hand when its worker fell silent that has run elsewhere since."""
    by_process: dict[str, list[Line]] = defaultdict(list)
    by_job: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line.at):
        by_process[line.process].append(line)
        by_job[line.job_id].append(line)
    for silence in silences:
        for job_id, attempt in _lost(by_process[silence.process], silence.at).items():
            yield from _recovery(by_job[job_id], silence, attempt, outages)


def _recovery(
    lines: Sequence[Line], silence: Silence, attempt: int, outages: Sequence[Outage]
) -> Iterator[Recovery]:
    claims: dict[str, Line] = {}
    for line in lines:
        if line.at <= silence.at or line.process == silence.process:
            continue
        if line.event == "job.claimed":
            claims[line.process] = line
        elif line.event == "job.started" and (claim := claims.get(line.process)) is not None:
            yield Recovery(
                job_id=line.job_id,
                seconds=line.at - silence.at,
                away=sum(outage.within(silence.at, line.at) for outage in outages),
                again=claim.attempt > attempt + 1,
                suspect=claim.losses >= SUSPECT,
            )
            return


def _lost(lines: Iterable[Line], at: float) -> dict[str, int]:
    """Jobs that a worker had in hand at that moment and did not bring to an end afterwards, and their attempts."""
    held: dict[str, int] = {}
    for line in lines:
        if line.event == "job.claimed" and line.at <= at:
            held[line.job_id] = line.attempt
        elif line.event in ENDS and (line.at <= at or line.event not in DROPS):
            held.pop(line.job_id, None)
    return held
