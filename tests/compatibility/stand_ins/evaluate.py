"""Stand-in for Hugging Face's evaluate, whose metrics are fetched from the network."""


class _Accuracy:
    def __init__(self):
        self.right = self.seen = 0

    def add_batch(self, predictions, references):
        self.right += int((predictions == references).sum())
        self.seen += len(references)

    def compute(self):
        return {"accuracy": self.right / self.seen}


def load(name):
    """Return the one metric that there is."""
    assert name == "accuracy"
    return _Accuracy()
