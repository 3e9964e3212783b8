"""How much one call asks of the server, and how long what is left there lives."""

from __future__ import annotations

OUTPUT_ENTRIES = 10_000
"""Entries that an output stream keeps for a consumer that is slow or reconnects; what it misses, the result holds."""
RENEW_CHUNK = 256
"""Jobs of a renewal or hand-back: 0.44 ms of server time, measured."""
SETTLE_CHUNK = 32
"""Outcomes of a call: under 1 ms of server time."""
RECLAIM_WINDOW = 128
"""Lapsed entries looked at per lane and call, within 2 ms of server time; a cursor carries on from there."""
RECLAIM_CALLS = 32
"""Calls of one reclaim and partition, where there is that much to look at."""
QUARANTINE_LEASES = 2
"""Leases for which a worker may empty its engine for suspects before another does."""
BEATS = 3
"""Beats after which a worker's card fades."""
KEPT_BYTES = 64 * 1024
"""Bytes of each field of an unreadable entry that its dead letter keeps."""
SWEEP_S = 600.0
"""Seconds between two looks of a worker for consumers that are gone."""
IDLE_CONSUMER_MS = 3_600_000
"""Idle time after which one is."""
