"""Commands `preview` and `forecast`."""

from rolegraph.cli.doors import Door, Verb

_PROMPTS = "Show the prompts of each role, without a model."
_COST = "Estimate the cost and effect of a first training step."
DOOR = Door(
    {
        "preview": Verb("Author", _PROMPTS, "rolegraph.outlook.preview_command"),
        "forecast": Verb("Train", _COST, "rolegraph.outlook.forecast_command"),
    }
)
