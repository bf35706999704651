#!/usr/bin/env python3
"""Checks compiled CUDA kernels in nvcc's object files. Needs none of CUDA's binary tools.

  scripts/cuda_gates.py [--toolkit VERSION] OBJECT...            compares with framework/cuda/kernels/kernel_table.json
  scripts/cuda_gates.py --update [--toolkit VERSION] OBJECT...   rewrites that table and keeps its claims
  scripts/cuda_gates.py --list OBJECT...                         prints the figures without comparing them
  scripts/cuda_gates.py --self-test                              tests the occupancy formula and the parsing of names

Objects must be compiled with nvcc --no-compress. Figures of each kernel and architecture: registers, static shared
memory, stack frame (local memory), spills (stores to and loads from local memory), tensor-core instructions,
instructions, threads per block from __launch_bounds__, dynamic shared memory from claims, and the resulting number of
resident blocks and warps of a multiprocessor.

Always faults: a kernel that spills or uses local memory; a false claim; a claim that matches no kernel; a kernel of
which no block fits on a multiprocessor. A claim in the table is about the kernels whose names match its regular
expression:
  "tensor_core": true            they contain tensor-core instructions
  "dynamic_shared_bytes": N      dynamic shared memory of their launches, which occupancy includes;
                                 {"sm_80": N, ...} if it depends on the device
  "shape": "..."                 the shape that the bytes are for, if they depend on it: for the reader
  "least_warps": N               N warps fit on a multiprocessor, on every architecture
All other figures are compared if the table was made with the same toolkit, because compilers differ, and only for
architectures that both the build and the table have. --update keeps the figures of architectures that the build lacks.
Exit status: 0 no fault, 1 a fault, 2 invalid arguments or an unreadable object."""

import argparse
import collections
import json
import pathlib
import re
import struct
import subprocess
import sys

TABLE = pathlib.Path(__file__).resolve().parent.parent / "framework/cuda/kernels/kernel_table.json"

ELF_CUDA = 190  # the machine of a cubin's ELF header

# The low 12 bits of a 128-bit instruction are its opcode (Volta to Hopper).
TENSOR_CORE = {0x23C: "HMMA", 0x237: "IMMA", 0x23F: "DMMA", 0x9F0: "HGMMA", 0xDF0: "HGMMA"}
LOCAL_STORE, LOCAL_LOAD = 0x387, 0x983

# Registers, shared memory and threads of a multiprocessor. Compute capability 8.x and later reserve 1 KiB of shared
# memory per block.
SHARED_OF_MULTIPROCESSOR = {80: 164 << 10, 86: 100 << 10, 87: 164 << 10, 89: 100 << 10, 90: 228 << 10}
WARPS_OF_MULTIPROCESSOR = {80: 64, 86: 48, 87: 48, 89: 48, 90: 64}
BLOCKS_OF_MULTIPROCESSOR = {80: 32, 86: 16, 87: 16, 89: 24, 90: 32}
REGISTERS, PARTITIONS, RESERVED_SHARED = 65536, 4, 1024


class Unreadable(Exception):
    pass


def sections(elf):
    """Pairs (name, header) of an ELF file; the header as (name, type, flags, address, offset, size, link, info,
    ...)."""
    if elf[:5] != b"\x7fELF\x02":
        raise Unreadable("not a 64-bit ELF file")
    table = struct.unpack_from("<Q", elf, 40)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + size * i) for i in range(count)]
    start = headers[names][4] if count else 0
    for header in headers:
        name = start + header[0]
        yield elf[name : elf.index(b"\0", name)].decode(), header


def cubins(object_file):
    """Pairs (architecture, cubin) of an object or a program compiled by nvcc, or of a cubin itself."""
    headers = list(sections(object_file))
    machine, flags = struct.unpack_from("<H28xI", object_file, 18)
    if machine == ELF_CUDA:
        yield flags >> 8 & 0xFF, object_file
        return
    for name, header in headers:
        if name != ".nv_fatbin":
            continue
        data, place = object_file[header[4] : header[4] + header[5]], 0
        while place + 16 <= len(data):
            magic, _, header_size, size = struct.unpack_from("<IHHQ", data, place)
            if magic == 0:  # padding between two
                place += 8
                continue
            if magic != 0xBA55ED50:
                raise Unreadable("unknown fat binary format")
            entry, end = place + header_size, place + header_size + size
            while entry < end:
                kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
                if kind == 2:
                    body = data[entry + entry_header : entry + entry_header + entry_size]
                    if body[:4] != b"\x7fELF":
                        raise Unreadable("compressed machine code; compile with nvcc --no-compress")
                    yield struct.unpack_from("<I", data, entry + 28)[0], body
                entry += entry_header + entry_size
            place = end


