"""A sweep on a Ray cluster of two nodes: the same results, and the death of a node costs nothing but time."""

from __future__ import annotations

import json

import pytest

from quietformer.errors import QuietformerError
from quietformer.study.ray_cluster import on_ray
from tests.study.studies import results_of, write_study_file
from tests.study.test_study import GRID, carried_out, finished, sweep, wait_for

pytest.importorskip("ray", reason="Ray is an extra")


@pytest.fixture(scope="module")
def cluster():
    """Two raylets on this machine, a processor each."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.second = found.add_node(num_cpus=1)
    yield found
    found.shutdown()


def test_a_node_that_does_not_see_the_folder_sends_its_results(cluster, tmp_path, monkeypatch):
    """The mark that tells the study's folder from another of the same name is another's: as on a machine with its own disk."""
    from quietformer.study import run as module

    path = write_study_file(tmp_path, grid={"variant": ["vanilla", "gated"]})
    carried_out(path, tmp_path / "here")
    out = tmp_path / "there"

    def elsewhere(tasks, done, ray, progress):
        (out / ".study").write_text("another machine's")
        on_ray(tasks, done, ray, progress)

    monkeypatch.setattr(module, "on_ray", elsewhere)
    carried_out(path, out, ray=cluster.address)
    assert results_of(out) == results_of(tmp_path / "here")
    sent = [json.loads(one.read_text()) for one in (out / "elsewhere").iterdir()]
    assert len(sent) == 2
    assert all(str(out) not in one["elsewhere"] for one in sent)
    assert not (out / "runs").exists()
    monkeypatch.setattr(module, "connected", None)  # what is there is not asked of anybody again
    carried_out(path, out, ray=cluster.address)
    assert results_of(out) == results_of(tmp_path / "here")


def test_a_run_that_fits_on_no_node_is_one_line(cluster, tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, threads=64)
    with pytest.raises(QuietformerError, match="64 threads and the largest node 1 processors"):
        carried_out(path, tmp_path / "out", ray=cluster.address)
    assert not (tmp_path / "out").exists()


def test_a_cluster_gives_the_same_table_and_survives_the_death_of_a_node(cluster, tmp_path):
    path = write_study_file(tmp_path, grid=GRID, seeds=[0, 1])
    carried_out(path, tmp_path / "here")
    out = tmp_path / "there"
    process = sweep(path, out, "--ray", cluster.address)
    wait_for(lambda: len(finished(out)) >= 2)
    cluster.remove_node(cluster.second, allow_graceful=False)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert results_of(out) == results_of(tmp_path / "here")
