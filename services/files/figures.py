"""What the Files service counts."""

from __future__ import annotations

from haywain.metrics import counter

__all__ = ["DOWNLOADED", "UPLOADED"]

UPLOADED = counter("haywain_file_uploaded_bytes", "Bytes of files and parts that were stored.")
DOWNLOADED = counter("haywain_file_downloaded_bytes", "Bytes of files that were read.")
