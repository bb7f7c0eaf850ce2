"""Reads krait's public C headers: constants, and declarations that cffi can parse."""

import re

_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_DEFINE = re.compile(r"#define\s+(KRAIT_\w+)(\(\w+\))?\s+(.+)")
_NUMBER = re.compile(r"[0-9a-fA-FxX()<>|+~\-\s]+")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")


def _value_of(text, parameter):
    """The value of a numeric macro body (a function-like one at argument 0), else None."""
    if parameter:
        text = re.sub(r"\b%s\b" % parameter, "0", text)
    text = _SUFFIX.sub(r"\1", text.strip())
    return eval(text, {"__builtins__": {}}) if _NUMBER.fullmatch(text) else None  # digits and operators only


def read_headers(texts):
    """Header texts, in include order -> (declarations for cffi, {macro name: int})."""
    kept, constants = [], {}
    for text in texts:
        cplusplus = False
        for line in _BLOCK_COMMENT.sub(" ", text).splitlines():
            word = line.strip()
            if word.startswith("#"):
                cplusplus = word.startswith("#ifdef __cplusplus") or (cplusplus and not word.startswith("#endif"))
                match = _DEFINE.match(word)
                value = match and _value_of(match[3], match[2] and match[2][1:-1])
                if value is not None:
                    constants[match[1]] = value
            elif not cplusplus:
                kept.append(line.replace("KRAIT_API ", ""))
    return "\n".join(kept), constants
