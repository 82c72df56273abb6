"""Where to put a dial: what is promised counts as far as it is near to what is known."""

from __future__ import annotations

import numpy as np
import pytest

from moose.evaluation.dial import Course, DialMeasurement
from moose.evaluation.offline import Bundle
from moose.evaluation.selection import SelectionSettings, choose_position, lower_bound, score

BUNDLE = Bundle(np.zeros((3, 2, 3)), np.zeros((3, 1, 2)))
SETTINGS = SelectionSettings(pessimism=1.0, distrust=0.1)


def make_course(by_model, strayed=0.0, apart=0.0, new=0.0):
    """Two witnesses of two models, each with three starts that differ a little."""
    returns = np.asarray(by_model, float).reshape(2, 2, 1) + np.array([-0.1, 0.0, 0.1])
    novelty = np.where(np.arange(100) < 100 * new, 1.0, 0.5).reshape(100, 1, 1, 1)
    return Course(returns, strayed, apart, novelty, 0.0, np.zeros(2), BUNDLE)


def make_measurement(courses, hold, over_promise=(0.0, 0.2, 0.5, 0.1, -0.3)):
    return DialMeasurement(
        horizon=1,
        discount=0.9,
        starts="first",
        positions=np.linspace(0, 1, len(courses)),
        courses=tuple(courses),
        hold=hold,
        logged_returns=np.array([-80.0, -82.0]),
        logged=BUNDLE,
        stretch_returns=np.array([[-80.0, -83.0, -70.0], [-81.0, -82.0, -71.0]]),
        over_promise=np.asarray(over_promise, float),
        episodes=np.arange(6).reshape(2, 3),
    )


CLONE = make_course([-81, -79, -80, -80])
HOLD = make_course([-60, -58, -62, -60], strayed=0.0, apart=2.0, new=1.0)


def test_a_gain_near_the_log_is_taken_where_it_is_highest():
    near = [make_course([-57, -55, -59, -57]), make_course([-55, -53, -57, -55], strayed=0.01)]
    choice = choose_position(make_measurement([CLONE, *near], HOLD), SETTINGS)
    assert choice.position == 1.0
    assert choice.course is near[1]
    assert choice.gains["hold"].mean == pytest.approx(5.0)
    assert choice.gains["clone"].mean == pytest.approx(25.0)
    assert any("+5" in reason.text and reason.kind == "for" for reason in choice.reasons)


def test_a_promise_far_from_all_that_is_known_is_left_for_holding_still():
    far = make_course([-57, -55, -59, -57], strayed=0.6, apart=2.5, new=1.0)
    choice = choose_position(make_measurement([CLONE, far], HOLD), SETTINGS)
    assert choice.position is None
    assert choice.course is HOLD
    assert choice.scores[1] == pytest.approx(3.0 - 0.1 * 60.0 * 0.6)
    told = [reason.text for reason in choice.reasons if reason.kind == "against"]
    assert len(told) == 1
    assert "promise most" in told[0]
    assert any("held still" in reason.text for reason in choice.reasons)
    # The same promise is taken by somebody who trusts the models more.
    trusting = SETTINGS.model_copy(update={"distrust": 0.01})
    assert choose_position(make_measurement([CLONE, far], HOLD), trusting).position == 1.0


def test_what_the_log_did_is_the_advice_where_nothing_is_better():
    worse = make_course([-83, -81, -82, -82])
    bad_hold = make_course([-90, -90, -90, -90])
    choice = choose_position(make_measurement([CLONE, worse], bad_hold), SETTINGS)
    assert choice.position == 0.0
    assert choice.course is CLONE
    assert set(choice.gains) == {"hold"}


def test_without_an_action_that_holds_the_log_is_the_only_rival():
    better = make_course([-75, -73, -74, -74])
    choice = choose_position(make_measurement([CLONE, better], None), SETTINGS)
    assert choice.position == 1.0
    assert set(choice.gains) == {"clone"}


def test_one_sceptical_model_counts_as_much_as_it_is_told_to_where_situations_are_new():
    doubted = make_course([-50, -48, -52, -64], new=1.0)  # gains of 10, 10, 10 and −4 over holding
    measured = make_measurement([CLONE, doubted], HOLD)
    for pessimism, expected in ((0.0, 6.5), (0.5, 1.25), (1.0, -4.0)):
        settings = SETTINGS.model_copy(update={"pessimism": pessimism})
        assert score(doubted, measured, settings) == pytest.approx(expected)
    assert choose_position(measured, SETTINGS).position is None


@pytest.mark.parametrize(("new", "expected"), [(0.0, 6.5), (0.5, 1.25), (1.0, -4.0)])
def test_a_sceptical_model_counts_the_less_the_more_is_known(new, expected):
    doubted = make_course([-50, -48, -52, -64], new=new)
    measured = make_measurement([CLONE, doubted], HOLD)
    assert score(doubted, measured, SETTINGS) == pytest.approx(expected)
    assert (choose_position(measured, SETTINGS).position == 1.0) == (expected > 0)


def test_models_that_see_a_rival_ahead_and_a_log_that_earned_more_are_cautions():
    def cautions(courses, hold, **options):
        choice = choose_position(make_measurement(courses, hold, **options), SETTINGS)
        return [reason.text for reason in choice.reasons if reason.kind == "caution"]

    torn = make_course([-78, -78, -83, -82])  # ahead of the clone in two of four
    told = cautions([CLONE], torn)
    assert "2 of 4 models see never changing anything ahead of this." in told
    assert not any("ahead" in text for text in cautions([CLONE], make_course([-90] * 4)))
    # The log has earned −81 on average.
    assert not any("log itself has earned" in text for text in cautions([CLONE], None))
    poor = make_course([-83, -85, -82, -84])
    assert any("has earned −81 from the same states" in text for text in cautions([poor], None))


@pytest.mark.parametrize(
    ("over_promise", "told"),
    [([0.0, 0.5, 0.2, 0.0, 0.0], "0.5 too much"), ([-2.0, -1.0, -3.0, -2.0, -2.0], "1 too little")],
)
def test_what_models_promise_is_told_in_words(over_promise, told):
    choice = choose_position(make_measurement([CLONE], HOLD, over_promise), SETTINGS)
    (text,) = (reason.text for reason in choice.reasons if "variance" in reason.text)
    assert f"({told} in that fifth" in text


def test_the_lower_bound_is_its_equation():
    measured = make_measurement([CLONE], HOLD)
    # The worst model, less what was promised too much, less a tenth of 60 for each unit.
    assert lower_bound(HOLD, measured, SETTINGS) == pytest.approx(-62 - 0.5 - 0.1 * 60 * 2.0)
    modest = make_measurement([CLONE], HOLD, over_promise=[-1.0] * 5)
    assert lower_bound(HOLD, modest, SETTINGS) == pytest.approx(-62 - 0.1 * 60 * 2.0)
