import pytest

from ocs_driver import OcsError, Pair
from ocs_driver.polatis import xml
from testbed.ocs_emulator import netconf_xml as served

OLD = f"{xml.OPTICAL}?module=optical-switch&revision=2017-03-21"
NEW = f"{xml.OPTICAL}?module=optical-switch&revision=2018-03-22"
SAMPLE = (
    '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch">'
    "<pair><ingress>1</ingress><egress>33</egress></pair>"
    "<pairs><ingress>2</ingress><egress>34</egress></pairs>"
    "</cross-connects>"
)


def test_the_revision_names_the_list() -> None:
    assert xml.pair_node([NEW]) == "pair"
    assert xml.pair_node([OLD]) == "pairs"
    assert xml.pair_node([xml.OPTICAL]) == "pair"
    with pytest.raises(OcsError, match="wrong_dialect"):
        xml.pair_node(["urn:ietf:params:netconf:base:1.1"])


def test_pairs_by_either_name() -> None:
    assert xml.parse_pairs(xml.parse(SAMPLE)) == [Pair("1", "33"), Pair("2", "34")]


@pytest.mark.parametrize("node", ["pair", "pairs"])
def test_an_edit_is_read_as_it_was_written(node: str) -> None:
    text = xml.edit(node, [Pair("1", "33")], [Pair("2", "34")])
    rpc = served.parse(f'<edit-config xmlns="{served.BASE}">{text}</edit-config>'.encode())
    edits, wipe = served.edits(rpc, node)
    assert not wipe
    assert [(e.operation, e.ingress, e.egress) for e in edits] == [
        ("delete", "2", ""),
        ("create", "1", "33"),
    ]


def test_notifications() -> None:
    text = served.notification("2026-01-01T00:00:00Z", "port-power-alarm", {"port-id": "3"})
    name, leaves = xml.parse_event(xml.parse(text.decode()))
    assert (name, leaves["port-id"]) == ("port-power-alarm", "3")
    assert xml.parse_event(xml.parse("<notification/>"))[0] == ""


def test_hostile_replies_are_refused() -> None:
    for bad in ("", "<a", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"):
        with pytest.raises(OcsError, match="bad_reply"):
            xml.parse(bad)
