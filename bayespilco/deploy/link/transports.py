"""How lines get from here to there: UDP, one line per packet; or a serial line, such as `/dev/ttyUSB0`."""

import os
import select
import socket
from pathlib import Path
from typing import Protocol, runtime_checkable

LONGEST = 4096
"""In bytes. A line that is longer is not one of ours."""


@runtime_checkable
class Transport(Protocol):
    """A line to the other side. Nothing is promised: lines may be lost, come twice, or in another order."""

    def write(self, line: bytes) -> None: ...
    def read(self, timeout: float) -> bytes | None:
        """The next line, if one comes in time."""

    def close(self) -> None: ...


class Udp:
    """Lines as packets to and from one address. Packets from elsewhere are not read."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, port))

    def write(self, line: bytes) -> None:
        self.socket.send(line)

    def read(self, timeout: float) -> bytes | None:
        ready, _, _ = select.select([self.socket], [], [], max(0.0, timeout))
        if not ready:
            return None
        try:
            return self.socket.recv(LONGEST)
        except ConnectionRefusedError:  # nobody is there, which may change
            return b""

    def close(self) -> None:
        self.socket.close()


class Serial:
    """Lines on a serial port, raw, with 8 bits. (On Linux and macOS; set another speed with `stty`.)"""

    def __init__(self, path: Path | str) -> None:
        import tty

        self.descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        tty.setraw(self.descriptor)
        self.buffer = b""

    def write(self, line: bytes) -> None:
        while line:
            _, ready, _ = select.select([], [self.descriptor], [], 1.0)
            if not ready:
                raise TimeoutError("the serial line takes nothing")
            line = line[os.write(self.descriptor, line) :]

    def read(self, timeout: float) -> bytes | None:
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, timeout))
            if not ready:
                return None
            try:
                more = os.read(self.descriptor, LONGEST)
            except BlockingIOError:
                continue
            if not more:
                raise OSError("the serial line is closed")
            self.buffer = (self.buffer + more)[-2 * LONGEST :]
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def close(self) -> None:
        os.close(self.descriptor)
