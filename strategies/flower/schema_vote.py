"""Majority schema: which names of records and metrics the replies of a round may use."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .replies import Signature


class SchemaVote:
    """Find the names of records and metrics that most clients use.

    Flower's strategies stop the run when replies of a round differ in them. Each client has one
    vote, for what it used last, and keeps it while others train: one client with names of its own,
    be it the first or alone in most rounds, cannot shut the others out.
    """

    def __init__(self) -> None:
        self._votes: dict[int, str] = {}  # arm -> digest: signatures may be as long as clients like

    def agree(self, signatures: Mapping[int, Signature]) -> set[int]:
        """Return the arms whose reply may be used together.

        Parameters
        ----------
        signatures : mapping of int to Signature
            By arm, those of this round's replies.

        Returns
        -------
        set of int
            The arms with the names that most clients use, among those of this round. Of names
            with equally many, those of the arm that comes first.
        """
        now = {arm: _digest(signature) for arm, signature in signatures.items()}
        self._votes |= now
        votes = Counter(self._votes.values())
        best = max((now[arm] for arm in sorted(now)), key=lambda names: votes[names], default=None)
        return {arm for arm, names in now.items() if names == best}

    def state(self) -> list[list[Any]]:
        """Return the votes, ready for JSON."""
        return [[arm, names] for arm, names in self._votes.items()]

    def load_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Go on where :meth:`state` left off."""
        self._votes = {arm: names for arm, names in state}


def _digest(signature: Signature) -> str:
    arrays, metrics, keys = signature
    return hashlib.sha256(repr((arrays, metrics, sorted(keys))).encode()).hexdigest()[:32]
