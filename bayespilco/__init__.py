from bayespilco.gaussian import Gaussian as Gaussian, Moments as Moments
from bayespilco.gp import GaussianProcess as GaussianProcess
from bayespilco import moments as moments
