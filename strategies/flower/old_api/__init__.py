"""Schedule what was written for Flower's old API: strategies of ``flwr.server`` and workflows."""
