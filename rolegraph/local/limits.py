"""Limits on the requests and the state of one client of the local service, and on models that it loads.

The limits keep one client's mistake from affecting other clients; a working client reaches no limit.
"""

from rolegraph.engine.limits import Limit

# Size of a request.
BODY_BYTES = Limit("service_body_bytes", 2**22, "bytes")
"""JSON body; half a million token ids fit, and 200 MB would take 8 GB of memory."""
TRAIN_BYTES = Limit("service_train_bytes", 2**25, "bytes")
"""Body of a forward_backward; the SDK sends 5 MB at a time."""
PARTS = Limit("service_parts", 2**16, "parts")
"""Number of parts of a forward_backward: its datums with their inputs and tensors; the SDK sends 1,024."""
TARGETS = Limit("service_targets", 2**24, "values")
"""Dense size of the sparse tensors of a request, added up; a kilobyte of sparse data can mean gigabytes."""
BODY_SECONDS = Limit("service_body_seconds", 60, "seconds")
"""Time to send a body, which holds a connection and memory meanwhile."""
SEED = Limit("service_seed", 2**64 - 1, "")
"""Absolute value of a seed; the range of a generator's."""
TEMPERATURE = Limit("service_temperature", 10_000, "")
"""Temperature; its inverse is the smallest temperature above 0."""
RATE = Limit("service_rate", 10**30, "")
"""Settings of Adam, such as the learning rate; a larger value overflows a float."""
RANK = Limit("service_rank", 65_536, "")
"""Rank of an adapter; no served layer is wider."""
METADATA = Limit("service_metadata", 65_536, "characters")
"""Metadata of a checkpoint, sent in each list of checkpoints."""
SAMPLES = Limit("service_samples", 1_024, "sequences")
"""Sequences of one sampling call, as in the SDK's largest groups."""
TOP = Limit("service_top", 128, "tokens")
"""Number of likeliest tokens whose logprobs are returned for each prompt token."""
CHOICE_TOP = Limit("service_choice_top", 20, "tokens")
"""Number of likeliest tokens for each token of a /v1 call, with up to 128 prompts; as in OpenAI's API."""
CHOICES = Limit("service_choices", 128, "answers")
"""Choices of one /v1 call, as in OpenAI's API."""
STOPS = Limit("service_stops", 64, "texts or ids")
"""Stop sequences of a call, each checked after every token."""
STOP_TEXT = Limit("service_stop_text", 1_024, "characters")
"""Stop string; after each token, as many characters of the answer are checked."""
TEXT_PER_TOKEN = Limit("service_text_per_token", 32, "characters")
"""Input for each token of the model's context; text has about 4."""
GRAMMAR = Limit("service_grammar", 2**16, "characters")
"""Grammar of an answer: its JSON Schemas and functions; a larger one delays all other answers."""
LISTED = Limit("service_listed", 1_000, "")
"""Runs or checkpoints on one page of a list."""
CHECKPOINT_SECONDS = Limit("service_checkpoint_seconds", 10 * 365 * 86_400, "seconds")
"""Time to live of a checkpoint."""

# State of a client.
SESSIONS = Limit("service_sessions", 4_096, "sessions")
"""Open sessions; each belongs to one client process that sends heartbeats."""
MODELS = Limit("service_models", 64, "models")
"""Models in training of one session, each an adapter with its optimizer."""
PENDING = Limit("service_pending", 16_384, "operations")
"""Unfinished operations of one session; the SDK has 2,000."""
KEPT = Limit("service_kept", 16_384, "operations")
"""Finished operations of one session whose results can be fetched."""
KEPT_BYTES = Limit("service_kept_bytes", 2**26, "bytes")
"""Size of all results of finished operations; the newest is always kept."""
LOADED = Limit("service_loaded", 4, "checkpoints")
"""Checkpoints loaded for sampling in addition to the newest of each run."""
SNAPSHOTS = Limit("service_snapshots", 12, "snapshots")
"""Unnamed sampling weights on disk for each run; the least recently used weights are deleted."""

# Silence after which a client counts as gone.
LEFT_SECONDS = Limit("service_left_seconds", 30, "seconds")
"""Time without requests from a client process that has ended, after which its session ends."""
SILENT_SECONDS = Limit("service_silent_seconds", 300, "seconds")
"""Time without requests from a client of unknown state, after which its session ends; the SDK warns after
120."""

# Size of a batch.
LIVE = Limit("service_live", 256, "sequences")
"""Sequences of all adapters that are sampled at a time in one batch."""
LIVE_TOKENS = Limit("service_live_tokens", 131_072, "tokens")
"""Tokens in memory of the sequences in a batch; a single sequence may have more."""
READ_TOKENS = Limit("service_read_tokens", 16_384, "tokens")
"""Padded prompt tokens that are read between two sampled tokens."""

# Models that are fetched or loaded.
GGUF_HEADER = Limit("gguf_header", 2**31, "bytes")
"""Memory for the header of a GGUF file; a vocabulary of 256,000 tokens takes 1 GB in the package `gguf`."""
MODEL_BUFFERS = Limit("model_buffers", 2**30, "bytes")
"""Tables that a model computes from its config and that are in none of its files; the masks of GPT-Neo 2.7B
take 134 MB."""
