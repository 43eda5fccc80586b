"""A real plant: what it has to offer, and a loop that keeps its sampling period, records it, and ends safely.

    rig = Rig(plant, low=[-0.5, -inf], high=[0.5, inf])
    recording = rig.run(controller, dt=0.05, steps=100)

An episode may end after its last step, at a limit, late, by an error, or because the user pressed Ctrl-C. In every case
zero (or the agent's rest action) is sent to the actuators, and what was recorded until then is kept. Like
`deploy.controller`, this needs NumPy only. To learn on a plant, make its rig the `plant` of a `Task`.

To read it, go down this list:

    protocols    what a plant and an agent have to offer
    agents       the range of an agent's actions, and random actions
    pacing       the clock, and a plant that keeps a sampling period
    permission   a certificate that has to be a GO
    recording    what happened in an episode, and why it ended
    signals      how an episode ends before its process does
    threads      calls that can be given up
    stopping     how the rest action reaches the actuators
    watch        what is checked of every sample
    loop         `Rig`, which puts these together
"""

from bayespilco.deploy.rig.agents import ActionRange, RandomAgent
from bayespilco.deploy.rig.loop import Rig
from bayespilco.deploy.rig.pacing import Paced, sleep_until
from bayespilco.deploy.rig.protocols import Agent, Plant
from bayespilco.deploy.rig.recording import OVERRUN, Ended, PlantStopped, Recording, Stop, Timing
from bayespilco.deploy.rig.signals import end_episodes, signals_end_episodes
from bayespilco.deploy.rig.stopping import PATIENCE, PAUSE

__all__ = [
    "OVERRUN",
    "PATIENCE",
    "PAUSE",
    "ActionRange",
    "Agent",
    "Ended",
    "Paced",
    "Plant",
    "PlantStopped",
    "RandomAgent",
    "Recording",
    "Rig",
    "Stop",
    "Timing",
    "end_episodes",
    "signals_end_episodes",
    "sleep_until",
]
