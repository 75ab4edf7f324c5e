import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.tasks import SHIPPED, breast_cancer, digits, named
from fedgc.training.tasks.shipped import numbers, split


def test_shipped_tables_equal_scikit_learn_tables():
    theirs = load_digits()
    np.testing.assert_array_equal(digits.read().inputs[:, 0], np.float32(theirs.images / 16))
    np.testing.assert_array_equal(digits.read().labels, theirs.target)
    theirs = load_breast_cancer()
    np.testing.assert_array_equal(numbers("breast_cancer", heads=1)[:, :-1], theirs.data)
    np.testing.assert_array_equal(breast_cancer.read().labels, theirs.target)
    assert breast_cancer.read().inputs.std(axis=0) == pytest.approx(np.ones(30), rel=1e-5)


def test_shipped_task_needs_only_torch_and_numpy():
    code = (
        "import sys\nfrom fedgc.config import RunConfig\nfrom fedgc.training.tasks import SHIPPED, named\n"
        "for name in SHIPPED:\n    task = named(name, RunConfig())\n    task.load(next(iter(task.sizes())))\n"
        "print(sorted(set(sys.modules) & {'sklearn', 'scipy', 'pandas', 'torch'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "['torch']", said.stderr


@pytest.mark.parametrize("name", SHIPPED)
def test_chunk_matches_task_and_first_loss_is_random_guess(name):
    task = named(name, RunConfig(chunks=3, work="coded"))
    classes = {"digits": 10, "breast-cancer": 2}[name]
    module = task.model()
    for chunk, samples in task.sizes().items():
        inputs, labels = task.load(chunk)
        assert len(inputs) == len(labels) == samples
        loss = task.loss(module, (inputs, labels))
        assert abs(loss.item() - np.log(classes)) < 0.5
        assert loss.requires_grad


@pytest.mark.parametrize("name", SHIPPED)
def test_machines_cut_same_chunks_and_other_seed_cuts_others(name):
    def images(seed):
        task = named(name, RunConfig(chunks=4, seed=seed, work="coded"))
        return [task.load(chunk)[0] for chunk in task.sizes()]

    assert all(map(torch.equal, images(1), images(1)))
    assert not all(map(torch.equal, images(1), images(2)))


def test_held_out_data_is_never_trained_on_and_is_stratified():
    labels = np.random.default_rng(0).integers(0, 3, 500)
    trained, held_out = split(labels)
    assert sorted([*trained, *held_out]) == list(range(500))
    assert np.abs(np.bincount(labels[held_out]) * 5 - np.bincount(labels)).max() < 5


@pytest.mark.parametrize("name", SHIPPED)
def test_evaluation_gives_loss_and_accuracy(name):
    task = named(name, RunConfig(work="coded"))
    with torch.no_grad():
        figures = task.evaluate(task.model().eval())
    assert figures.keys() == {"loss", "accuracy"}
    assert 0 <= figures["accuracy"] <= 1


def test_chunk_of_other_run_is_refused():
    with pytest.raises(BadTask, match="saw chunk 'digits-0000-of-0008', needed one of 4"):
        named("digits", RunConfig(chunks=4, work="coded")).load("digits-0000-of-0008")
