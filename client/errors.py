"""Errors of the client whose text is one line for the user."""


class ClientConfigError(ValueError):
    """A client was configured wrongly."""


class MnistUnavailableError(RuntimeError):
    """MNIST is neither in the cache folder nor to be had; the text says what to do."""
