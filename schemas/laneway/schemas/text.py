"""What text may be: everything UTF-8 can carry, but for NUL."""

from __future__ import annotations

from laneway.schemas.errors import InvalidJob


def check_text(field: str, text: str, *, most_bytes: int) -> int:
    """The length of `text` in UTF-8 bytes.

    Raises:
        InvalidJob: a lone surrogate (no encoding exists), a NUL character, or more than `most_bytes`.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidJob(
            field,
            f"text that UTF-8 can encode (character {error.start} is half of a pair)",
            text,
            private=True,
        ) from None
    if size > most_bytes:
        raise InvalidJob(field, f"at most {most_bytes} bytes of UTF-8", text)
    if "\0" in text:
        raise InvalidJob(field, "text without NUL characters", text)
    return size
