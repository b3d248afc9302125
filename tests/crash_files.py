"""Scenes of files for the kill matrix: a file that is answered is there as it was sent, one that is gone takes its bytes along."""

from __future__ import annotations

from crash_stage import Scene
from mesh import until

__all__ = ["FileScenes"]


class FileScenes(Scene):
    """Each public method named in crash_cases.py is a scene."""

    def upload(self, size: int = 1) -> str:
        """A file that is answered is there, as it was sent."""
        content = (f"{self.name}\n" * size).encode()
        self.arm()
        form = {"data": {"purpose": "user_data"}, "files": {"file": (self.name, content)}}
        answer = self.mesh.ask("POST", "/v1/files", **form)
        assert answer.status_code == 200, answer.text
        self.died()
        assert self.content(answer.json()["id"]) == content
        return str(answer.json()["id"])

    def large_upload(self) -> None:
        """A file that is too large for the gateway to send it twice: the client does."""
        self.upload(200_000)

    def announced(self, parts: list[bytes]) -> tuple[str, list[str]]:
        """Announce an upload and send its parts."""
        body = {"filename": "parts", "purpose": "user_data", "bytes": sum(map(len, parts)), "mime_type": "text/plain"}
        upload = self.mesh.ask("POST", "/v1/uploads", json=body).json()["id"]
        sent = [self.mesh.ask("POST", f"/v1/uploads/{upload}/parts", files={"data": ("part", part)}) for part in parts]
        return upload, [part.json()["id"] for part in sent]

    def parts(self) -> None:
        """A file that comes in parts is there whole, and its parts go."""
        pieces = [f"{self.name} {n}\n".encode() * 1_000 for n in range(3)]
        self.arm()
        upload, parts = self.announced(pieces)
        answer = self.mesh.ask("POST", f"/v1/uploads/{upload}/complete", json={"part_ids": parts})
        assert answer.status_code == 200, answer.text
        self.died()
        assert self.content(answer.json()["file"]["id"]) == b"".join(pieces)
        self.no_parts(parts)

    def cancel_parts(self) -> None:
        """An upload that is cancelled keeps nothing."""
        upload, parts = self.announced([b"one\n", b"two\n"])
        self.arm()
        assert self.mesh.ask("POST", f"/v1/uploads/{upload}/cancel").json()["status"] == "cancelled"
        self.died()
        self.no_parts(parts)

    def no_parts(self, parts: list[str]) -> None:
        """Assert that the bytes of parts go."""
        until("the parts are gone", lambda: not any(self.stage.blob(part).exists() for part in parts))
        until("their records are gone", lambda: not self.stage.sql("files", "select id from parts"))

    def delete(self) -> None:
        """A file that is deleted is gone, its bytes as well."""
        form = {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"a")}}
        file_id = self.mesh.ask("POST", "/v1/files", **form).json()["id"]
        self.arm()
        assert self.mesh.ask("DELETE", f"/v1/files/{file_id}").json()["deleted"] is True
        self.died()
        assert self.content(file_id) in (404, 410)
        until("the bytes are gone", lambda: not self.stage.blob(f"input-{file_id}").exists())

    def expired_file(self) -> None:
        """A file whose time has come is gone, its bytes as well."""
        form = {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"a")}}
        file_id = self.mesh.ask("POST", "/v1/files", **form).json()["id"]
        self.stage.sql("files", f"update files set expires_at = 1 where id = '{file_id}'")  # noqa: S608 - our own id
        self.arm()
        self.mesh.kill("files")
        self.died()
        assert self.content(file_id) in (404, 410)
        until("the bytes are gone", lambda: not self.stage.blob(f"input-{file_id}").exists())

    def orphans(self) -> None:
        """Blobs without a record go after the grace period."""
        orphans = [self.stage.blob(f"input-{self.name.replace(':', '-')}-{n}") for n in range(2)]
        for orphan in orphans:
            orphan.parent.mkdir(exist_ok=True)
            orphan.write_bytes(b"x")
            self.stage.age(orphan)
        self.arm()
        self.mesh.kill("files")
        self.died()
        until("the orphans are gone", lambda: not any(orphan.exists() for orphan in orphans))

    def old_journals(self) -> None:
        """Journals of batches that are over go after a day."""
        journals = [self.mesh.data / "incremental" / f"batch_old{n}.jsonl" for n in range(2)]
        for journal in journals:
            journal.parent.mkdir(exist_ok=True)
            journal.write_bytes(b"x\n")
            self.stage.age(journal)
        self.arm()
        self.mesh.kill("scheduler")
        self.died()
        until("the journals are gone", lambda: not any(journal.exists() for journal in journals))
