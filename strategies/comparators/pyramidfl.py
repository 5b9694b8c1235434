"""PyramidFL: Oort's choice of clients, as its authors set it."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ..policy_spec import PolicySpec
from .oort import Oort


class PyramidFl(Oort):
    """The choice of clients in PyramidFL, of Li, Zeng, Zhang and Cao.

    "PyramidFL: A Fine-grained Client Selection Framework for Efficient Federated Learning", MobiCom
    2022, as in the authors' code (github.com/liecn/PyramidFL), the text of the paper not being at
    hand. The server selects by the utility of :class:`.Oort`, with other constants: the part
    epsilon of the places for clients never tried is multiplied by 0.95 in each round, U is cut at
    its 98 % quantile, a client is in the draw with 0.7 of the utility of the last that would be in,
    and T is the 10 % quantile of the times.

    Different here: as in :class:`.Oort`. As there, 1.3 N clients are asked, which the code calls
    ``overcommit``.

    Left out, besides what :class:`.Oort` leaves out:

    - What clients do once they are selected: those that would be done before the slowest of the
      round train for more steps, and the lower a client ranks by the norm of its update, the more
      of the update it leaves out. The steps act on the choice through U alone, which counts the
      examples that a client was trained on: here all train on equally many.
    - The norm of the update as a utility: the code ranks by it and does not select by it.

    Parameters
    ----------
    time_penalty : float, >= 0
        alpha, 2 in the code.
    preferred_percentile : float, in (0, 100]
        Which percentile of the times T is, 10 in the code.
    **parameters
        Those of :class:`.SchedulingPolicy`.

    Raises
    ------
    ConfigError
        If a parameter has the wrong type or is out of range.
    """

    name: ClassVar[str] = "pyramidfl"
    _exploration_decay: ClassVar[float] = 0.95
    _clip_quantile: ClassVar[float] = 0.98
    _cutoff: ClassVar[float] = 0.7

    def __init__(
        self, *, time_penalty: float = 2.0, preferred_percentile: float = 10.0, **parameters: Any
    ) -> None:
        super().__init__(
            time_penalty=time_penalty, preferred_percentile=preferred_percentile, **parameters
        )


SPEC: Final = PolicySpec.of(
    PyramidFl, summary="loss and time as in Oort, with other constants (Li et al., 2022)"
)
