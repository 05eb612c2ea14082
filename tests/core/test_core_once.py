"""Work that several parts of one call ask for is done once in it, and anew in the next call."""

import gc

import pytest

from seepage.core._once import computing_once, once
from seepage.core.errors import NotApplicable


class Network:
    """Anything that can be asked about, and changed in place."""

    def __init__(self, width=1):
        self.width = width


@pytest.fixture
def asked():
    return []


@pytest.fixture
def read(asked):
    @once
    def read(network, times=1):
        asked.append(network)
        if network.width < 0:
            raise NotApplicable("no width")
        return network.width * times

    return read


def test_it_is_asked_once_for_each_network_and_each_further_argument(read, asked):
    one, other = Network(), Network()
    with computing_once():
        assert [read(one), read(one), read(other), read(one, times=3)] == [1, 1, 1, 3]
    assert asked == [one, other, one]


def test_an_inner_block_shares_what_the_outer_one_knows(read, asked):
    network = Network()
    with computing_once():
        with computing_once():
            read(network)
        read(network)
    assert len(asked) == 1


def test_a_network_that_changed_between_calls_is_read_anew(read):
    network = Network(width=2)
    with computing_once():
        assert read(network) == 2
    network.width = 5
    with computing_once():
        assert read(network) == 5


def test_without_a_block_nothing_is_remembered(read):
    network = Network(width=2)
    assert read(network) == 2
    network.width = 5
    assert read(network) == 5


def test_the_reason_why_there_is_no_answer_is_remembered_too(read, asked):
    network = Network(width=-1)
    with computing_once():
        for _ in range(3):
            with pytest.raises(NotApplicable, match="no width"):
                read(network)
    assert len(asked) == 1


def test_arguments_that_have_no_hash_are_computed_each_time(read, asked):
    network = Network(width=2)
    with computing_once():
        assert read(network, [7]) == read(network, [7]) == [7, 7]
    assert len(asked) == 2


def test_an_answer_goes_with_what_it_is_about(read):
    found = []

    @once
    def measure(network):
        found.append(Network())
        return found[-1]

    with computing_once():
        for _ in range(3):
            measure(Network())
            gc.collect()
    assert len(found) == 3
