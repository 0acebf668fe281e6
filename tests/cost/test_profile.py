"""Profiles: presets, round trips, and one readable line for everything that can be wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasegate.cost.model import InterferenceCost, LinearCost
from phasegate.cost.presets import DEFAULT_PRESET, PRESETS
from phasegate.cost.profile import LinearConstants, Profile, load_profile, parse_profile
from phasegate.errors import InputError, ProfileError

LINEAR = {"kind": "linear", "alpha_p": 4.7e-3, "beta_p": 5e-5, "alpha_d": 1e-2, "beta_d": 1e-4}
LINEAR |= {"a": 6.3e-5, "b": 2e-4, "c": 1e-5}


def broken(change: Callable[[dict[str, Any]], Any]) -> str:
    """The error message for a preset file after `change`."""
    data = copy.deepcopy(PRESETS["h200/qwen3-8b"])
    change(data)
    with pytest.raises(ProfileError) as caught:
        parse_profile(json.dumps(data), "my.json")
    return str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_says_where_it_comes_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.kv_capacity_tokens > 100_000
    assert "2606.00516" in profile.provenance.source


def test_the_default_is_a_preset() -> None:
    assert DEFAULT_PRESET in PRESETS


def test_fitted_presets_are_marked_as_fitted() -> None:
    for name in ("h200/qwen3-8b", "rtx-pro-6000/qwen3-8b"):
        assert load_profile(name).provenance.how == "fitted to published results"


def test_preset_constants_are_those_of_the_theory() -> None:
    cost = load_profile("rtx-pro-6000/qwen3-8b").cost_model()
    assert cost == InterferenceCost(
        alpha_p=4.69e-3, alpha_d=8.07e-3, beta_p=46.8e-6, b_d=56.0e-6, k_d=97.3e-9, kappa=3.5
    )


def test_llama_keeps_its_measured_decode_cost_at_context_512() -> None:
    cost = load_profile("h200/llama-3.1-8b").cost_model()
    one_more = cost.seconds(0, 0, 65, 65 * 512) - cost.seconds(0, 0, 64, 64 * 512)
    assert one_more == pytest.approx(4.439905e-05, rel=1e-6)


def test_measured_constants_are_those_of_the_reference_file() -> None:
    reference = Path(__file__).parents[2].parent / "shared" / "reference" / "calibrations.json"
    if not reference.exists():
        pytest.skip("../shared/reference is not here")
    measured = json.loads(reference.read_text())["profiles"][2]
    cost = load_profile("h200/llama-3.1-8b").cost_model()
    assert isinstance(cost, InterferenceCost)
    for constant in ("alpha_p", "alpha_d", "beta_p"):
        assert getattr(cost, constant) == measured[constant]


def test_saved_profile_loads_again(tmp_path: Path) -> None:
    data = copy.deepcopy(PRESETS["h200/qwen3-8b"])
    data["fit"] = {"r2": 0.99, "worst_residual": 0.05, "confidence": {"kappa": [1.1, 1.2]}}
    profile = parse_profile(json.dumps(data), "fitted")
    profile.save(tmp_path / "mine.json")
    assert load_profile(tmp_path / "mine.json") == profile
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]


def test_linear_profile_gives_a_linear_cost_model() -> None:
    profile = load_profile("h200/qwen3-8b").model_copy(update={"cost": LinearConstants(**LINEAR)})
    assert parse_profile(profile.to_json(), "linear") == profile
    assert isinstance(profile.cost_model(), LinearCost)


def test_profile_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_profile("h200/qwen3-8b").cost.alpha_p = 1.0


def test_saving_into_a_missing_folder_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder .*nowhere does not exist; create it first"):
        load_profile("h200/qwen3-8b").save(tmp_path / "nowhere" / "mine.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["cost"].update(alpha_p=-1.0), "cost.alpha_p is -1.0, it must be greater than"),
        (lambda d: d["cost"].update(kappa=0.5), "cost.kappa is 0.5, it must be greater than"),
        (
            lambda d: d["cost"].update(beta_p=float("nan")),
            "cost.beta_p is nan, it must be a finite",
        ),
        (lambda d: d["cost"].update(alpha_d="fast"), "cost.alpha_d is 'fast', it must be a valid"),
        (lambda d: d["cost"].update(alpha_d=0), "alpha_d + host is 0, an iteration cannot be free"),
        (lambda d: d["cost"].update(gamma=1), "unknown field cost.gamma = 1: remove it"),
        (lambda d: d["cost"].update(kind="cubic"), "cost.kind is 'cubic': use"),
        (lambda d: d["cost"].pop("kind"), 'cost.kind is missing: add "interference" or "linear"'),
        (lambda d: d["cost"].pop("k_d"), "cost.k_d is missing: add it (seconds per context token"),
        (lambda d: d.update(cost={**LINEAR, "b": -1.0}), "is negative at r = 1"),
        (lambda d: d.update(schema=7), 'schema is 7, this phasegate reads "schema": 1'),
        (lambda d: d.pop("schema"), "schema is missing"),
        (lambda d: d.update(kv_capacity_tokens=0), "kv_capacity_tokens is 0, it must be greater"),
        (lambda d: d.update(vendor="x"), "unknown field vendor = 'x': remove it"),
        (
            lambda d: d["provenance"].update(how="guessed"),
            "provenance.how is 'guessed', it must be",
        ),
        (lambda d: d["cost"].update(alpha_d=1e308), "cost.alpha_d is 1e+308, it must be"),
        (lambda d: d["provenance"].update(date="soon"), "must be a date (YYYY-MM-DD)"),
        (lambda d: d.update(fit={"r2": 1.5}), "fit.r2 is 1.5, it must be less than or equal to 1"),
        (lambda d: d.update(fit={"confidence": {"z": [1, 2]}}), "names 'z', which is no constant"),
        (
            lambda d: d.update(fit={"confidence": {"b_d": [2, 1]}}),
            "fit.confidence.b_d is [2.0, 1.0]",
        ),
    ],
)
def test_a_broken_file_gives_one_line_with_file_field_value_and_remedy(
    change: Callable[[dict[str, Any]], Any], expected: str
) -> None:
    message = broken(change)
    assert message.startswith("profile my.json: ")
    assert expected in message
    assert "\n" not in message


def test_more_problems_are_counted() -> None:
    message = broken(lambda d: d["cost"].update(alpha_p=-1, beta_p=-1, b_d=-1))
    assert message.endswith("[and 2 more problems]")


def test_text_that_is_not_json_is_located(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"schema": 1,\n "name": }')
    with pytest.raises(ProfileError, match=r"bad\.json: not JSON .*line 2 column 10"):
        load_profile(tmp_path / "bad.json")
    with pytest.raises(ProfileError, match="must be a JSON object, not a list"):
        parse_profile("[]", "list")


def test_unknown_name_lists_presets_and_suggests_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"did you mean h200/qwen3-8b\? presets: .*llama"):
        load_profile("h200/qwen3")
    with pytest.raises(ProfileError, match="no such file or preset; presets: "):
        load_profile("zzz")


def test_binary_file_and_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="not a UTF-8 text file"):
        load_profile(tmp_path / "weights.bin")
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path)


def test_profiles_are_values() -> None:
    assert load_profile("h200/qwen3-8b") == load_profile("h200/qwen3-8b")
    assert isinstance(load_profile("h200/qwen3-8b"), Profile)
