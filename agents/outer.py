"""The outer optimiser: what an island makes of the mean that an exchange brings.

The step from where the island stood after the last exchange to the mean is taken as a gradient's opposite, and goes
through stochastic gradient descent with Nesterov momentum (as DiLoCo does). A learning rate of 1 without momentum is
plain averaging.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]


@dataclass(frozen=True)
class OuterSettings:
    """`learning_rate` above 0; `momentum` from 0 to less than 1."""

    learning_rate: float = 1.0
    momentum: float = 0.0


class OuterOptimiser:
    """The outer parameters of an island, and their velocity."""

    def __init__(self, settings: OuterSettings, initial: Wide) -> None:
        self._settings = settings
        self._parameters = initial
        self._velocity = np.zeros_like(initial)

    def step(self, mean: Wide) -> Wide:
        """Where to go on from after an exchange that brought `mean`."""
        rate, momentum = self._settings.learning_rate, self._settings.momentum
        if (rate, momentum) == (1.0, 0.0):
            return mean  # to the bit: the sums below would round
        gradient = self._parameters - mean
        self._velocity = momentum * self._velocity + gradient
        self._parameters = self._parameters - rate * (gradient + momentum * self._velocity)
        return self._parameters
