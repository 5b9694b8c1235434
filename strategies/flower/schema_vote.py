"""Majority schema: which names of records and metrics the replies of a round may use."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
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
        self._counts: Counter[str] = Counter()  # of votes for each digest
        self._state: dict[str, str] | None = None
        self._digests: dict[Signature, str] = {}  # of the last round alone

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
        digests: dict[Signature, str] = {}
        for signature in set(signatures.values()):
            digests[signature] = self._digests.get(signature) or _digest(signature)
        self._digests = digests
        now = {arm: digests[signature] for arm, signature in signatures.items()}
        for arm, names in now.items():
            self._vote(arm, names)
        votes = self._counts
        best = max((now[arm] for arm in sorted(now)), key=lambda names: votes[names], default=None)
        return {arm for arm, names in now.items() if names == best}

    def state(self) -> dict[str, str]:
        """Return the votes, ready for JSON: by digest of the names, the arms that use them."""
        if self._state is None:
            arms: dict[str, list[str]] = {}
            for arm, names in self._votes.items():
                arms.setdefault(names, []).append(str(arm))
            self._state = {names: " ".join(found) for names, found in arms.items()}
        return dict(self._state)

    def load_state(self, state: Mapping[str, str] | Sequence[Sequence[Any]]) -> None:
        """Go on where :meth:`state` left off; earlier versions have a pair for each arm."""
        self._votes, self._counts, self._state = {}, Counter(), None
        if isinstance(state, Mapping):
            for names, arms in state.items():
                for arm in arms.split():
                    self._vote(int(arm), names)
            return
        for pair in state:
            self._vote(*pair)

    def _vote(self, arm: int, names: str) -> None:
        if (before := self._votes.get(arm)) == names:
            return
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._votes[arm] = names
        self._counts[names] += 1
        self._state = None


def _digest(signature: Signature) -> str:
    arrays, metrics, keys = signature
    return hashlib.sha256(repr((arrays, metrics, sorted(keys))).encode()).hexdigest()[:32]
