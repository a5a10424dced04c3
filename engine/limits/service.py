"""What one client may ask of the local service. Everything else that it refuses is refused for what it is.

They keep one client's mistake from being everyone's trouble; none of them is met by a client in good order.
"""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

# what a request may be

BODY_BYTES = Limit(
    "service_body_bytes",
    2**22,
    "bytes",
    "a JSON body; a prompt of half a million token ids fits, and 200 MB would take 8 GB to read",
)
TRAIN_BYTES = Limit(
    "service_train_bytes",
    2**25,
    "bytes",
    "the body of a forward_backward; the SDK sends 5 MB at a time, and more only for a single long datum",
)
PARTS = Limit(
    "service_parts",
    2**16,
    "parts",
    "datums of a forward_backward, with their inputs and tensors; the SDK sends 1,024 datums, and empty ones "
    "cost no bytes, but time",
)
TARGETS = Limit("service_targets", 2**24, "values", "a sparse tensor once those left out are in it")
BODY_SECONDS = Limit(
    "service_body_seconds",
    60,
    "seconds",
    "that a client takes to send a body: it holds a connection and memory meanwhile",
)
NAME = Limit(
    "service_name", 255, "characters", "the name of a model, a session, a checkpoint: what file systems take"
)
NUMBER = Limit(
    "service_number",
    2**31 - 1,
    "",
    "any count, and any number in a sequence: what a tensor's index holds",
)
SEED = Limit("service_seed", 2**64 - 1, "", "a seed, of either sign: what a generator takes")
TEMPERATURE = Limit(
    "service_temperature",
    10_000,
    "",
    "a temperature that is not 0; none lies below one part of it, where logits divided by it overflow",
)
RATE = Limit(
    "service_rate", 10**30, "", "any of Adam's settings: a step with more is beyond what a float holds"
)
RANK = Limit("service_rank", 65_536, "", "an adapter's rank: no layer that is served is wider")
METADATA = Limit(
    "service_metadata", 65_536, "characters", "of a checkpoint's metadata: each list of checkpoints has it"
)
SAMPLES = Limit(
    "service_samples", 1_024, "sequences", "of one call to sample, as the SDK's largest groups have it"
)
TOP = Limit(
    "service_top",
    128,
    "tokens",
    "likeliest ones at each token of a prompt: so many times its length are sent",
)
CHOICES = Limit("service_choices", 128, "answers", "of one call of /v1, as OpenAI's API has it")
STOPS = Limit("service_stops", 64, "texts or ids", "that stop a call: each is looked for after every token")
STOP_TEXT = Limit(
    "service_stop_text",
    1_024,
    "characters",
    "a stop text: so many bytes of an answer are read again after every token",
)
TEXT_PER_TOKEN = Limit(
    "service_text_per_token",
    32,
    "characters",
    "a chat with its tools, or a text, for each token of the model's context; text has about 4, and to find "
    "that more does not fit takes as long as to read it",
)
LISTED = Limit("service_listed", 1_000, "", "runs or checkpoints in one answer; the next are asked for")
RECIPIENTS = Limit("service_recipients", 10, "recipients", "for whom an archive's key is sealed")
CHECKPOINT_SECONDS = Limit(
    "service_checkpoint_seconds", 10 * 365 * 86_400, "seconds", "a checkpoint's life, where it has an end"
)

# what a client may hold

SESSIONS = Limit(
    "service_sessions",
    4_096,
    "sessions",
    "at a time; each is a process that sends heartbeats, or did a while ago",
)
MODELS = Limit(
    "service_models",
    64,
    "models",
    "in training of one session: each is an adapter with its optimizer in memory",
)
PENDING = Limit(
    "service_pending",
    16_384,
    "operations",
    "of one session that are not done yet; the SDK keeps 2,000 at most under way",
)
KEPT = Limit(
    "service_kept", 16_384, "operations", "of one session that are done, whose results can still be fetched"
)
KEPT_BYTES = Limit(
    "service_kept_bytes", 2**26, "bytes", "that those results take together; the newest is always kept"
)
LOADED = Limit(
    "service_loaded",
    4,
    "checkpoints",
    "that are kept loaded for sampling beside the newest of each training run; others are read again",
)
SNAPSHOTS = Limit(
    "service_snapshots",
    12,
    "snapshots",
    "unnamed sampling weights on disk for each training run; those not used for longest are dropped",
)

# when a client is taken for gone

LEFT_SECONDS = Limit(
    "service_left_seconds",
    30,
    "seconds",
    "of silence of a process that, on this machine, is seen to be gone: three heartbeats",
)
SILENT_SECONDS = Limit(
    "service_silent_seconds",
    300,
    "seconds",
    "of silence of a process that is not known; the SDK warns of it after 120",
)

# what is computed at a time

LIVE = Limit("service_live", 256, "sequences", "of one set of weights that are drawn at a time")
LIVE_TOKENS = Limit(
    "service_live_tokens",
    131_072,
    "tokens",
    "that they hold in memory; a single sequence may always hold more",
)
READ_TOKENS = Limit(
    "service_read_tokens",
    16_384,
    "tokens",
    "of prompts, padded, that are read in one pass, between two tokens of everybody else's",
)
