"""One text for many: `Quantize(bits={2,4,8})` is three specs, and several braces are all their combinations."""

MOST = 256  # specs from one text: more is a slip of the keyboard, not an afternoon's work
_OPEN, _CLOSE = "([{", ")]}"


def expanded(text: str) -> list[str]:
    """Every text that choosing one entry of each pair of braces gives, in order; the last braces change fastest."""
    return list(dict.fromkeys(_expanded(text, text)))


def _expanded(part: str, whole: str) -> list[str]:
    span = _first_braces(part, whole)
    if span is None:
        return [part]
    start, end = span
    choices = [choice for entry in _choices(part[start + 1 : end], whole) for choice in _expanded(entry, whole)]
    rest = _expanded(part[end + 1 :], whole)
    if len(choices) * len(rest) > MOST:
        raise ValueError(f"{whole!r} stands for more than {MOST} specs: leave out some values")
    return [part[:start] + choice + behind for choice in choices for behind in rest]


def _first_braces(part: str, whole: str) -> tuple[int, int] | None:
    """Where the first braces begin and end."""
    depth, start = 0, None
    for place, sign in _signs(part, whole):
        if sign == "{":
            start = place if start is None else start
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth < 0:
                raise ValueError(f"{whole!r} has a closing brace without an opening one")
            if depth == 0 and start is not None:
                return start, place
    if depth:
        raise ValueError(f"{whole!r} has an opening brace that is never closed")
    return None


def entries(text: str, whole: str = "") -> list[str]:
    """What stands between the outermost commas. `whole`: what the text is a part of, for a sentence."""
    depth, last, found = 0, 0, []
    for place, sign in _signs(text, whole or text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign == "," and depth == 0:
            found.append(text[last:place].strip())
            last = place + 1
    return [*found, text[last:].strip()]


def _choices(inside: str, whole: str) -> list[str]:
    found = entries(inside, whole)
    if not all(found):
        raise ValueError(f"{whole!r} has braces with nothing in them: write values with commas, e.g. bits={{2,4,8}}")
    return found


def _signs(text: str, whole: str) -> list[tuple[int, str]]:
    """Brackets and commas with their places; those inside quotes are letters like any other."""
    quote, found = "", []
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _OPEN + _CLOSE + ",":
            found.append((place, sign))
    if quote:
        raise ValueError(f"{whole!r} has a quote that is never closed")
    return found
