"""One message at a time to a client, and a refusal that arrives whatever was on its way when it was decided."""

import asyncio

import pytest

from cutlayer.engines.grpc.outlet import Outlet


class Stream:
    """Writes as gRPC takes them: one at a time, and a cancelled one is still on its way until the reader takes it."""

    def __init__(self):
        self.taken, self.on_its_way, self.begun = [], None, asyncio.Event()

    async def write(self, packet):
        assert self.on_its_way is None, "TOO_MANY_OPERATIONS"
        self.on_its_way = (packet, asyncio.get_running_loop().create_future())
        self.begun.set()
        await asyncio.shield(self.on_its_way[1])

    def read(self):
        packet, done = self.on_its_way
        self.on_its_way = None
        self.taken.append(packet)
        done.set_result(None)

    async def read_all(self, packets):
        while len(self.taken) < packets:
            if self.on_its_way is not None:
                self.read()
            await asyncio.sleep(0.001)


def within(seconds, work):
    return asyncio.run(asyncio.wait_for(work(), seconds))


async def words(outlet, *packets):
    for packet in packets:
        await outlet.write(packet)


@pytest.mark.parametrize("hushed", [True, False])
def test_last_words_wait_for_what_is_on_its_way_and_nothing_comes_after(hushed):
    async def work():
        stream = Stream()
        outlet = Outlet(stream)
        outlet.speak(words(outlet, b"1", b"2", b"3"))
        await stream.begun.wait()
        if hushed:
            outlet.hush()
        last = asyncio.ensure_future(outlet.farewell(b"refused", 10))
        await asyncio.sleep(0.01)
        assert not stream.taken and stream.on_its_way[0] == b"1"
        await stream.read_all(2)
        await last
        await outlet.close()
        await asyncio.sleep(0.01)
        assert stream.taken == [b"1", b"refused"] and stream.on_its_way is None

    within(10, work)


def test_who_speaks_and_who_takes_leave_share_one_stream():
    async def work():
        stream = Stream()
        outlet = Outlet(stream)
        reader = asyncio.ensure_future(stream.read_all(41))
        writers = [outlet.write(bytes([one])) for one in range(40)]
        await asyncio.gather(*writers)
        await outlet.farewell(b"refused", 10)
        await reader
        assert sorted(stream.taken[:-1]) == [bytes([one]) for one in range(40)] and stream.taken[-1] == b"refused"

    within(10, work)


def test_who_is_refused_and_does_not_read_is_not_waited_for():
    """Its connection ends all the same, so that it finds out: before the refusal is taken, or what came before it."""

    async def work():
        stream = Stream()
        await Outlet(stream).farewell(b"refused", 0.02)
        assert stream.on_its_way[0] == b"refused"
        stream = Stream()
        outlet = Outlet(stream)
        outlet.speak(words(outlet, b"1", b"2"))
        await stream.begun.wait()
        await outlet.farewell(b"refused", 0.02)
        await outlet.close()
        assert stream.on_its_way[0] == b"1" and not stream.taken

    within(10, work)


def test_what_is_hushed_is_not_said():
    async def work():
        stream = Stream()
        outlet = Outlet(stream)
        outlet.hush()
        await outlet.write(b"1")
        assert stream.on_its_way is None
        await outlet.close()

    within(10, work)
