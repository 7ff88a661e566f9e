"""The KL coefficient: how it moves, and that a checkpoint keeps it."""

from __future__ import annotations

import pytest

from canary_mlflow.training.ppo.trainer import AdaptiveKL


def test_moves_towards_the_target_at_the_pace_of_the_horizon() -> None:
    controller = AdaptiveKL(initial=0.2, target=6.0, horizon=320, sequences=16)
    controller.update(6.6)  # 10 % above
    assert controller.value == pytest.approx(0.2 * (1 + 0.1 * 16 / 320))
    controller.update(6.0)
    assert controller.value == pytest.approx(0.2 * (1 + 0.1 * 16 / 320))


@pytest.mark.parametrize(("kl", "error"), [(600.0, 0.2), (0.0, -0.2), (-3.0, -0.2)])
def test_one_iteration_moves_it_by_a_fifth_at_most(kl: float, error: float) -> None:
    controller = AdaptiveKL(initial=1.0, target=6.0, horizon=16, sequences=16)
    controller.update(kl)
    assert controller.value == pytest.approx(1 + error)


def test_without_a_target_it_stays() -> None:
    controller = AdaptiveKL(initial=0.2, target=None, horizon=16, sequences=16)
    controller.update(100.0)
    assert controller.value == 0.2


def test_state_rebuilds_it() -> None:
    controller = AdaptiveKL(initial=0.2, target=6.0, horizon=320, sequences=16)
    controller.update(12.0)
    rebuilt = AdaptiveKL.from_state(controller.state())
    assert rebuilt.value == controller.value
    rebuilt.update(1.0)
    controller.update(1.0)
    assert rebuilt.value == controller.value


def test_reads_the_kl_from_an_iteration_row_only() -> None:
    controller = AdaptiveKL(initial=1.0, target=6.0, horizon=16, sequences=16)
    controller.on_log(None, None, None, logs={"loss": 1.0})
    assert controller.value == 1.0
    controller.on_log(None, None, None, logs={"loss": 1.0, "kl": 60.0})
    assert controller.value == pytest.approx(1.2)
