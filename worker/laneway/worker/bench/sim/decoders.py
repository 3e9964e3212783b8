"""The decoding sequences of one class, without touching each of them at every step.

All that decode get one token per *tick*. A job that gets its first token at tick `t` with `n` tokens to generate
decodes at ticks `t + 1` to `t + n - 1`; when it leaves is known when it joins. So a tick costs what joins and leaves,
not what runs. A step that pauses the class has no tick for it.
"""

from __future__ import annotations

from laneway.worker.bench.sim.jobs import SimJob

Entry = tuple[SimJob, int]
"""A job, and the number of the run that this was planned for."""


class Decoders:
    """Ticks are planned ahead of the clock: `planned` counts those planned, `ends` has the times of those that ended."""

    def __init__(self) -> None:
        self.count = 0
        """Sequences that decode at the latest planned tick."""
        self.kv = 0
        """Context tokens that they attend to."""
        self.planned = 0
        self.ends: list[float] = []
        self._joining: list[Entry] = []
        self._leaving: dict[int, list[Entry]] = {}
        self._settled = 0

    def settle(self) -> None:
        """Move the set to the next tick: those that had their last token leave, those with a first token join."""
        tick = self._settled = self.planned
        for job, run in self._leaving.pop(tick, ()):
            if job.run == run and tick - 1 > job.first_tick:
                self.count -= 1
                self.kv -= job.context + (tick - 1 - job.first_tick)
        self.kv += self.count
        for job, run in self._joining:
            if job.run == run and tick < leaves_at(job):
                self.count += 1
                self.kv += job.context + 1
        self._joining.clear()

    def join(self, job: SimJob) -> None:
        """The job's prompt ends with the tick that is being planned: its first token."""
        job.first_tick = self.planned
        self._joining.append((job, job.run))
        self._leaving.setdefault(leaves_at(job), []).append((job, job.run))

    def commit(self) -> list[Entry]:
        """The tick is planned. Returns the jobs that have their last token at it."""
        self.planned += 1
        return [entry for entry in self._leaving.get(self.planned, ()) if entry[0].run == entry[1]]

    def forget(self, job: SimJob) -> None:
        """Take a job out that is past its prompt and will not go on."""
        if job.first_tick < self._settled < leaves_at(job):
            self.count -= 1
            self.kv -= job.context + (self._settled - job.first_tick)

    def planned_decodes(self, job: SimJob) -> int:
        """Tokens after the first that are planned for the job: each took a KV token."""
        return 0 if job.first_tick < 0 else max(0, min(self.planned, leaves_at(job)) - 1 - job.first_tick)

    def generated(self, job: SimJob) -> int:
        """Tokens that the job has by the last ended tick."""
        if job.first_tick < 0:
            return job.generated
        return min(job.output, job.generated + max(0, len(self.ends) - job.first_tick))

    def token_times(self, job: SimJob) -> list[float]:
        """When the tokens of this run appeared, up to the last ended tick."""
        return self.ends[job.first_tick : leaves_at(job)]


def leaves_at(job: SimJob) -> int:
    """The first tick at which the job has nothing left to generate."""
    return job.first_tick + job.output - job.generated
