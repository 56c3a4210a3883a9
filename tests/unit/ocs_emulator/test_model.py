import dataclasses

import pytest

from testbed.ocs_emulator.model import Fault, Mirrors, ModelError, OpticalModel
from testbed.ocs_emulator.personality import load_personality

PERSONALITY = load_personality("calient-s320").with_timing(mirror_s=0.025, bulk_s=0.2)


def model_with(count: int) -> tuple[OpticalModel, list[str]]:
    model = OpticalModel(PERSONALITY)
    names = [f"c{i}" for i in range(count)]
    for i, name in enumerate(names):
        ports = PERSONALITY.ports
        model.enter(name, ports[2 * i], ports[2 * i + 1], duplex=True, group="g")
    return model, names


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.025), (4, 0.1), (8, 0.2), (50, 0.2)])
def test_a_bulk_takes_one_mirror_time_each_up_to_the_bulk_time(count: int, seconds: float) -> None:
    model, names = model_with(count)
    for name in names:
        model.activate(name, 100.0)
    ready = [circuit.ready_at for circuit in model.circuits.values()]
    assert max(r for r in ready if r is not None) == pytest.approx(100.0 + seconds)


def test_a_late_circuit_of_a_bulk_still_needs_its_mirror_time() -> None:
    model, names = model_with(9)
    for name in names[:8]:
        model.activate(name, 100.0)
    model.activate(names[8], 100.19)
    assert model.circuits[names[8]].ready_at == pytest.approx(100.215)


def test_lifecycle_of_a_circuit() -> None:
    model, (name,) = model_with(1)
    circuit = model.circuit(name)
    assert model.state(circuit) is Mirrors.IDLE
    assert model.next_event(0.0) is None
    model.activate(name, 0.0)
    assert model.state(circuit) is Mirrors.TUNING
    assert model.next_event(0.0) == pytest.approx(0.025)
    assert not model.ready(0.02)
    model.set_tuned(0.03)
    assert model.state(circuit) is Mirrors.TUNED
    assert model.set_failed([circuit.a]) == {circuit.a}
    assert model.state(circuit) is Mirrors.FAILED
    assert model.set_failed([circuit.a]) == frozenset()
    model.set_failed([])
    assert model.state(circuit) is Mirrors.TUNED
    with pytest.raises(ModelError) as caught:
        model.delete(name)
    assert caught.value.fault is Fault.ACTIVE
    model.deactivate(name)
    model.delete(name)
    assert not model.circuits


def test_carrier_follows_light_after_the_link_up_time() -> None:
    slow = PERSONALITY.with_timing(link_up_s=1.0)
    model = OpticalModel(slow)
    model.enter("c", "1.1.1", "1.1.2", duplex=True, group="g")
    model.activate("c", 0.0)
    model.set_tuned(0.5)
    assert model.carrier(0.5) == frozenset()
    assert model.next_event(0.5) == pytest.approx(1.025)
    assert model.carrier(1.1) == {"1.1.1", "1.1.2"}


def test_refusals() -> None:
    model = OpticalModel(PERSONALITY)
    model.enter("c", "1.1.1", "1.1.2", duplex=True, group="g")
    for a, b, fault in (
        ("9.9.9", "1.1.1", Fault.NO_SUCH_PORT),
        ("1.1.3", "1.1.3", Fault.SAME_PORT),
        ("1.1.3", "1.1.1", Fault.BUSY),
        ("1.1.2", "1.1.3", Fault.BUSY),
    ):
        with pytest.raises(ModelError) as caught:
            model.enter("d", a, b, duplex=False, group="g")
        assert caught.value.fault is fault
    with pytest.raises(ModelError):
        model.activate("unknown", 0.0)


def test_one_way_circuits_share_ports_by_side() -> None:
    model = OpticalModel(PERSONALITY)
    model.enter("c", "1.1.1", "1.1.2", duplex=False, group="g")
    model.enter("d", "1.1.2", "1.1.1", duplex=False, group="g")


def test_power_is_the_launch_less_the_loss_of_the_path() -> None:
    model, (name,) = model_with(1)
    circuit = model.circuit(name)
    light = PERSONALITY.light
    assert model.power_out_dbm(circuit.b) == light.floor_dbm
    model.activate(name, 0.0)
    model.set_tuned(1.0)
    loss = light.launch_dbm - model.power_out_dbm(circuit.b)
    assert loss == pytest.approx(model.loss_db(circuit.a, circuit.b))
    assert abs(loss - light.loss_mean_db) < 6 * light.loss_spread_db
    model.set_failed([circuit.a])
    assert model.power_in_dbm(circuit.a) == light.floor_dbm


def test_every_path_has_its_own_constant_loss() -> None:
    model = OpticalModel(PERSONALITY)
    losses = {model.loss_db("1.1.1", port) for port in PERSONALITY.ports[1:20]}
    assert len(losses) > 15
    other = OpticalModel(dataclasses.replace(PERSONALITY))
    assert other.loss_db("1.1.1", "1.1.2") == model.loss_db("1.1.1", "1.1.2")
