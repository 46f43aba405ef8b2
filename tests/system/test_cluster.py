"""Shares of a cluster's machines, and the cluster itself: connected to, started, or refused in one line."""

import socket
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fheat.system.cluster import Share, cluster, machines_of, share_of
from tests.refusals import refused

HEAD = {"CPU": 0.0, "memory": 1e9}


@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    cores=st.integers(1, 256),
    parallel=st.integers(1, 12),
)
def test_shares_of_gpus_fit_their_machines(gpus, cores, parallel):
    """All workers fit at once, each GPU has `parallel` of them, and the processors of no machine are exceeded."""
    machines = [{"GPU": float(count), "CPU": float(cores)} for count in gpus]
    share = share_of([HEAD, *machines], parallel, None)
    assert share.device == "cuda"
    assert share.workers == parallel * sum(gpus)
    assert parallel * share.gpus <= 1 + 1e-9
    for machine in machines:
        assert parallel * machine["GPU"] * share.cpus <= machine["CPU"] + 1e-9
    assert share.threads >= 1


@given(cores=st.lists(st.integers(1, 128), min_size=1, max_size=4), parallel=st.integers(1, 12))
def test_shares_of_processors_fit_their_machines(cores, parallel):
    """The smallest machine has at least `parallel` workers, and the others as many as their processors allow."""
    share = share_of([{"CPU": float(count)} for count in cores], parallel, None)
    assert (share.device, share.gpus) == ("cpu", 0)
    assert int(min(cores) / share.cpus + 1e-6) >= parallel
    assert share.workers == sum(int(count / share.cpus + 1e-6) for count in cores)
    assert share.threads == max(1, min(cores) // parallel)


def test_a_device_may_be_asked_for():
    machines = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]
    assert share_of(machines, 2, "cpu") == Share("cpu", 0, 2.0, 6)
    assert share_of(machines, 2, "cuda:1") == Share("cuda", 0.5, 2.0, 4)
    assert share_of(machines, 2, None).resources() == {"num_gpus": 0.5, "num_cpus": 2.0}


def test_a_cluster_without_what_is_asked_for_is_refused():
    assert "has no GPU" in refused(share_of, [{"CPU": 8.0}], 1, "cuda").reason
    assert "is nonsense, which is unknown" in refused(share_of, [{"CPU": 8.0}], 1, "nonsense").reason
    assert "has no processor" in refused(share_of, [HEAD], 1, None).reason


def test_without_ray_the_remedy_is_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused(cluster().__enter__).remedy == 'pip install "fheat[cluster]"'


class FakeRay(SimpleNamespace):
    """Ray as far as connecting goes: `running` says whether a cluster can be found."""

    def __init__(self, *, running=False, connected=False, refuses=False):
        super().__init__(calls=[], running=running, connected=connected, refuses=refuses)

    def is_initialized(self):
        return self.connected

    def init(self, address, **options):
        self.calls.append(address)
        if self.refuses:
            raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
        if address != "local" and not self.running:
            raise ConnectionError("Could not find any running Ray instance.\nmore")

    def shutdown(self):
        self.calls.append("shutdown")

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]


@pytest.fixture
def use(monkeypatch):
    """A function that puts something in the place of the module `ray`."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def put(fake):
        monkeypatch.setitem(sys.modules, "ray", fake)
        return fake

    return put


@pytest.fixture
def listening():
    """An address where something accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("state", "address", "calls"),
    [
        ({"running": True}, None, ["auto", "shutdown"]),
        ({"running": False}, None, ["auto", "local", "shutdown"]),
        ({"running": True}, "{listening}", ["{listening}", "shutdown"]),
        ({"connected": True}, None, []),
    ],
    ids=["found", "started", "named", "connected already"],
)
def test_which_cluster_is_used(use, listening, state, address, calls):
    fake = use(FakeRay(**state))
    with cluster(address and address.format(listening=listening)) as found:
        assert found is fake
        assert machines_of(found) == [{"CPU": 2.0}]
    assert fake.calls == [call.format(listening=listening) for call in calls]


def test_an_address_where_nothing_listens_is_refused_before_ray_tries(use):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    fake = use(FakeRay())
    assert "no Ray cluster answers" in refused(cluster(free).__enter__).reason
    assert fake.calls == []


def test_a_cluster_that_does_not_let_us_in_is_not_replaced_by_a_new_one(use, listening):
    for address in (None, listening):
        fake = use(FakeRay(refuses=True))
        error = refused(cluster(address).__enter__)
        assert "does not let us in (Failed to connect to Ray cluster at 10.0.0.1:6379)" in error.reason
        assert "local" not in fake.calls
