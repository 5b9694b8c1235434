"""What grids share: those that stand in front of another one, and those of our own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flower_scheduling._flwr import NodeInfo, Run, new_run, take_identity
from flower_scheduling.errors import TooFewClientsError

_MAX_LOOKS = 20  # Flower's sample_nodes looks once a second for nodes that are missing (flwr 1.42)


class GridWrapper(Grid):
    """Pass every call on to the wrapped grid; subclasses override what they change."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Run of the wrapped grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message as the wrapped grid does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the wrapped grid."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes of the wrapped grid."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push through the wrapped grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull through the wrapped grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and receive through the wrapped grid."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class SelectedNodesGrid(GridWrapper):
    """Show only some nodes, so that a wrapped strategy "samples" exactly the super arm.

    Parameters
    ----------
    grid : Grid
        The grid.
    node_ids : sequence of int
        Nodes that it shows.
    """

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of these nodes.

        Raises
        ------
        TooFewClientsError
            If it is asked again and again: the strategy waits for nodes that cannot come.
        """
        self._looks += 1
        if self._looks > _MAX_LOOKS:
            raise TooFewClientsError(
                f"it waits for more than the {len(self._node_ids)} clients that were selected: "
                "lower its minimum number of clients, or raise num_selected"
            )
        return list(self._node_ids)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the selected nodes."""
        selected = set(self._node_ids)
        return [node for node in self._grid.get_nodes() if node.node_id in selected]


class OwnGrid(Grid):
    """What our own grids do alike: hold the run, create messages.

    Parameters
    ----------
    run_id : int
        Flower's run id.
    """

    def __init__(self, run_id: int) -> None:
        self._run = new_run(run_id)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """Run information."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def _take_identity(self) -> None:
        """Let the messages that a ServerApp creates carry this run."""
        take_identity(self._run.run_id)
