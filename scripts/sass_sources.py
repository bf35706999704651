"""Source statements of machine instructions: the statement of each inlined call and what encloses it."""

import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


@functools.cache
def lines_of(path):
    """A file's lines. A path of another checkout is looked up in this one."""
    parts = pathlib.Path(path).parts
    for candidate in (pathlib.Path(path), *(ROOT.joinpath(*parts[start:]) for start in range(1, len(parts)))):
        if candidate.is_file():
            return candidate.read_text().splitlines()
    return []


def indentation(text):
    return len(text) - len(text.lstrip())


@functools.cache
def statements(path, line):
    """The line's text, then the first lines of the statements around it, innermost first, as "file: text". Relies on
    the indentation. The inside of an else starts with "else of" and its if."""
    lines, name = lines_of(path), pathlib.PurePath(path).name
    if not 1 <= line <= len(lines):
        return (f"{name}: line {line}",)
    found = [f"{name}: {lines[line - 1].strip()}"]
    inner = indentation(lines[line - 1])
    for place in range(line - 2, -1, -1):
        text = lines[place]
        if not text.strip() or indentation(text) >= inner or re.match(r"\s*(#|public:|private:|protected:)", text):
            continue
        inner = indentation(text)
        if inner == 0 and not re.search(r"[({]", text):
            break
        stripped = text.strip()
        if stripped.startswith(("} else", "else")):
            first = next(
                (
                    above
                    for above in reversed(lines[:place])
                    if above.strip() and indentation(above) == inner and above.lstrip().startswith("if")
                ),
                "",
            )
            stripped = f"else of {first.strip()}"
        found.append(f"{name}: {stripped}")
        if inner == 0:
            break
    return tuple(found)


@functools.cache
def description(frames):
    """One line for each statement around an instruction: of the innermost inlined function first, then of the call."""
    return "\n".join(text for path, line in frames for text in statements(path, line))


@functools.cache
def own_line(frames):
    """The statement of the kernel's own folder that an instruction belongs to, not that of a helper elsewhere."""
    if not frames:
        return ""
    home = pathlib.PurePath(frames[-1][0]).parent
    return next(statements(path, line)[0] for path, line in frames if pathlib.PurePath(path).parent == home)
