"""Measuring a server from a client's side: every request is accounted for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from remote.fake_server import FakeServer, serving

from phasegate.errors import InputError
from phasegate.remote.http import Address
from phasegate.remote.run import Server
from phasegate.report.summary import summarise
from phasegate.workload.source import source_of
from phasegate.workload.table import RequestTable


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


def table(prompts: list[int], output: int = 4) -> RequestTable:
    return RequestTable.of(prompts, [output] * len(prompts), arrival=[0.0] * len(prompts))


def test_every_token_of_every_request_is_timed(fake: FakeServer) -> None:
    server = Server(fake.url)
    assert server.model == "tiny"
    record = server.run(source_of(table([5, 6, 7])), name="here")
    assert record.counts == {"finished": 3, "rejected": 0, "aborted": 0}
    assert record.submitted == 3
    requests = record.requests
    assert sorted(requests["prompt"]) == [5, 6, 7]
    assert requests["output"].tolist() == [4, 4, 4]
    assert (requests["first_token"] > requests["arrival"]).all()
    for row in range(3):
        spent = requests["end"][row] - requests["first_token"][row]
        assert record.itl_values(row).sum() == pytest.approx(spent)
    assert len(record.itl()[0]) == 9


def test_a_closed_loop_keeps_its_requests_in_flight(fake: FakeServer) -> None:
    requests = table([5] * 20).closed(3)
    ended: list[int] = []
    record = Server(fake.url).run(source_of(requests), name="here", progress=ended.append)
    assert sum(ended) == record.counts["finished"] == 20
    moments = record.requests["arrival"]
    in_flight = [
        int(((moments <= t) & (record.requests["end"] > t)).sum()) for t in moments.tolist()
    ]
    assert max(in_flight) <= 3


def test_refused_and_broken_requests_are_counted_and_explained(fake: FakeServer) -> None:
    fake.refuse, fake.broken = 9, 11
    server = Server(fake.url)
    record = server.run(source_of(table([5, 9, 11, 5])), name="here")
    assert record.counts == {"finished": 2, "rejected": 1, "aborted": 1}
    broken = record.requests["prompt"] == 11
    assert record.requests["output"][broken].tolist() == [1]
    assert server.problem in ("HTTP 429: too many requests", "the connection broke off")


def test_without_usage_pieces_are_counted(fake: FakeServer) -> None:
    fake.silent = True
    record = Server(fake.url).run(source_of(table([5])), name="here")
    assert record.requests["output"].tolist() == [4]


def test_what_a_client_cannot_see_is_none(fake: FakeServer) -> None:
    run = summarise(Server(fake.url).run(source_of(table([5])), name="here"))
    assert run["policy"] == "here"
    assert run["iterations"] == {"prefill": None, "decode": None, "mixed": None}
    assert run["preemptions"] is None
    assert run["kv"]["capacity_tokens"] is None
    assert run["throughput"]["requests_s"] is not None


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="cannot connect"):
        Server(url)


def test_an_unknown_model(fake: FakeServer) -> None:
    with pytest.raises(InputError, match="no such model, but tiny"):
        Server(fake.url, "other")


def test_a_server_that_is_none_of_ours(fake: FakeServer) -> None:
    with pytest.raises(InputError, match=r"HTTP 404.*OpenAI-compatible"):
        Server(f"{fake.url}/elsewhere")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError, match="write http://HOST:PORT"):
        Address(url)
