"""What the demo asks: 8 chats that somebody waits for, 16 texts of mixed length that only have to get done."""

from __future__ import annotations

from typing import Any

ADAPTERS = ("demo-a", "demo-b")
"""The demo model's two adapters."""

_QUESTIONS = (
    "Why is the sky blue? Answer in two sentences.",
    "Name three rivers of France.",
    "Write one sentence about the sea.",
    "What is a prime number?",
    "Give me a title for a story about a lighthouse.",
    "How do I boil an egg?",
    "What does a compiler do?",
    "Say something kind to a tired person.",
)
_TEXT = (
    "The harbour lay quiet in the morning, and the boats that had come in at night were tied up along the wall. "
    "Nets were drying on the stones. A man with a red cap counted the baskets and wrote a number for each of them. "
)
_REPEATS = (1, 2, 4, 8)
"""How often a throughput job repeats the text: prompts of about 50 to 400 tokens."""
LATENCY, THROUGHPUT = len(_QUESTIONS), 16
COUNT = LATENCY + THROUGHPUT


def _lora(index: int) -> dict[str, str]:
    names = (None, *ADAPTERS)
    name = names[index % len(names)]
    return {"lora": name} if name else {}


def latency_jobs(model: str) -> list[dict[str, Any]]:
    """Chats; the first is for the base model and is the one shown on the screen."""
    return [
        {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "sampling": {"max_tokens": 48, "temperature": 0.0},
            "slo": "latency",
            "stream": index == 0,
            **_lora(index),
        }
        for index, question in enumerate(_QUESTIONS)
    ]


def throughput_jobs(model: str) -> list[dict[str, Any]]:
    """Texts to summarise, of four lengths."""
    return [
        {
            "model": model,
            "prompt": f"Report {index}. {_TEXT * _REPEATS[index % len(_REPEATS)]}\nIn short:",
            "sampling": {"max_tokens": 24 + 8 * (index % 3), "temperature": 0.0},
            "slo": "throughput",
            **_lora(index),
        }
        for index in range(THROUGHPUT)
    ]
