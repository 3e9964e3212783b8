"""The gate before the engine: never one adapter too many in it, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random

import pytest

from laneway.worker.slot_gate import SlotGate


async def test_the_base_model_needs_no_slot() -> None:
    """Jobs without adapter go in whatever is in."""
    gate = SlotGate(1)
    await gate.enter("a")
    await gate.enter(None)
    gate.leave(None)


async def test_a_third_adapter_waits_for_a_slot() -> None:
    """It goes in as soon as one of the others has left."""
    gate = SlotGate(2)
    await gate.enter("a")
    await gate.enter("b")
    third = asyncio.create_task(gate.enter("c"))
    await asyncio.sleep(0)
    assert not third.done()
    gate.leave("a")
    await third
    assert gate.in_use == {"b", "c"}


async def test_a_busy_adapter_does_not_keep_its_slot_for_ever() -> None:
    """Once another waits, it takes no more runs: they go behind."""
    gate = SlotGate(1)
    await gate.enter("busy")
    other = asyncio.create_task(gate.enter("other"))
    await asyncio.sleep(0)
    more = asyncio.create_task(gate.enter("busy"))
    await asyncio.sleep(0)
    assert not more.done()
    gate.leave("busy")
    await other
    assert not more.done()
    gate.leave("other")
    await more


async def test_who_gives_up_blocks_nobody() -> None:
    """A cancelled run leaves the line, and the adapter that was to make room for it runs on."""
    gate = SlotGate(1)
    await gate.enter("a")
    impatient = asyncio.create_task(gate.enter("b"))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    await gate.enter("a")
    assert gate.in_use == {"a"}


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_the_slots_suffice_and_all_get_in(seed: int) -> None:
    """Random runs of seven adapters, some of which give up: at most three distinct ones are in, and all end."""
    chance = random.Random(seed)
    gate = SlotGate(3)
    ended = 0

    async def run(adapter: str) -> None:
        nonlocal ended
        await gate.enter(adapter)
        try:
            assert len(gate.in_use) <= 3
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)
            assert adapter in gate.in_use
        finally:
            gate.leave(adapter)
        ended += 1

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(run(f"adapter-{chance.randrange(7)}")))
        if chance.random() < 0.3:
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            chance.choice(tasks).cancel()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(it is None or isinstance(it, asyncio.CancelledError) for it in results)
    assert ended == sum(it is None for it in results)
    assert not gate.in_use
