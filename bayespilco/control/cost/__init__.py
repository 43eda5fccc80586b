"""Costs: what is to be avoided, as a function of state and action.

A cost is a number per step. It is written on features `y` of the joint `a = [x, u]` of state and action: some
components as they are, and the sine and cosine of angles. The features select by index, so a cost that reads only
states works on `[x]` and on `[x, u]` alike. Every cost offers the same (`Cost`): its value, its moments under a
Gaussian and under a distribution over beliefs, the most it can be, and what "at the goal" means.

    base         the interface; costs of features; a weighted sum of costs, which is a cost
    saturating   1 - exp(-d'Wd/2): the paper's cost
    quadratic    d'Wd, and linear: a'(y - b)
    hinge        outside of an interval, proportional to the distance
    build        costs in words: distance, tracking, effort, smoothness, limits
    between      the covariance of two costs: of the parts of a sum, of two steps, within a belief

Registered in `COSTS` by name. A cost is plain data: its name and its fields rebuild it.
"""

from bayespilco.control.cost.base import COSTS as COSTS
from bayespilco.control.cost.base import Cost as Cost
from bayespilco.control.cost.base import FeatureCost as FeatureCost
from bayespilco.control.cost.base import SumOfCosts as SumOfCosts
from bayespilco.control.cost.base import cost_covariance as cost_covariance
from bayespilco.control.cost.base import reindexed as reindexed
from bayespilco.control.cost.build import distance as distance
from bayespilco.control.cost.build import effort as effort
from bayespilco.control.cost.build import limits as limits
from bayespilco.control.cost.build import smoothness as smoothness
from bayespilco.control.cost.build import tracking as tracking
from bayespilco.control.cost.hinge import HingeCost as HingeCost
from bayespilco.control.cost.quadratic import LinearCost as LinearCost
from bayespilco.control.cost.quadratic import QuadraticCost as QuadraticCost
from bayespilco.control.cost.saturating import SaturatingCost as SaturatingCost
