"""Number of examples of the tests with the most work."""

from hypothesis import settings


def examples(most: int) -> settings:
    """Return the settings for `most` examples under the profile `random`, and for a third of them else."""
    return settings(max_examples=repetitions(most, most // 3))


def repetitions(most: int, few: int) -> int:
    """Return `most` under the profile `random`, and else `few`."""
    return most if settings.get_current_profile_name() == "random" else few
