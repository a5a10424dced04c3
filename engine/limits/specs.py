"""What a spec's file may hold, and what may come of it."""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

# as it is read

SPEC_BYTES = Limit("spec_bytes", 1_000_000, "bytes", "a spec is written by a person; all of it is held")
SPEC_DEPTH = Limit("spec_depth", 40, "levels", "mappings and lists of a spec inside one another")
SPEC_VALUES = Limit(
    "spec_values", 10_000, "values", "the values of a spec once its aliases are followed, which multiply them"
)
SPEC_DIGITS = Limit("spec_digits", 300, "characters", "a number in a spec; a float has no more")
SPEC_EXTENDS = Limit("spec_extends", 16, "specs", "specs that extend one another; each is read and merged")
SPEC_FAULTS = Limit(
    "spec_faults", 100, "faults", "faults of a spec that are told at once; who mends those sees the next"
)

# what its numbers may be

SPEC_COUNT = Limit("spec_count", 1_000_000_000, "", "numbers of a spec; larger ones are slips")
SPEC_INSTANCES = Limit("spec_instances", 4_096, "", "`count` of a role: each is a turn at least")
SPEC_ROUNDS = Limit("spec_rounds", 10_000, "", "`times` of a loop: in each, all of its roles have turns")
SPEC_CALLS = Limit("spec_calls", 1_000, "", "`calls` of a turn: with each the whole chat is sent again")
SPEC_RETRIES = Limit("spec_retries", 100, "", "`retry` of a turn: a model that failed so often will again")
SPEC_SECONDS = Limit("spec_seconds", 1_000_000, "seconds", "`timeout` of a role: eleven days are no limit")
SPEC_WEIGHT = Limit("spec_weight", 1_000_000, "", "`weight` of a role: beyond it floats lose the others")
SPEC_RANK = Limit("spec_rank", 1_024, "", "`rank` of an adapter: more would be the base's own size")
SPEC_STALENESS = Limit("spec_staleness", 8, "", "`staleness`: that many steps of episodes are held at once")

# what may come of it

SPEC_ROLES = Limit("spec_roles", 200, "roles", "checks hold each role against every other")
SPEC_NAME = Limit("spec_name", 100, "characters", "a name of a spec: it stands in tables, files and ids")
SPEC_TEMPLATES = Limit(
    "spec_templates",
    20_000,
    "parts",
    "those of all templates and conditions, once for each use; each takes some 50 µs to compile",
)
SPEC_TURNS = Limit(
    "spec_turns", 40_000, "turns", "the turns of one episode; each is some 1,500 bytes of a plan"
)
SPEC_EDGES = Limit("spec_edges", 200_000, "edges", "who waits for whom in one episode")
SPEC_LINEAGES = Limit(
    "spec_lineages",
    500_000,
    "ancestors",
    "of every instance, the roles that it comes from; each is some 100 bytes while a spec is compiled",
)
