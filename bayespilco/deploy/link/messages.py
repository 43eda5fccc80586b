"""What is sent, as lines of text:

    h 3*5b                       home: episode 3 begins
    a 3 17 0.25*4e               the action that answers sample 17 of episode 3
    z 3 18 0.0312 nan*6f         sample 18 of episode 3

The number behind the star is the exclusive or of all bytes before it, in hexadecimal. A line that does not fit is not a
message: it is dropped like a lost one.
"""

from dataclasses import dataclass
from functools import reduce

KINDS = ("h", "a", "z")


@dataclass(frozen=True)
class Message:
    kind: str
    """`h`, `a` or `z`."""
    episode: int
    number: int = 0
    """Of the sample."""
    values: tuple[float, ...] = ()


def encode(message: Message) -> bytes:
    """A message as a line, its numbers to the last digit."""
    words = [message.kind, str(message.episode)]
    if message.kind != "h":
        words += [str(message.number), *(repr(float(value)) for value in message.values)]
    text = " ".join(words).encode()
    return text + f"*{_check(text):02x}\n".encode()


def decode(line: bytes) -> Message | None:
    """The message in a line; None if it is damaged."""
    text, star, check = line.strip().rpartition(b"*")
    try:
        if not star or check != f"{_check(text):02x}".encode():
            return None
        kind, episode, *rest = text.decode("ascii").split()
        if kind not in KINDS:
            return None
        number = int(rest[0]) if rest else 0
        return Message(kind, int(episode), number, tuple(float(word) for word in rest[1:]))
    except ValueError:
        return None


def _check(text: bytes) -> int:
    return reduce(lambda check, byte: check ^ byte, text, 0)
