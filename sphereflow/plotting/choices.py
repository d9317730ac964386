"""Words that a user chooses from, and the error for any other."""

from sphereflow.errors import CaseError


def check_choice(key: str, word: str, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not allowed.

    Raises
    ------
    CaseError
        Names the key, the words that are allowed, and the most similar of them.
    """
    if word in allowed:
        return
    from sphereflow.case.wording import nearest  # takes pydantic to import, for an error only

    guess = nearest(word, allowed)
    hint = f"; did you mean {guess}?" if guess else ""
    raise CaseError(f"{key}: {word!r} is not known; must be one of {', '.join(allowed)}{hint}")
