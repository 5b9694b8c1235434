from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import write_cifar10, write_folder, write_idx_dataset, write_usps

from flower_scheduling.client.learning import datasets, mnist, torchvision_data
from flower_scheduling.client.learning.datasets import (
    DATASETS,
    check_folder,
    data_digest,
    load_data,
    load_spec,
    source_of,
)
from flower_scheduling.client.learning.images import MNIST_SPEC, ImageSpec
from flower_scheduling.errors import ConfigError, DataUnavailableError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Downloads that fail; a test that wants one puts it in place of this."""
    monkeypatch.setattr(
        torchvision_data, "download_dataset", lambda folder, name, words, report: "no network"
    )
    monkeypatch.setattr(torchvision_data, "_PACKAGED", Path("/nowhere"))


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "folder", "prefixes", "num_classes"),
    [
        ("fashion-mnist", "FashionMNIST", ("train", "t10k"), 10),
        ("kmnist", "KMNIST", ("train", "t10k"), 10),
        ("emnist", "EMNIST", ("emnist-balanced-train", "emnist-balanced-test"), 47),
    ],
)
def test_relatives_of_mnist_are_read_from_folders_of_their_own(
    tmp_path, name, folder, prefixes, num_classes
):
    write_idx_dataset(tmp_path, folder, prefixes, num_train=235, num_classes=num_classes)
    before = contents(tmp_path)
    data = load_data(name, tmp_path)
    assert data.train_images.shape == (235, 28, 28)
    assert data.train_images.dtype == torch.uint8
    assert data.train_labels.tolist() == [number % num_classes for number in range(235)]
    assert data.test_images.shape == (100, 28, 28)
    assert data.spec.num_classes == num_classes
    assert load_data(name, tmp_path) is data
    assert load_spec(name) == data.spec, "known without the files"
    assert contents(tmp_path) == before


def test_cifar10(tmp_path, monkeypatch):
    write_cifar10(tmp_path, monkeypatch)
    before = contents(tmp_path)
    data = load_data("cifar10", tmp_path)
    assert data.train_images.shape == (300, 3, 32, 32)
    assert data.train_images.is_contiguous()
    assert data.test_labels.shape == (60,)
    from torchvision.datasets import CIFAR10

    image, label = CIFAR10(tmp_path)[7]
    assert np.array_equal(np.asarray(image).transpose(2, 0, 1), data.train_images[7].numpy())
    assert data.train_labels[7] == label
    assert contents(tmp_path) == before


def test_any_other_data_set_of_torchvision_with_its_own_normalisation(tmp_path):
    write_usps(tmp_path)
    data = load_data("torchvision:USPS", tmp_path)
    assert data.train_images.shape == (120, 16, 16)
    assert data.spec.num_classes == 10
    scaled = data.spec.scale(data.train_images)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-3)
    assert float(scaled.std()) == pytest.approx(1, abs=1e-3)
    larger = load_data("torchvision:USPS:resize=20", tmp_path)
    assert larger.spec.shape == (20, 20)


def test_a_folder_of_images(tmp_path):
    write_folder(tmp_path)
    data = load_data("torchvision:ImageFolder", tmp_path)
    assert data.train_images.shape == (12, 3, 24, 24)
    assert sorted(set(data.test_labels.tolist())) == [0, 1, 2]
    assert data.spec.num_classes == 3
    shutil.rmtree(tmp_path / "test" / "class-2")
    with pytest.raises(ConfigError, match="its halves have other classes"):
        load_data("torchvision:ImageFolder:resize=8", tmp_path)


def test_images_that_differ_in_size_are_brought_to_one_if_asked(tmp_path):
    write_folder(tmp_path, sizes=(24, 30))
    with pytest.raises(ConfigError, match=r"24 x 24 and 30 x 30 pixels\): append resize=32"):
        load_data("torchvision:ImageFolder", tmp_path)
    data = load_data("torchvision:ImageFolder:resize=16", tmp_path)
    assert data.spec.shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("mnits", r"must be one of mnist, fashion-mnist, .* \(did you mean mnist\?\)"),
        ("torchvision:svhn", r"has no svhn \(did you mean SVHN\?\)"),
        ("torchvision:", "has no class without a name"),
        ("torchvision:FakeData", "has no training and test set of labelled images"),
        ("torchvision:EuroSAT", "has no training and test set of labelled images"),
        ("torchvision:EMNIST", "EMNIST needs :split=VALUE"),
        ("torchvision:SVHN:slit=x", "SVHN takes resize, not slit"),
        ("torchvision:SVHN:resize", "KEY=VALUE"),
        ("torchvision:SVHN:resize=big", "resize must be a number of pixels"),
    ],
)
def test_wrong_names_are_one_line(name, fault):
    with pytest.raises(ConfigError, match=fault) as caught:
        source_of(name)
    assert str(caught.value).startswith("dataset = ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [each for each in DATASETS if each != "mnist"])
def test_what_cannot_be_fetched_names_the_folder_and_the_files(tmp_path, name):
    with pytest.raises(DataUnavailableError) as caught:
        load_data(name, tmp_path)
    message = str(caught.value)
    source = DATASETS[name]
    assert message.startswith(f"{name} cannot be fetched (no network): ")
    assert "put train-images" in message or "put emnist" in message or "put data_batch_1" in message
    assert (f"install Debian's package dataset-{name}, or " in message) == bool(source.package)
    assert message.endswith(f" into {(tmp_path / source.files[0]).parent}")
    assert all(file.rpartition("/")[2] in message for file in source.files)
    assert "\n" not in message


def package(folder: Path, names: list[str] | None = None) -> None:
    """Make the folder of a Debian package of Fashion-MNIST, with all archives or some of them."""
    folder.mkdir(parents=True)
    for file in write_idx_dataset(folder.parent / "made", seed=1).iterdir():
        if names is None or file.name in names:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=1))


def test_the_package_of_the_system_has_fashion_mnist(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision_data, "_PACKAGED", tmp_path / "system")
    package(tmp_path / "system" / "fashion-mnist")
    before = contents(tmp_path / "system")
    data = load_data("fashion-mnist", tmp_path / "data")
    assert data.train_images.shape == (400, 28, 28)
    assert contents(tmp_path / "system") == before
    made = load_data("fashion-mnist", tmp_path / "system" / "made")
    assert data.digest() == made.digest()


def test_a_package_changes_no_file_and_leaves_the_rest_to_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision_data, "_PACKAGED", tmp_path / "system")
    package(tmp_path / "system" / "fashion-mnist", ["train-labels-idx1-ubyte"])
    raw = write_idx_dataset(tmp_path / "data")
    own = (raw / "train-images-idx3-ubyte").read_bytes()
    (raw / "train-labels-idx1-ubyte").unlink()
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataUnavailableError, match="put t10k-labels-idx1-ubyte into"):
        load_data("fashion-mnist", tmp_path / "data")
    assert (raw / "train-images-idx3-ubyte").read_bytes() == own
    assert (raw / "train-labels-idx1-ubyte").exists()


@pytest.mark.parametrize("keep", [5, 200])
def test_a_damaged_package_is_one_line(tmp_path, monkeypatch, keep):
    monkeypatch.setattr(torchvision_data, "_PACKAGED", tmp_path / "system")
    package(tmp_path / "system" / "fashion-mnist")
    archive = tmp_path / "system" / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataUnavailableError, match="install dataset-fashion-mnist again") as caught:
        load_data("fashion-mnist", tmp_path / "data")
    assert str(archive) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_classes_and_folders_of_images_say_what_is_missing(tmp_path):
    with pytest.raises(DataUnavailableError, match=r"expects them$"):
        load_data("torchvision:SVHN", tmp_path)
    with pytest.raises(DataUnavailableError, match=f"put them into {tmp_path / 'train'} and"):
        load_data("torchvision:ImageFolder", tmp_path)


def test_what_is_fetched_fills_the_gaps_and_changes_nothing(tmp_path, monkeypatch):
    raw = write_idx_dataset(tmp_path)
    before = contents(tmp_path)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    asked = []

    def download(folder, name, words, report):
        asked.append((name, words))
        write_idx_dataset(folder, name)
        return ""

    monkeypatch.setattr(torchvision_data, "download_dataset", download)
    load_data("fashion-mnist", tmp_path)
    assert asked == [("FashionMNIST", {"train": True}), ("FashionMNIST", {"train": False})]
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not list(tmp_path.glob(".partial-*"))


def test_a_file_that_differs_from_what_is_fetched_is_refused_and_stays(tmp_path, monkeypatch):
    raw = write_idx_dataset(tmp_path, seed=1)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    before = contents(tmp_path)

    def download(folder, name, words, report):
        write_idx_dataset(folder, name)
        return ""

    monkeypatch.setattr(torchvision_data, "download_dataset", download)
    with pytest.raises(DataUnavailableError, match="not a file of fashion-mnist as published"):
        load_data("fashion-mnist", tmp_path)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before


def test_archives_are_unpacked_if_they_are_the_published_ones(tmp_path, monkeypatch):
    from torchvision.datasets import KMNIST

    raw = write_idx_dataset(tmp_path, "KMNIST")
    sums = []
    for path in sorted(raw.iterdir()):
        packed = gzip.compress(path.read_bytes())
        path.with_name(f"{path.name}.gz").write_bytes(packed)
        path.unlink()
        sums.append((f"{path.name}.gz", hashlib.md5(packed).hexdigest()))
    with pytest.raises(DataUnavailableError, match=r"\.gz: not a file of kmnist as published"):
        load_data("kmnist", tmp_path)
    monkeypatch.setattr(KMNIST, "resources", sums)
    assert len(load_data("kmnist", tmp_path).train_labels) == 400


def test_damaged_files_are_named_and_stay(tmp_path, monkeypatch):
    raw = write_idx_dataset(tmp_path)
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    before = contents(tmp_path)
    with pytest.raises(DataUnavailableError, match=f"^{path}: not a file of fashion-mnist"):
        load_data("fashion-mnist", tmp_path)
    folder = write_cifar10(tmp_path)  # checksums are not torchvision's
    with pytest.raises(DataUnavailableError, match="data_batch_1: not a file of cifar10"):
        load_data("cifar10", tmp_path)
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    assert (folder / "data_batch_1").exists()


def test_files_of_mnist_in_anothers_folder_are_known(tmp_path, monkeypatch):
    raw = write_idx_dataset(tmp_path)
    labels = (raw / "train-labels-idx1-ubyte").read_bytes()
    monkeypatch.setattr(mnist, "DIGESTS", {hashlib.sha256(labels).hexdigest()})
    with pytest.raises(DataUnavailableError, match="it is MNIST's"):
        load_data("fashion-mnist", tmp_path)


def test_labels_beyond_the_classes_are_refused(tmp_path):
    write_idx_dataset(tmp_path, "KMNIST", num_classes=12)
    with pytest.raises(DataUnavailableError, match="labels from 0 to 11, for 10 classes"):
        load_data("kmnist", tmp_path)


def test_a_digest_tells_data_of_one_name_apart(tmp_path):
    write_idx_dataset(tmp_path / "a")
    write_idx_dataset(tmp_path / "b")
    write_idx_dataset(tmp_path / "c", seed=1)
    one, same, other = (data_digest("fashion-mnist", tmp_path / each) for each in "abc")
    assert one == same != other
    assert data_digest("mnist") == "", "its files are checked when they are read"


def test_the_scaling_of_a_spec():
    images = torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8)  # two channels of one pixel
    spec = ImageSpec(2, 1, 1, 10, (0.5, 0.0), (0.5, 2.0))
    assert spec.scale(images).flatten().tolist() == [-1.0, 0.5]
    mean, std = spec.flat_normalisation()
    assert (mean.tolist(), std.tolist()) == ([0.5, 0.0], [0.5, 2.0])
    assert MNIST_SPEC.flat_normalisation() is None
    assert spec.scale(spec.scale(images)) is not None


def test_a_data_folder_that_can_hold_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataUnavailableError, match="choose a writable folder"):
        check_folder(str(tmp_path / "file"))
    check_folder(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_data_folder_that_cannot_be_written_must_have_a_folder_in_it(tmp_path, monkeypatch):
    def locked(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("flower_scheduling.client.learning.datasets.tempfile.TemporaryFile", locked)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataUnavailableError, match="Permission denied"):
        check_folder(str(tmp_path))
    (tmp_path / "MNIST").mkdir()
    check_folder(str(tmp_path))


def test_names_that_are_known_need_no_torchvision():
    code = (
        "import sys; from flower_scheduling.client.learning import datasets;"
        "datasets.load_spec('cifar10'); print('torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_download_in_a_process_of_its_own_returns_its_fault(tmp_path, monkeypatch):
    from flower_scheduling.client.learning import mirrors

    lines: list[str] = []
    program = [sys.executable, "-c", "print('<urlopen error>')"]
    monkeypatch.setattr(mirrors, "_PROGRAM", program)
    fault = mirrors.download_dataset(tmp_path, "KMNIST", {"train": True}, lines.append)
    assert fault == "<urlopen error>"
    assert lines == ["KMNIST: fetching it as torchvision does", "KMNIST: <urlopen error>"]
    assert datasets.DEFAULT_DATASET == "mnist"
