"""Refusals of prompts beyond a model's context, by server.

The texts are those of the servers' sources and of reports of their users: vllm-project/vllm 20409,
QwenLM/Qwen3 1321 and sgl-project/sglang 4048 (SGLang), ggml-org/llama.cpp 15780 and 19774,
huggingface/huggingface_hub 2763 (TGI), docker/docker-agent 569 (Anthropic), BerriAI/litellm's table of
exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping

FULL: Mapping[str, str] = {
    "OpenAI": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    ),
    "OpenAI, responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    "OpenAI, limit": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 "
        "tokens. Please reduce the length of the messages."
    ),
    "vLLM": (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens "
        "(112946 in the messages, 10000 in the completion). Please reduce the length of the messages or "
        "completion."
    ),
    "vLLM, answer": (
        "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length"
        " is 4096 tokens and your request has 2778 input tokens (8000 > 4096 - 2778). None"
    ),
    "vLLM, decoder": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "vLLM, tokens": (
        "You passed 4097 input tokens and requested 1 output tokens. However, the model's context length"
        " is only 4096 tokens, resulting in a maximum input length of 4095 tokens."
    ),
    "SGLang": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "SGLang, answer": "Requested token count exceeds the model's maximum context length of 131072 tokens.",
    "SGLang, memory": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
    "llama.cpp": (
        "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it"
    ),
    "llama.cpp, 2025": (
        "the request exceeds the available context size. try increasing the context size or enable "
        "context shift"
    ),
    "llama.cpp, slots": "Context size has been exceeded.",
    "llama-cpp-python": "Requested tokens (2285) exceed context window of 2048",
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length "
        "(n_keep: 5453>= n_ctx: 4096)."
    ),
    "Ollama": "prompt too long; exceeded max context length by 4 tokens",
    "Ollama, embeddings": "the input length exceeds the context length",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic, answer": (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input "
        "length or `max_tokens` and try again"
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8740 "
        "`inputs` tokens and 500 `max_new_tokens`"
    ),
    "TGI, input": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1168",
    "Tinker": (
        "Prompt length plus max_tokens exceeds the model's context window: 38284 prompt tokens + 2048 "
        "max_tokens > 32768"
    ),
    "LiteLLM": (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: the provider refused the request"
    ),
    "Groq": "Please reduce the length of the messages or completion.",
    "Together": "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context"
        " length"
    ),
    "Moonshot": "Your request exceeded model token limit: 262144 (requested: 300000)",
    "Bedrock": "Input is too long for requested model.",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Copilot": "prompt token count of 200000 exceeds the limit of 128000",
    "MiniMax": "invalid params, context window exceeds limit",
    "DashScope": "Range of input length should be [1, 30720]",
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"
    ),
    "Z.ai": "Prompt exceeds max length",
}
