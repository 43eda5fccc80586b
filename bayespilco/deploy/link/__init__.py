"""A plant behind a wire: UDP or a serial line, with packets that come late, twice, in the wrong order, or never.

    plant = RemotePlant(Udp("192.168.0.7", 9000), dt=0.05)
    recording = Rig(plant).run(controller, dt=0.05, steps=100)

The device has the clock. It sends one sample per sampling period, with a number, and holds the last action. A sample
that comes twice or too late is not used; one that does not come is missing. Messages are lines of text, so that a
microcontroller can print them and a person can read them (`messages`).

To read it, go down this list:

    messages      what is sent: samples, actions, homing, a check sum
    transports    UDP, or a serial line
    driver        `RemotePlant`, the plant for a `Rig`
    simulator     the other side, to try all this with: a simulated plant as a program of its own
"""

from bayespilco.deploy.link.driver import RemotePlant
from bayespilco.deploy.link.messages import Message, decode, encode
from bayespilco.deploy.link.transports import Serial, Transport, Udp

__all__ = ["Message", "RemotePlant", "Serial", "Transport", "Udp", "decode", "encode"]