def attributes(data):
    """The entries of a .nv.info section, as (attribute, bytes)."""
    place = 0
    while place + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == 4:  # the value is the number of bytes that follow
            yield attribute, data[place : place + value]
            place += value


def kernels(cubin, architecture):
    """Mangled name -> figures of the kernels in a cubin."""
    found, named = {}, dict(sections(cubin))
    bytes_of = lambda header: cubin[header[4] : header[4] + header[5]]
    symbols, strings = named[".symtab"], named[".strtab"]
    names = []
    for place in range(symbols[4], symbols[4] + symbols[5], 24):
        start = strings[4] + struct.unpack_from("<I", cubin, place)[0]
        names.append(cubin[start : cubin.index(b"\0", start)].decode())
    for name, header in named.items():
        if not name.startswith(".text."):
            continue
        code = bytes_of(header)
        census = collections.Counter(struct.unpack_from("<Q", code, i)[0] & 0xFFF for i in range(0, len(code), 16))
        shared = named.get(".nv.shared." + name[6:])
        # From Hopper on, the section includes the reserved part.
        static = 0 if shared is None else shared[5] - (RESERVED_SHARED if architecture >= 90 else 0)
        found[name[6:]] = {
            "registers": 0,
            "shared": static,
            "stack": 0,
            "spills": census[LOCAL_STORE] + census[LOCAL_LOAD],
            "tensor_core": sum(census[code] for code in TENSOR_CORE),
            "instructions": len(code) // 16,
            "threads": 1024,
            "dynamic_shared": 0,
        }
    info = named.get(".nv.info")  # the linker adds a cubin without kernels to programs
    for attribute, value in attributes(bytes_of(info)) if info else ():
        if attribute in (0x2F, 0x11) and len(value) == 8:  # register count, frame size
            symbol, amount = struct.unpack("<II", value)
            if names[symbol] in found:
                found[names[symbol]]["registers" if attribute == 0x2F else "stack"] = amount
    entries = {}
    for name, figures in found.items():
        own = named.get(".nv.info." + name)
        if own is None:
            continue  # a device function, not a kernel
        for attribute, value in attributes(bytes_of(own)):
            if attribute == 0x05 and len(value) == 12:  # maximum threads of a block along x, y and z
                x, y, z = struct.unpack("<III", value)
                figures["threads"] = x * y * z
        entries[name] = figures
    return entries


