#!/usr/bin/env python3
"""Extracts antibody heavy chains as FASTA from the repertoires in R packages.

    scripts/antibody_sequences.py Rdata.rdb... >antibodies.fa

An .rdb file is a sequence of objects, each a length (big-endian, 4 bytes) and a zlib stream of R's serialization, which
contains strings unchanged. Selects nucleotide sequences aligned by IMGT numbers: gaps are dots, which distinguishes
them from raw reads, and the reading frame starts at the first codon. They must translate without stop or unknown
residue, have at least 100 residues, and reach the WG.G motif after CDR3. Prints each distinct protein once, in
alphabetical order, so that the output is reproducible. Needs only Python.
"""

import re
import sys
import zlib

BASES = "TCAG"
AMINO_ACIDS = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODONS = {
    a + b + c: AMINO_ACIDS[16 * i + 4 * j + k]
    for i, a in enumerate(BASES)
    for j, b in enumerate(BASES)
    for k, c in enumerate(BASES)
}


def objects(path):
    with open(path, "rb") as file:
        data = file.read()
    position = 0
    while position + 4 < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        stream = zlib.decompressobj()
        value = stream.decompress(data[position + 4 :])
        if len(value) != length:
            raise SystemExit(f"{path}: an object of {length} bytes has {len(value)} bytes")
        position = len(data) - len(stream.unused_data)
        yield value


def translated(aligned):
    """Returns the protein of an aligned sequence, or None if it does not translate completely."""
    residues = []
    for i in range(0, len(aligned) - 2, 3):
        codon = aligned[i : i + 3]
        if codon == "...":
            continue
        residue = CODONS.get(codon)
        if residue is None or residue == "*":
            return None
        residues.append(residue)
    return "".join(residues)


def main():
    proteins = set()
    for path in sys.argv[1:]:
        for value in objects(path):
            for match in re.finditer(rb"[ACGTN.\-]{300,}", value):
                if b"..." not in match.group():
                    continue
                protein = translated(match.group().decode())
                if protein and len(protein) >= 100 and re.search("WG.G", protein[90:]):
                    proteins.add(protein)
    if not proteins:
        raise SystemExit("no antibody sequences found; expected .rdb files of alakazam or tigger")
    for number, protein in enumerate(sorted(proteins), 1):
        print(f">heavy_chain_{number}\n{protein}")


if __name__ == "__main__":
    main()
