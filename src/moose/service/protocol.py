"""HTTP as uvicorn speaks it with httptools, with a limit on what comes before the body.

The parser itself has none: whoever never ends a header would fill the memory.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers, or of what follows a body in chunks."""


class LimitedProtocol(HttpToolsProtocol):
    """Closes the connection when so many bytes have come to nothing."""

    _pending = 0

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._pending += len(data)
        super().data_received(data)
        if self._pending > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"at most {LARGEST_HEAD} bytes of headers")

    def on_headers_complete(self) -> None:
        """The parser has come to the end of the headers."""
        self._pending = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser has a piece of the body."""
        self._pending = 0
        super().on_body(body)