def readable(mangled):
    """Mangled name -> demangled name without our namespaces, return type and parameters."""
    mangled = list(mangled)
    try:
        output = subprocess.run(
            ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unreadable(f"c++filt (package binutils) is needed to demangle names ({error})")
    return {name: short(text) for name, text in zip(mangled, output)}


def short(text):
    text = text.replace("(anonymous namespace)::", "")
    depth = 0
    for place, letter in enumerate(text):  # parameters begin at the first parenthesis outside template arguments
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            text = text[:place]
            break
    text = text.removeprefix("void ")
    text = re.sub(r"furlong::(?:ops::)?(?:[a-z_]+::)*?cuda_engine::|furlong::(?:ops::)?", "", text)
    return text.replace("__nv_bfloat16", "bfloat16")


def occupancy(architecture, registers, threads, shared):
    """Blocks that a multiprocessor holds at once, as cuda_occupancy.h computes it. `shared` is static and dynamic
    together."""
    warps = -(-threads // 32)
    limits = [BLOCKS_OF_MULTIPROCESSOR[architecture], WARPS_OF_MULTIPROCESSOR[architecture] // warps]
    if registers:
        of_warp = -(-registers * 32 // 256) * 256
        limits.append(REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps)
    limits.append(SHARED_OF_MULTIPROCESSOR[architecture] // (-(-(shared + RESERVED_SHARED) // 128) * 128))
    return min(limits)


def claimed_bytes(claim, architecture):
    claimed = claim.get("dynamic_shared_bytes", 0)
    return claimed.get(f"sm_{architecture}", 0) if isinstance(claimed, dict) else claimed


def add_occupancy(figures, name, architecture, claims):
    """Adds the dynamic shared memory that claims state for a kernel, and its blocks and warps of a multiprocessor."""
    dynamic = sum(claimed_bytes(claim, architecture) for claim in claims if re.search(claim["kernel"], name))
    figures["dynamic_shared"] = dynamic
    blocks = occupancy(architecture, figures["registers"], figures["threads"], figures["shared"] + dynamic)
    figures.update(blocks=blocks, warps=blocks * -(-figures["threads"] // 32))


def measure(objects, claims):
    """ "sm_90" -> "file: kernel" -> figures."""
    table = {}
    for path in objects:
        try:
            found = [
                (architecture, kernels(cubin, architecture))
                for architecture, cubin in cubins(pathlib.Path(path).read_bytes())
            ]
        except (Unreadable, OSError, struct.error, KeyError, ValueError) as error:
            raise Unreadable(f"{path}: {error}")
        stem = re.sub(r"(_cuda)?(\.cu)?\.o$", "", pathlib.Path(path).name)
        names = readable({name for _, of_cubin in found for name in of_cubin})
        for architecture, of_cubin in found:
            if architecture not in SHARED_OF_MULTIPROCESSOR:
                continue
            for mangled, figures in of_cubin.items():
                name = f"{stem}: {names[mangled]}"
                add_occupancy(figures, name, architecture, claims)
                table.setdefault(f"sm_{architecture}", {})[name] = figures
    return table


def gates(table, claims):
    """Lists the faults that no build may have."""
    faults = []
    for architecture, of_architecture in sorted(table.items()):
        for name, figures in sorted(of_architecture.items()):
            if figures["spills"] or figures["stack"]:
                faults.append(
                    f"{architecture} {name}: {figures['stack']} bytes of local memory, "
                    f"{figures['spills']} spills (loads and stores)"
                )
            if not figures["blocks"]:
                faults.append(
                    f"{architecture} {name}: no block of {figures['threads']} threads fits on a multiprocessor"
                )
        for claim in claims:
            answering = [name for name in of_architecture if re.search(claim["kernel"], name)]
            if not answering:
                faults.append(f"{architecture}: no kernel matches the claim for '{claim['kernel']}'")
            for name in answering:
                if claim.get("tensor_core") and not of_architecture[name]["tensor_core"]:
                    faults.append(
                        f"{architecture} {name}: claimed to use tensor cores, but has no tensor-core instruction"
                    )
                if of_architecture[name]["warps"] < claim.get("least_warps", 0):
                    faults.append(
                        f"{architecture} {name}: {of_architecture[name]['warps']} warps fit, "
                        f"{claim['least_warps']} are claimed"
                    )
    return faults


def differences(found, expected):
    """Compares the architectures that both have; a build may have fewer than the table, or others."""
    faults = []
    for architecture in sorted(set(found) & set(expected)):
        here, there = found[architecture], expected[architecture]
        for name in sorted(set(here) | set(there)):
            if name not in there:
                faults.append(f"{architecture} {name}: not in the table")
            elif name not in here:
                faults.append(f"{architecture} {name}: in the table, but not in the build")
            elif here[name] != there[name]:
                changed = [
                    f"{key} {there[name].get(key)} -> {value}"
                    for key, value in here[name].items()
                    if value != there[name].get(key)
                ]
                faults.append(f"{architecture} {name}: {', '.join(changed)}")
    return faults


def write(table, claims, toolkit):
    lines = ['{', f'"toolkit": {json.dumps(toolkit)},', '"claims": [']
    lines += [",\n".join("  " + json.dumps(claim) for claim in claims)] if claims else []
    lines += ["],", '"kernels": {']
    for place, (architecture, kernels_of) in enumerate(sorted(table.items())):
        lines.append(f"  {json.dumps(architecture)}: {{")
        lines.append(
            ",\n".join(f"    {json.dumps(name)}: {json.dumps(figures)}" for name, figures in sorted(kernels_of.items()))
        )
        lines.append("  }" + ("," if place + 1 < len(table) else ""))
    TABLE.write_text("\n".join(lines + ["}", "}"]) + "\n")


# What cuda_occupancy.h gives: architecture, registers, threads, shared memory, blocks.
OCCUPANCY_CASES = [
    (80, 140, 448, 49392, 0),
    (90, 160, 64, 23832, 6),
    (80, 129, 160, 66853, 2),
    (90, 94, 480, 44872, 1),
    (80, 108, 544, 24432, 0),
    (90, 88, 384, 88526, 1),
    (90, 91, 96, 66467, 3),
    (90, 88, 480, 31569, 1),
    (80, 53, 992, 74679, 1),
    (80, 56, 928, 47343, 1),
    (80, 217, 128, 31567, 2),
    (90, 56, 160, 59630, 3),
    (90, 126, 64, 39094, 5),
    (80, 92, 192, 27208, 3),
    (90, 75, 64, 224, 12),
]


def self_test():
    for architecture, registers, threads, shared, blocks in OCCUPANCY_CASES:
        got = occupancy(architecture, registers, threads, shared)
        assert got == blocks, f"occupancy({architecture}, {registers}, {threads}, {shared}) is {got}, not {blocks}"
    kernel = {"spills": 0, "stack": 0, "tensor_core": 0, "blocks": 1, "warps": 4, "threads": 128, "dynamic_shared": 0}
    assert gates({"sm_80": {"k": kernel}}, []) == []
    for change, fault in (({"blocks": 0}, "no block"), ({"spills": 1}, "1 spills")):
        faults = gates({"sm_80": {"k": {**kernel, **change}}}, [])
        assert len(faults) == 1 and fault in faults[0], (change, faults)
    table = {"sm_80": {"k": {"registers": 8}}, "sm_90": {"k": {"registers": 8}}}
    assert differences({"sm_90": {"k": {"registers": 8}}, "sm_86": {"k": {"registers": 9}}}, table) == []
    assert differences({"sm_90": {"k": {"registers": 9}}}, table) == ["sm_90 k: registers 8 -> 9"]
    assert differences({"sm_90": {}}, table) == ["sm_90 k: in the table, but not in the build"]
    by_device = {"kernel": "k", "dynamic_shared_bytes": {"sm_80": 5, "sm_90": 7}}
    assert [claimed_bytes(by_device, architecture) for architecture in (80, 90, 86)] == [5, 7, 0]
    assert (
        claimed_bytes({"kernel": "k", "dynamic_shared_bytes": 3}, 86) == 3 and claimed_bytes({"kernel": "k"}, 86) == 0
    )
    names = {
        "void furlong::ops::cuda_engine::fill_kernel<float>(float*, long)": "fill_kernel<float>",
        "void furlong::ops::cuda_engine::k<__nv_bfloat16, "
        "(furlong::ops::Kind)1>(int (*)(long), float)": "k<bfloat16, (Kind)1>",
        "plain(float const*)": "plain",
    }
    for text, expected in names.items():
        assert short(text) == expected, f"{text} became {short(text)}"
    cubin = bytearray(b"\x7fELF\x02" + bytes(59))
    struct.pack_into("<H28xI", cubin, 18, ELF_CUDA, 0x6005A04)
    assert list(cubins(cubin)) == [(90, cubin)]
    for fault in (b"", b"\x7fELF\x01" + bytes(60)):
        try:
            list(cubins(fault))
        except Unreadable:
            continue
        raise AssertionError("a file that is not an object was read")
    print(f"{len(OCCUPANCY_CASES)} occupancies and {len(names)} names are correct")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="rewrite the table")
    parser.add_argument("--list", action="store_true", help="print the figures without comparing them")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--toolkit", default="", help="version of the toolkit that compiled the objects")
    parser.add_argument("objects", nargs="*", metavar="OBJECT")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if not arguments.objects:
        parser.error("no object files were given")
    expected = json.loads(TABLE.read_text()) if TABLE.exists() else {"toolkit": "", "claims": [], "kernels": {}}
    try:
        found = measure(arguments.objects, expected["claims"])
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not found:
        print("error: the objects contain no kernel", file=sys.stderr)
        return 2
    if arguments.list:
        for architecture, of_architecture in sorted(found.items()):
            for name, figures in sorted(of_architecture.items()):
                print(architecture, name, json.dumps(figures))
        return 0
    faults = gates(found, expected["claims"])
    if arguments.update:
        write({**expected["kernels"], **found}, expected["claims"], arguments.toolkit)
    elif arguments.toolkit == expected["toolkit"]:
        faults += differences(found, expected["kernels"])
    else:
        print(
            f"the table is from CUDA {expected['toolkit']}, this build from {arguments.toolkit}: "
            "only spills and claims are checked"
        )
    for fault in faults:
        print("FAULT", fault)
    if not faults:
        missing = sorted(set(found) - set(expected["kernels"]))
        print(
            f"{sum(map(len, found.values()))} kernels on {', '.join(sorted(found))}: "
            "no spills, no local memory, equal to the table"
            + (f" (except {', '.join(missing)}, which it lacks)" if missing else "")
        )
    elif not arguments.update:
        print("if the change is intended: scripts/cuda_gates.py --update, with the same arguments")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
