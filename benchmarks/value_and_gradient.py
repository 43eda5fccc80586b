"""How long one value and gradient of the predicted total cost takes: `python benchmarks/value_and_gradient.py`.

The size of the paper's problem: 60 steps, 4 states with one angle, a policy with 100 centroids, and a model with 60 to
660 points. The first part of `bayespilco bench`. Not a test: times depend on the machine.
"""

from bayespilco.console import bench_row
from bayespilco.experiments.bench import SIZES, measure_all

print(bench_row())
for figures in measure_all(SIZES):
    print(bench_row(figures), flush=True)
