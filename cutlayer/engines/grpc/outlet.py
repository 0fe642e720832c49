"""What a server says on one connection: one message at a time, and last words where there is a place for them."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Outlet:
    """gRPC refuses a second message while the first is on its way, and a write that is cancelled stays on its way.

    A refusal written beside it would be an error of ours, after which the caller hears nothing and waits for good.
    So writes wait for one another here, and last words wait for the one that is on its way.
    """

    def __init__(self, context: Any):
        self._context = context
        self._free = asyncio.Lock()
        self._speaker: asyncio.Task[None] | None = None
        self._hushed = False

    async def write(self, packet: bytes) -> None:
        async with self._free:
            if not self._hushed:
                await self._context.write(packet)

    def speak(self, words: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Have somebody write until the connection is closed."""
        self._speaker = asyncio.ensure_future(words)
        return self._speaker

    def hush(self) -> None:
        """Nothing more is written but what is on its way, and last words."""
        self._hushed = True

    async def farewell(self, packet: bytes, patience: float) -> None:
        """The last message. To who does not take the one before it, nothing: it finds the connection closed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._free.acquire(), patience)  # and it is not given back
            await asyncio.wait_for(self._context.write(packet), patience)

    async def close(self) -> None:
        if self._speaker is not None:
            self._speaker.cancel()
            await asyncio.gather(self._speaker, return_exceptions=True)
