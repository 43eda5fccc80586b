"""Promises with numbers: what a policy will do, whether the model deserves to be believed, and what came of it.

To read it: `bounds` (a probability from counts), `calibration` (ranks, coverage, wider bands), `innovations` (a model
against data that it has not seen), `promises` (runs on sampled plants), `certificate` (GO or NO GO), `sensors` (what a
better sensor would be worth).
"""

from bayespilco.trust.bounds import Share as Share
from bayespilco.trust.bounds import clopper_pearson as clopper_pearson
from bayespilco.trust.calibration import calibration_curve as calibration_curve
from bayespilco.trust.calibration import coverage as coverage
from bayespilco.trust.certificate import Certificate as Certificate
from bayespilco.trust.certificate import certify as certify
from bayespilco.trust.sensors import NewSensor as NewSensor
from bayespilco.trust.sensors import sensor_worths as sensor_worths
