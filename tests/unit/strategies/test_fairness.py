"""Floor rules, their parser, and feasibility by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.strategies import (
    EqualFloors,
    GivenFloors,
    HeuristicFloors,
    NamedFloors,
    ProportionalFloors,
    check_feasibility,
    parse_floors,
)
from flower_scheduling.strategies.fairness import floors_text


def test_rules_by_hand():
    sizes = [100, 200, 300]
    assert EqualFloors(0.2).floors(sizes, 2).tolist() == [0.2, 0.2, 0.2]
    assert GivenFloors((0.6, 0.5, 0.4)).floors(sizes, 2).tolist() == [0.6, 0.5, 0.4]
    assert ProportionalFloors(1.2).floors(sizes, 2) == pytest.approx([0.2, 0.4, 0.6])
    # c_min = phi N s_min / sum(s) = 0.5 * 2 * 100 / 600; the others in proportion.
    assert HeuristicFloors(0.5).floors(sizes, 2) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_shares_stay_below_every_round():
    floors = ProportionalFloors(2.0).floors([1, 1_000_000], 2)
    assert 0.999 < floors[1] < 1.0
    assert ProportionalFloors(2.0).floors([5], 2) < 1.0
    assert ProportionalFloors(2.0).floors([], 2).shape == (0,)


@pytest.mark.parametrize("sizes", [[1, -1], [1, np.nan], [0, 0], ["a"], 3])
def test_wrong_sizes(sizes):
    with pytest.raises(ConfigError, match="num_examples"):
        HeuristicFloors(0.5).floors(sizes, 2)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("none", EqualFloors(0.0)),
        ("0.6,0.5,0.4", GivenFloors((0.6, 0.5, 0.4))),
        (" 0.6, 0.5 ", GivenFloors((0.6, 0.5))),
        ("equal:0.2", EqualFloors(0.2)),
        ("proportional:2.0", ProportionalFloors(2.0)),
        ("Heuristic: 0.5", HeuristicFloors(0.5)),
    ],
)
def test_parser(text, rule):
    assert parse_floors(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        *("", "some", "equal", "equal:", "equal:x", "equal:1", "equal:nan", "fair:1"),
        *("0.5,,0.5", "0.5,1.5", "0.5,nan", "heuristic:1.5", "proportional:-1"),
        *("proportional:inf", 0.5),
    ],
)
def test_parser_refuses_the_rest(text):
    with pytest.raises(ConfigError) as error:
        parse_floors(text)
    assert "\n" not in str(error.value)


def test_given_floors_must_be_one_per_arm():
    with pytest.raises(ConfigError, match="2 numbers"):
        GivenFloors((0.1, 0.1, 0.1)).floors([1, 1], 2)


def test_the_papers_floors_are_feasible():
    # sum c = 1.5 <= E min(2, |A|) = 1.971 and c_k <= 0.9.
    result = check_feasibility([0.6, 0.5, 0.4], 2, 0.9)
    assert result.feasible
    assert result.exact
    assert result.message() == "participation floors are feasible"


def test_all_arms_together_can_ask_for_too_much():
    result = check_feasibility([0.7, 0.66, 0.66], 2, 0.9)
    assert not result.feasible
    assert result.arms == (0, 1, 2)
    assert result.asked == pytest.approx(2.02)
    assert result.served == pytest.approx(2 - 0.001 * 2 - 3 * 0.9 * 0.01)  # 1.971
    assert "a, b and c ask for 2.02" in result.message(["a", "b", "c"])


def test_one_rarely_available_arm_is_named():
    result = check_feasibility([0.1, 0.6, 0.1], 2, [1.0, 0.5, 1.0])
    assert not result.feasible
    assert result.arms == (1,)
    assert "client 1 ask" in result.message()


def test_a_middle_set_can_be_the_tightest():
    # Neither a single arm nor all three: the two of availability 0.5 together.
    result = check_feasibility([0.45, 0.45, 0.01], 1, [0.5, 0.5, 1.0])
    assert result.arms == (0, 1)
    assert result.served == pytest.approx(0.75)


def test_many_availabilities_leave_sufficiency_open():
    alpha = np.linspace(0.5, 1.0, 30)
    open_question = check_feasibility(np.full(30, 0.1), 5, alpha)
    assert open_question.feasible
    assert not open_question.exact
    assert "not checked" in open_question.message()
    assert not check_feasibility(np.full(30, 0.2), 5, alpha).feasible


@pytest.mark.parametrize("num_selected", [1, 3, 50])
def test_arms_that_are_always_there_are_judged_without_their_distribution(num_selected):
    rng = np.random.default_rng(num_selected)
    for floors in (rng.random(40) * 0.2, rng.random(40) * 0.9, np.full(3, 0.5), np.full(7, 0.99)):
        always = check_feasibility(floors, num_selected)
        # One of them may be away in a billion rounds: the general rule.
        nearly = check_feasibility(floors, num_selected, np.r_[1 - 1e-9, np.ones(len(floors) - 1)])
        assert always.exact
        assert always.feasible == nearly.feasible
        assert always.served == pytest.approx(nearly.served, abs=1e-6)
    thousands = check_feasibility(np.full(100_000, 0.001), 50)
    assert thousands.exact
    assert len(thousands.arms) == 100_000
    assert thousands.served == pytest.approx(50.0)


def test_nothing_asked_is_feasible():
    assert check_feasibility([], 2).feasible
    assert check_feasibility([0.0, 0.0], 2, 0.0).feasible


@pytest.mark.parametrize("alpha", [1.1, -0.1, np.nan, [0.9], "0.9", True])
def test_wrong_availability(alpha):
    with pytest.raises(ConfigError, match="availability"):
        check_feasibility([0.1, 0.1], 1, alpha)


def test_floors_by_name_follow_the_names_whatever_the_order() -> None:
    rule = parse_floors("Dev-1=0.6, a=b=0.25")
    assert rule == NamedFloors({"Dev-1": 0.6, "a=b": 0.25})
    assert rule.floors([1, 1, 1], 2, ["a=b", "other", "Dev-1"]).tolist() == [0.25, 0.0, 0.6]
    with pytest.raises(ConfigError, match="the 2 arms have none"):
        rule.floors([1, 1], 2)
    for text in ("a=1", "a=0.5,a=0.6", "=0.5", "a=x", "a=0.5,0.6"):
        with pytest.raises(ConfigError, match="fairness"):
            parse_floors(text)


def test_floors_by_name_are_the_same_in_every_unicode_form_and_tell_names_that_no_client_has() -> (
    None
):
    rule = NamedFloors({"caf\N{LATIN SMALL LETTER E WITH ACUTE}": 0.5, "dev1": 0.2})
    names = ["dev-1", "cafe\N{COMBINING ACUTE ACCENT}"]
    np.testing.assert_array_equal(rule.floors([1, 1], 1, names), [0.0, 0.5])
    assert rule.unknown(names) == {"dev1"}
    assert rule.unknown_message(names) == "no client is called dev1 (did you mean dev-1?)"
    assert rule.unknown_message([*names, "dev1"]) == ""


@pytest.mark.parametrize(
    "text", ["0.6,0.5", "dev-1=0.6,dev-2=0.5", "equal:0.2", "proportional:2.0", "heuristic:0.5"]
)
def test_a_rule_has_the_text_that_makes_it(text):
    assert parse_floors(floors_text(parse_floors(text))) == parse_floors(text)


def test_numbers_are_offered_where_they_are_taken_alone() -> None:
    with pytest.raises(ConfigError, match=r"0\.6,0\.5,0\.4.*\(did you mean equal\?\)"):
        parse_floors("equl:0.3")
    with pytest.raises(ConfigError) as caught:
        parse_floors("equl:0.3", numbers=False)
    assert "0.6,0.5,0.4" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"floors by name such as .*: clients join in any order"):
        parse_floors("0.6,0.5", numbers=False)
    assert parse_floors("dev-1=0.6,dev-2=0.5", numbers=False) == parse_floors("dev-1=0.6,dev-2=0.5")
    for text in ("equl:0.3", "0.6,0.5"):
        with pytest.raises(ConfigError, match="floors by name") as caught:
            FleetConfig(fairness=text)
        assert "0.6,0.5,0.4" not in str(caught.value)
