#!/usr/bin/env python3
"""Checks the layering of the rooms: no room includes or calls a higher one.

  check_layers.py BUILD               checks a finished build (compile_commands.json, Ninja's dependencies, objects)
  check_layers.py BUILD --self-test   plants a wrong include in a source and in a header, and a wrong call to a
                                      linked function, and expects to find all three

BUILD/rooms.txt, written by CMakeLists.txt, lists the rooms bottom up. Includes are read from the compiler's dependency
files and from the text of each header, because a header is compiled only as part of other files. Calls are read with
nm: every undefined symbol of an object that a room defines must be defined in the object's own room or a lower one.
The linker itself accepts any order. Exit status: 0 no violation, 1 a violation, 2 the build is missing."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Ladder:
    def __init__(self, build):
        self.build = build
        self.rooms = (build / "rooms.txt").read_text().split()

    def height(self, path):
        """Returns the number of the room that contains a path; None outside all rooms (tests, benchmarks)."""
        for number, room in enumerate(self.rooms):
            if path.startswith(room + "/"):
                return number
        return None

    def relative(self, path):
        try:
            return str((self.build / path).resolve().relative_to(ROOT))
        except ValueError:
            return ""

    def objects(self):
        """Returns {object: source} of all rooms. A generated file, which compiles a kernel for the simulator or several
        sources of a room, counts as the first file that it includes."""
        found = {}
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            source = self.relative(entry["file"])
            if source.startswith(self.relative(self.build) + "/"):
                wrapped = INCLUDE.search(pathlib.Path(entry["file"]).read_text())
                source = self.relative(ROOT / wrapped.group(1)) if wrapped else ""
            path = pathlib.Path(entry["directory"]) / re.search(r" -o (\S+)", entry["command"]).group(1)
            if self.height(source) is not None and path.exists():
                found[str(path)] = source
        return found

    def dependencies(self):
        """Returns {object: [paths below the root]} from the dependencies that the compiler reported to Ninja."""
        listing = subprocess.run(["ninja", "-C", self.build, "-t", "deps"], capture_output=True, text=True, check=True)
        found, current = {}, []
        for line in listing.stdout.splitlines():
            if line.startswith("    "):
                current.append(self.relative(line.strip()))
            elif ": #deps" in line:
                current = found.setdefault(str(self.build / line.split(": #deps")[0]), [])
        return found


def wrong_includes(ladder, objects, dependencies, headers):
    """Returns pairs (file, included file) from compilations and from the text of headers."""
    read = [(source, path) for name, source in objects.items() for path in dependencies.get(name, [])]
    named = [(header, path) for header, text in headers.items() for path in INCLUDE.findall(text)]
    found = set()
    for file, included in read + named:
        above = ladder.height(included)
        if above is not None and above > ladder.height(file):
            found.add((file, included))
    return sorted(found)


def symbols(objects):
    """Returns [(object, letter, symbol)] of all objects, from nm."""
    listing = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout
    pattern = re.compile(r"^(.*?):[0-9a-f ]{16} (\w) (\S+)$")
    return [match.groups() for match in map(pattern.match, listing.splitlines()) if match]


def wrong_calls(ladder, objects):
    """Returns triples (source, symbol, room that defines it)."""
    table = symbols(objects)
    defined = {}
    for name, letter, symbol in table:
        if letter in "TDBRVWuiG":
            height = ladder.height(objects[name])
            defined[symbol] = min(height, defined.get(symbol, height))
    found = set()
    for name, letter, symbol in table:
        if letter in "Uwv" and defined.get(symbol, -1) > ladder.height(objects[name]):
            found.add((objects[name], symbol, ladder.rooms[defined[symbol]]))
    return sorted(found)


def demangled(symbol):
    return subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()


def headers_of(ladder):
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "*.h", "*.cuh"], capture_output=True, text=True)
    paths = listing.stdout.split() or [str(p.relative_to(ROOT)) for p in ROOT.glob("[a-z]*/**/*.*h")]
    return {path: (ROOT / path).read_text() for path in paths if ladder.height(path) is not None}


def report(ladder, includes, calls):
    for file, included in includes:
        print(f"{file} ({ladder.rooms[ladder.height(file)]}) includes {included} of a higher room")
    for source, symbol, room in calls:
        print(
            f"{source} ({ladder.rooms[ladder.height(source)]}) calls {demangled(symbol)}, "
            f"which the higher room {room} defines"
        )


def self_test(ladder, objects, dependencies, headers):
    """Plants includes and a call of higher rooms in the lowest room, and expects to find exactly these."""
    lowest = ladder.rooms[0]
    called = next(
        symbol
        for name, letter, symbol in symbols(objects)
        if letter == "T" and symbol.startswith("_ZN7furlong") and objects[name].startswith("trainers/train/")
    )
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "planted.cpp"
        source.write_text(f'void above() __asm__("{called}");\nvoid planted() {{ above(); }}\n')
        planted = str(source.with_suffix(".o"))
        subprocess.run(["c++", "-c", source, "-o", planted], check=True)
        objects = objects | {planted: f"{lowest}/planted.cpp"}
        dependencies = dependencies | {planted: ["communication/launch/slurm_nodes.h"]}
        headers = headers | {f"{lowest}/planted.h": '#include "formats/json_text.h"\n'}
        includes, calls = wrong_includes(ladder, objects, dependencies, headers), wrong_calls(ladder, objects)
    report(ladder, includes, calls)
    expected = [
        (f"{lowest}/planted.cpp", "communication/launch/slurm_nodes.h"),
        (f"{lowest}/planted.h", "formats/json_text.h"),
    ]
    return includes == expected and calls == [(f"{lowest}/planted.cpp", called, "trainers/train")]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    if not (build / "rooms.txt").exists() or not (build / "compile_commands.json").exists():
        print(f"{build} has no rooms.txt and compile_commands.json; build it first", file=sys.stderr)
        return 2
    ladder = Ladder(build)
    objects, dependencies, headers = ladder.objects(), ladder.dependencies(), headers_of(ladder)
    if not objects or not headers or not any(dependencies.get(name) for name in objects):
        print(f"{build} has no objects with dependencies; build it first", file=sys.stderr)
        return 2
    if "--self-test" in sys.argv[2:]:
        found = self_test(ladder, objects, dependencies, headers)
        print("found exactly the three planted faults" if found else "expected exactly the three planted faults")
        return 0 if found else 1
    includes, calls = wrong_includes(ladder, objects, dependencies, headers), wrong_calls(ladder, objects)
    report(ladder, includes, calls)
    print(
        f"{len(ladder.rooms)} rooms, {len(objects)} objects: {len(includes)} wrong includes, "
        f"{len(calls)} wrong calls"
    )
    return 1 if includes or calls else 0


if __name__ == "__main__":
    sys.exit(main())
