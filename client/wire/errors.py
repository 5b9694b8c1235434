"""Errors of the client whose text is one line for the user."""


class ClientConfigError(ValueError):
    """A client was configured wrongly."""


class CertificateTimeError(ConnectionError):
    """A certificate is not valid at this time; unlike a wrong setting that may pass by itself.

    A device without a clock of its own believes to be in the past until it hears of the time.
    """


class MnistUnavailableError(RuntimeError):
    """MNIST is neither in the cache folder nor to be had; the text says what to do."""


class ConnectionRefused(Exception):
    """The server does not take this client; the text is one line for the user.

    Attributes
    ----------
    code : str
        One of :class:`.Refusal`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
