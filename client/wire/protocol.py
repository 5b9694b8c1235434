"""The names of records and their keys in Flower's messages, on which both ends agree."""

from __future__ import annotations

from typing import Final

# Records.
ARRAYS: Final = "arrays"  # ArrayRecord of the model, in requests and replies (Flower's default)
METRICS: Final = "metrics"  # the one MetricRecord of a reply (Flower's default)
CONFIG: Final = "config"  # ConfigRecord of a request (Flower's default)
# A client's own timings. A ConfigRecord: Flower requires exactly one MetricRecord in a reply.
TIMING: Final = "timing"
# ConfigRecord of what the scheduler asks in a request, apart from CONFIG, whose keys are the app's;
# in a reply, of what the client has done of it.
REQUEST: Final = "scheduling"
CLIENT_INFO: Final = "client-info"  # ConfigRecord in the reply to a query

# Code of an error in place of a reply beyond a bound; Flower's own are small numbers.
OVERSIZED_CODE: Final = 100

# Keys of METRICS.
NUM_EXAMPLES: Final = "num-examples"  # int, size s_k of the local data set: the aggregation weight
TRAIN_LOSS: Final = "train-loss"  # float, mean minibatch loss of the local update
# Float in [0, 1], the received model's accuracy on the client's own data; sent on REPORT alone.
LOCAL_ACCURACY: Final = "local-accuracy"
EVAL_LOSS: Final = "eval-loss"  # float, loss on the client's own data, in replies to evaluate
EVAL_ACCURACY: Final = "eval-accuracy"  # float in [0, 1], in replies to evaluate

# Keys of CONFIG.
SERVER_ROUND: Final = "server-round"  # int, number of the round, set by Flower's strategies
PROXIMAL_MU: Final = "proximal-mu"  # float, weight of the proximal term, set by Flower's FedProx
DATA_DIGEST: Final = "data-digest"  # str, digest of the server's data set; absent: not compared

# Keys of REQUEST.
REPORT: Final = "report"  # str, further metrics that the server asks for, space separated
REPEAT: Final = "repeat"  # int, how often the client was asked before in this step; absent: never
# Int >= 1, local steps that are asked for; in a reply, how many were made; absent: the app's own.
LOCAL_STEPS: Final = "local-steps"
BASE_STEPS: Final = "base-steps"  # int >= 1, what LOCAL_STEPS is for a client of ordinary speed

# Keys of TIMING.
COMPUTE_S: Final = "compute-s"  # float, time of the local update on the client's clock [s]
CODEC_S: Final = "codec-s"  # float, time to take the model from a message and put it into one [s]
LINK_S: Final = "link-s"  # float, emulated link time, download plus upload [s]

# Keys of CLIENT_INFO; NUM_EXAMPLES is another.
NAME: Final = "name"  # str, the client's name
LABEL_COUNTS: Final = "label-counts"  # list of int, examples per label; optional
