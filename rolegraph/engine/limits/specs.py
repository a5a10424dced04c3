"""Limits on a spec file and on the workflow that it describes."""

from rolegraph.engine.limits import Limit

# Size of the file.
SPEC_BYTES = Limit("spec_bytes", 1_000_000, "bytes")
"""File of a spec, of its tests or of a template."""
SPEC_DEPTH = Limit("spec_depth", 40, "levels")
"""Nested mappings and lists."""
SPEC_VALUES = Limit("spec_values", 10_000, "values")
"""Values after the expansion of aliases, which multiply them."""
SPEC_DIGITS = Limit("spec_digits", 300, "characters")
"""Characters of a number; a float has no more digits."""
SPEC_EXTENDS = Limit("spec_extends", 16, "specs")
"""Specs that extend one another."""
SPEC_FAULTS = Limit("spec_faults", 100, "faults")
"""Faults shown at once."""

# Values of single keys.
SPEC_COUNT = Limit("spec_count", 1_000_000_000, "")
"""Any number without its own limit; a larger number is a slip."""
SPEC_INSTANCES = Limit("spec_instances", 4_096, "")
"""`count` of a role; each instance is a turn or more."""
SPEC_ROUNDS = Limit("spec_rounds", 10_000, "")
"""`times` of a loop; each round has a turn of every role."""
SPEC_CALLS = Limit("spec_calls", 1_000, "")
"""`max_calls` and `retry` of a turn; each call sends the whole chat again."""
SPEC_EXAMPLES = Limit("spec_examples", 1_000, "")
"""`examples` of a task; each record of an episode holds them."""
SPEC_RANK = Limit("spec_rank", 1_024, "")
"""`rank` of an adapter; a larger one has the size of the base model."""
SPEC_REFILL = Limit("spec_refill", 64, "")
"""`refill`; the episodes of this many batches and one more are held in memory."""
SPEC_STAGES = Limit("spec_stages", 16, "stages")
"""`stages` of a training; each compiles the roles again."""
SPEC_WORDS = Limit("spec_words", 20, "words")
"""Words of a parser for which the reward of each word is computed on every turn; with more words, for no
word."""
SPEC_STEPS = Limit("spec_steps", 10_000, "steps")
"""Steps of a training whose numbers are checked; of a longer training, this many steps are checked."""
SPEC_KEEP = Limit("spec_keep", 64, "")
"""`keep` of a policy of past selves; a service holds this many adapters."""
SPEC_STALENESS = Limit("spec_staleness", 8, "")
"""`staleness`; the episodes of this many steps are held in memory."""

# Size of the workflow.
SPEC_ROLES = Limit("spec_roles", 200, "roles")
"""Roles; checks compare each with every other."""
SPEC_NAME = Limit("spec_name", 100, "characters")
"""Name, which stands in tables, files and ids."""
SPEC_TEMPLATES = Limit("spec_templates", 20_000, "parts")
"""Parts of all templates and conditions, at some 50 µs of compile time each."""
SPEC_TURNS = Limit("spec_turns", 40_000, "turns")
"""Turns of one episode; a plan holds some 1,500 bytes for each."""
SPEC_EDGES = Limit("spec_edges", 200_000, "edges")
"""Edges between the turns of one episode."""
SPEC_LINEAGES = Limit("spec_lineages", 500_000, "ancestors")
"""Ancestors of all instances; compilation holds some 100 bytes for each."""
ESTIMATOR_KEYS = Limit("estimator_keys", 1_000, "keys")
"""Keys of an estimator's state, each of which is a figure of every step."""
SWEEP_POINTS = Limit("sweep_points", 1_000, "points")
"""Combinations of a sweep's values; each is a run with a folder of its own."""
