"""Number of examples of the property tests with the most work."""

from hypothesis import settings


def examples(most: int) -> settings:
    """Return the settings for `most` examples under the profile `random`, and for a third of them else."""
    whole = settings.get_current_profile_name() == "random"
    return settings(max_examples=most if whole else most // 3)
