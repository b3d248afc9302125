"""Downloads that break off: what is asked next, and what is on the disk."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from haywain.client import BatchClient, ClientError, ConnectionLost, ObjectMissing
from haywain.rest import Timer

CONTENT = bytes(range(256)) * 40


class NoWait(Timer):
    """Time without waiting."""

    def sleep(self, seconds: float) -> None:
        """Go on at once."""


class Cut(httpx.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        """Give all of it, then break."""
        yield self._content
        raise httpx.ReadError("connection reset")


class Server:
    """Serves CONTENT with ranges, each answer cut off after so many bytes; 0 for not at all."""

    def __init__(self, *cuts: int, etag: Callable[[int], str] = lambda _: '"v1"', deaf: bool = False) -> None:
        """`etag` is asked with the number of the answer; `deaf` ignores ranges."""
        self.cuts, self.etag, self.deaf = list(cuts), etag, deaf
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer as RFC 9110 says."""
        etag = self.etag(len(self.asked))
        wanted = request.headers.get("range", "")
        self.asked.append(wanted)
        assert request.headers["accept-encoding"] == "identity"
        begin = 0
        if wanted and not self.deaf and request.headers["if-range"] == etag:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        left = CONTENT[begin:]
        headers = {"content-length": str(len(left)), "etag": etag}
        if begin:
            headers["content-range"] = f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}"
        cut = self.cuts.pop(0) if self.cuts else 0
        body = Cut(left[:cut]) if cut else httpx.ByteStream(left)
        return httpx.Response(206 if begin else 200, headers=headers, stream=body)


def client(server: Callable[[httpx.Request], httpx.Response], retries: int = 3) -> BatchClient:
    """Make a client of it."""
    return BatchClient("http://mesh", transport=httpx.MockTransport(server), timer=NoWait(), retries=retries)


def test_only_the_rest_is_asked_for(tmp_path: Path) -> None:
    """Each try goes on where the last one broke off; the bytes are the file's."""
    server = Server(1000, 2000, 3000)
    path = client(server).download_file_content("file-1", tmp_path / "out")
    assert path.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=1000-", "bytes=3000-", "bytes=6000-"]
    assert client(Server(1000)).download_file_content("file-1") == CONTENT


def test_retries_are_counted_from_the_last_byte() -> None:
    """A bad line that lets something through each time ends with the whole file, however many tries it takes."""
    assert client(Server(*[500] * 15), retries=1).download_file_content("file-1") == CONTENT


@pytest.mark.parametrize("etag", [lambda n: f'"v{n}"', lambda _: 'W/"v1"', lambda _: ""])
def test_another_version_is_fetched_from_its_beginning(tmp_path: Path, etag: Callable[[int], str]) -> None:
    """Where nothing promises that the rest fits, all of it comes again, and nothing of the first part stays."""
    server = Server(1000, 5000, etag=etag)
    assert client(server).download_file_content("file-1", tmp_path / "out").read_bytes() == CONTENT


def test_a_server_without_ranges() -> None:
    """A 200 to a range is the whole."""
    assert client(Server(1000, 900, deaf=True)).download_file_content("file-1") == CONTENT


def test_a_server_without_ranges_that_always_breaks_off() -> None:
    """What came before is no progress when it comes again: it isn't asked for for ever."""
    server = Server(*[1000] * 40, deaf=True)
    with pytest.raises(ConnectionLost):
        client(server).download_file_content("file-1")
    assert len(server.asked) == 4


def test_another_part_than_was_asked_for_is_not_taken() -> None:
    """A 206 that starts elsewhere never gets into the file; the next try starts over."""
    broken = [True]

    def liar(request: httpx.Request) -> httpx.Response:
        if "range" in request.headers:
            headers = {"content-range": f"bytes 7-9/{len(CONTENT)}"}
            return httpx.Response(206, headers=headers, stream=httpx.ByteStream(CONTENT[7:10]))
        if broken:
            broken.clear()
            return httpx.Response(200, headers={"content-length": str(len(CONTENT)), "etag": '"v1"'}, stream=Cut(CONTENT[:50]))
        return httpx.Response(200, stream=httpx.ByteStream(CONTENT))

    assert client(liar).download_file_content("file-1") == CONTENT


def test_a_body_that_is_too_short_is_not_whole() -> None:
    """An answer that ends in order but early counts as broken off."""

    def short(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": "100"}, stream=httpx.ByteStream(b"x" * 10))

    with pytest.raises(ConnectionLost, match="10 bytes of 100"):
        client(short, retries=0).download_file_content("file-1")


def test_on_disk_whole_or_not_at_all(tmp_path: Path) -> None:
    """A download that fails leaves what was there before, and nothing beside it."""
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    with pytest.raises(ConnectionLost):
        client(Server(1000), retries=0).download_file_content("file-1", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    client(Server()).download_file_content("file-1", path)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").open("w").close() or (tmp_path / "plain").stat().st_mode
    )


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it points to is replaced."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    client(Server()).download_file_content("file-1", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == CONTENT


def test_a_device_is_not_replaced() -> None:
    """/dev/null stays what it is."""
    with pytest.raises(ClientError, match="not a regular file"):
        client(Server()).download_file_content("file-1", "/dev/null")


def test_content_that_is_gone(tmp_path: Path) -> None:
    """A refusal is the error, and no file is made."""

    def gone(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"error": {"message": "It was deleted.", "code": "file_deleted"}})

    with pytest.raises(ObjectMissing) as raised:
        client(gone).download_file_content("file-1", tmp_path / "out")
    assert raised.value.code == "file_deleted"
    assert list(tmp_path.iterdir()) == []
