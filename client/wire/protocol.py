"""Record names and keys that server and client agree on; the one file both ends import."""

from __future__ import annotations

from typing import Final

ARRAYS: Final = "arrays"
"""Name of the ArrayRecord that carries the model, in requests and replies (Flower's default)."""
METRICS: Final = "metrics"
"""Name of the one MetricRecord of a reply (Flower's default)."""
CONFIG: Final = "config"
"""Name of the ConfigRecord of a request (Flower's default)."""
TIMING: Final = "timing"
"""Name of the ConfigRecord that carries a client's own timings.

A ConfigRecord, because Flower requires exactly one MetricRecord per reply.
"""
CLIENT_INFO: Final = "client-info"
"""Name of the ConfigRecord in the reply to a query."""

NUM_EXAMPLES: Final = "num-examples"
"""Size s_k of the client's local data set (MetricRecord, int): the aggregation weight."""
TRAIN_LOSS: Final = "train-loss"
"""Mean minibatch loss of the local update (MetricRecord, float)."""
LOCAL_ACCURACY: Final = "local-accuracy"
"""Accuracy of the received model on the client's own data (MetricRecord, float in [0, 1]).

Sent only when asked for by :data:`REPORT`.
"""
EVAL_LOSS: Final = "eval-loss"
"""Loss on the client's own data (MetricRecord, float), in replies to evaluate."""
EVAL_ACCURACY: Final = "eval-accuracy"
"""Accuracy on the client's own data (MetricRecord, float in [0, 1]), in replies to evaluate."""

SERVER_ROUND: Final = "server-round"
"""Round number, set by Flower's strategies (request ConfigRecord, int)."""
PROXIMAL_MU: Final = "proximal-mu"
"""Weight of FedProx's proximal term, set by Flower's FedProx (request ConfigRecord, float)."""
REPORT: Final = "report"
"""What else the server wants to know, space separated (request ConfigRecord, str)."""

COMPUTE_S: Final = "compute-s"
"""Time of the local update on the client's clock [s] (TIMING, float)."""
LINK_S: Final = "link-s"
"""Emulated link time, download plus upload [s] (TIMING, float)."""

NAME: Final = "name"
"""The client's name (CLIENT_INFO, str)."""
LABEL_COUNTS: Final = "label-counts"
"""Examples per label (CLIENT_INFO, list of int, optional)."""
