"""What several test files share."""

from __future__ import annotations

import pytest

from flower_scheduling.client.learning.mnist import MnistData, load_mnist


@pytest.fixture(scope="session")
def mnist() -> MnistData:
    """The real data set; fetched on a machine's first run."""
    return load_mnist()
