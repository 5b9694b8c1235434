"""All of Flower's old API that we touch; no other module does (flwr 1.39 to 1.42).

Clients import :mod:`._flwr`, and nothing of this.
"""

from __future__ import annotations

from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, Status
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
)
from flwr.server import ClientManager, History, LegacyContext, Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.criterion import Criterion
from flwr.server.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    DPFedAvgAdaptive,
    DPFedAvgFixed,
    FedXgbBagging,
    FedXgbCyclic,
    FedXgbNnAvg,
    Krum,
    Strategy,
)

__all__ = [
    "PRIVACY",
    "TREES",
    "Bulyan",
    "ClientManager",
    "ClientProxy",
    "Code",
    "Criterion",
    "EvaluateIns",
    "EvaluateRes",
    "FitIns",
    "FitRes",
    "GridClientProxy",
    "History",
    "Krum",
    "LegacyContext",
    "Parameters",
    "Scalar",
    "Server",
    "SimpleClientManager",
    "Status",
    "Strategy",
    "evaluateins_to_recorddict",
    "fitins_to_recorddict",
    "recorddict_to_evaluateres",
    "recorddict_to_fitres",
]

TREES = (FedXgbBagging, FedXgbCyclic, FedXgbNnAvg)
"""Strategies whose model is an ensemble of trees."""
PRIVACY = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    DPFedAvgAdaptive,
    DPFedAvgFixed,
)
"""Strategies that promise differential privacy."""
