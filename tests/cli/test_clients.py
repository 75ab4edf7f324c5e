"""Test the clients that a command starts, and their own settings."""

import pytest

from fedgc.cli.clients import nodes_of, parse_clients
from fedgc.cli.run import Wanted
from fedgc.errors import BadSetting, Unusable


def test_settings_of_clients_are_text_or_numbers():
    words = [
        "north:data=/data/north",
        "north:beds=12",
        "north:share=0.5",
        "south:url=http://x:1",
        "south:a=true",
    ]
    assert parse_clients(words) == {
        "north": {"data": "/data/north", "beds": 12, "share": 0.5},
        "south": {"url": "http://x:1", "a": "true"},
    }


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("north", "needed NAME:key=value"),
        ("north:data", "needed NAME:key=value"),
        ("data=north", "needed NAME:key=value"),
        ("north:a b=1", "needed a key of letters"),
        ('north:a="b', "without quotes"),
        ("north:pace-s=slow", "needed a number"),
        ("north:x=inf", "needed a finite number"),
        ("the north:x=1", "node name"),
    ],
)
def test_invalid_settings_of_clients_are_refused(word: str, seen: str):
    with pytest.raises(BadSetting, match=seen):
        parse_clients([word])


@pytest.mark.parametrize(
    ("clients", "own", "names"),
    [
        (None, [], ["client-0", "client-1", "client-2", "client-3"]),
        (2, [], ["client-0", "client-1"]),
        (None, ["south", "north"], ["south", "north"]),
        (3, ["client-1"], ["client-0", "client-1", "client-2"]),
        (3, ["north"], ["client-0", "client-1", "north"]),
        (3, ["client-2", "north"], ["client-0", "client-2", "north"]),
    ],
)
def test_named_clients_are_among_those_started(clients, own, names):
    settings = {name: {"data": name} for name in own}
    nodes = nodes_of(clients, settings)
    assert [node.name for node in nodes] == names
    assert {node.name: dict(node.config) for node in nodes if node.config} == settings


def test_more_named_clients_than_asked_for_are_refused():
    with pytest.raises(BadSetting, match="--clients: saw 1, needed at least 2: --client names north, south"):
        nodes_of(1, {"north": {}, "south": {}})
    with pytest.raises(Unusable, match="--clients: saw 0"):
        Wanted(0, {})


def test_client_settings_with_superlink_are_refused():
    with pytest.raises(Unusable, match="--client and --superlink: saw both"):
        Wanted(None, {}, superlink="up", own={"north": {"a": 1}})
