"""The bounds of the service, each with its reason. Everything else that it refuses is refused for what it is.

They keep one client's mistake from being everyone's trouble; none of them is met by a client in good order.
"""

from __future__ import annotations

# what a request may be

MAX_JSON_BYTES = 2**22
"""A JSON body. A prompt of half a million token ids fits; 200 MB would take 8 GB to read."""
MAX_TRAIN_BYTES = 2**25
"""The body of a forward_backward. The SDK sends 5 MB at a time, and more only for a single long datum."""
MAX_PARTS = 2**16
"""Datums of a forward_backward, with the parts of their inputs and their tensors; the SDK sends 1,024 datums.
Empty ones cost no bytes, but time."""
BODY_SECONDS = 60.0
"""How long a client may take to send a body: it holds a connection and memory meanwhile."""
MAX_NAME = 255
"""Characters of the name of a model, a session, a checkpoint: what file systems take."""
MAX_NUMBER = 2**31 - 1
"""Any count, and any number in a sequence: what a tensor's index holds."""
MAX_SEED = 2**64
"""Seeds lie below it, and above its negative: what a generator takes, either sign."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 1e4
"""Beside 0, which takes the likeliest token. Logits divided by less than that overflow."""
MAX_RATE = 1e30
"""Any of Adam's settings: a step with more is beyond what a float holds."""
MAX_SAMPLES = 1024
"""Sequences of one call to sample, as the SDK's largest groups have it."""
MAX_TOP = 128
"""Likeliest tokens of each token of a prompt: so many times its length are sent."""
MAX_CHOICES = 128
"""Answers of one call of /v1, as OpenAI's API has it."""
MAX_STOPS = 64
"""Stop texts or ids of one call: each is looked for after every token."""
MAX_STOP_CHARS = 1024
"""Characters of a stop text: so many bytes of an answer are read again after every token."""
MAX_CHARS_PER_TOKEN = 32
"""Characters of a chat or a text for each token of the model's context. Text has about 4; to find that more
does not fit takes as long as to read it."""

# what a client may hold

MAX_SESSIONS = 4096
"""Sessions at a time; each is a process that sends heartbeats, or did a while ago."""
MAX_MODELS = 64
"""Models in training of one session: each is an adapter with its optimizer in memory."""
MAX_PENDING = 16_384
"""Operations of one session that are not done yet; the SDK keeps 2,000 at most under way."""
MAX_KEPT = 16_384
"""Finished operations of one session whose results can still be fetched."""
MAX_KEPT_BYTES = 2**26
"""What those results may take up together; the newest is always kept."""
MAX_LOADED = 4
"""Checkpoints that are kept loaded for sampling beside the newest of each training run; others are read
again when they are asked for."""
MAX_SNAPSHOTS = 12
"""Unnamed sampling weights that are kept on disk for each training run; beyond it, those not used for longest
are dropped."""

# when a client is taken for gone

HEARTBEAT_SECONDS = 10.0
"""How often the SDK sends a heartbeat, from a thread of its own."""
LEFT_SECONDS = 30.0
"""Silence after which a session ends whose process, on this machine, is seen to be gone: three heartbeats."""
SILENT_SECONDS = 300.0
"""Silence after which a session ends whose process is not known; the SDK warns of it after 120."""

# what is computed at a time

MAX_LIVE = 256
"""Sequences of one set of weights drawn at a time."""
MAX_TOKENS = 131_072
"""Tokens that they may hold in memory; a single sequence may always hold more."""
MAX_READ_TOKENS = 16_384
"""Prompt tokens, padded, that are read in one forward pass, between two tokens of everybody else's."""
