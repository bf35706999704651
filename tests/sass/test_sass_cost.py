#!/usr/bin/env python3
"""Tests scripts/sass_cost.py on machine code that was counted by hand (loops.sass). Needs no toolkit."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))
import sass
import sass_cases
import sass_cost
import sass_sources

LISTING = HERE / "loops.sass"
ROWS, N, SHARE = 3, 10, 0.25
IN_IF, IN_ELSE = r"^[^\n]*\n.*: if \(rows > 8\)", r": else of if \(rows > 8\)"
LOOPS = [(r"for \(int row", ROWS), (r"for \(int i", N)]
PARTS = [(IN_IF, SHARE), (IN_ELSE, 1 - SHARE)]
# 4 outside; a row: 6 always, 2 in the if, 2 in the else, and 9 for each i.
SLOTS = 4 + ROWS * (6 + 2 * SHARE + 2 * (1 - SHARE)) + ROWS * N * 9


def case(**changes):
    values = dict(name="rows", kernel=": nested$", warps=2, token_heads=8, bytes=5, loops=LOOPS, parts=PARTS)
    return sass_cases.Case(**{**values, **changes})


def run(*arguments, cases=(), listing=LISTING):
    """Exit status, standard output and standard error of the program."""
    output, errors, before = io.StringIO(), io.StringIO(), (sys.argv, sass_cases.CASES, sass_cases.SUMS)
    sys.argv, sass_cases.CASES, sass_cases.SUMS = ["sass_cost.py", *map(str, arguments), str(listing)], list(cases), {}
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = sass_cost.main()
    finally:
        sys.argv, sass_cases.CASES, sass_cases.SUMS = before
    return status, output.getvalue(), errors.getvalue()


class Loops(unittest.TestCase):
    def setUp(self):
        self.kernels = {kernel.name: kernel for kernel in sass.kernels(LISTING.read_text())}

    def test_nested_loops_and_two_back_edges_make_two_loops(self):
        nested = self.kernels["nested"]
        self.assertEqual([loop.path for loop in nested.all_loops()], ["1", "1.1"])
        inner = nested.loops[0].children[0]
        self.assertEqual(sum(inner.header in nested.blocks[block].successors for block in inner.blocks), 2)
        costs = sass_cost.loop_costs(nested)
        self.assertEqual({path: cost["slots"] for path, cost in costs.items()}, {"": 4, "1": 10, "1.1": 9})
        self.assertEqual([costs["1.1"][pipe] for pipe in ("fma", "alu", "exp", "global", "control")], [2, 3, 1, 1, 2])

    def test_code_after_the_exit_is_not_counted(self):
        self.assertEqual(sum(len(block.instructions) for block in self.kernels["nested"].blocks), 23)

    def test_indirect_branches_local_calls_and_divergence(self):
        products = self.kernels["_Z8productsPf"]
        costs = sass_cost.loop_costs(products)
        self.assertEqual({path: cost["slots"] for path, cost in costs.items()}, {"": 12, "1": 6})

    def test_products_and_shared_memory(self):
        cost = sass_cost.loop_costs(self.kernels["_Z8productsPf"])[""]
        self.assertEqual((cost["mma"], cost["wgmma"]), (2048 + 2 * 1024, 2 * 64 * 128 * 16 / 4))
        # LDGSTS 4, LDS 4, STS 2, LDSM 4 and 2, SHFL 1; wgmma with one or two operands in shared memory.
        self.assertEqual(cost["wavefronts"], 17 + (64 + 128) * 32 / 128 / 4 + 128 * 32 / 128 / 4)

    def test_statements_around_a_line(self):
        found = sass_sources.statements("/elsewhere/tests/sass/loops.cu", 12)
        self.assertEqual(found[0], "loops.cu: y[row] = -sum;")
        self.assertEqual(found[1], "loops.cu: else of if (rows > 8) {")
        self.assertEqual(found[2], "loops.cu: for (int row = 0; row < rows; ++row) {")

    def test_unknown_instructions_and_irreducible_loops_are_refused(self):
        text = LISTING.read_text()
        for old, new, message in (
            ("MUFU.EX2 R2", "MUFOO.EX2 R2", "unknown instructions MUFOO"),
            ("HMMA.16816", "HMMA.99", "the shape of HMMA.99"),
            ("S2R R0, SR_TID.X", "@P0 BRA `(.L_x_1)", "a loop with two entries"),
        ):
            with self.assertRaisesRegex(sass.Unreadable, message):
                for kernel in sass.kernels(text.replace(old, new)):
                    sass_cost.loop_costs(kernel)


class Cases(unittest.TestCase):
    def figures(self, **changes):
        status, output, errors = run("--cases", "--json", cases=[case(**changes)])
        self.assertEqual((status, errors), (0, ""))
        return json.loads(output)["sm_90"]["rows"]

    def test_slots_follow_trip_counts_and_shares(self):
        figures = self.figures()
        self.assertAlmostEqual(figures["slots"], SLOTS * 2 / 8)
        self.assertAlmostEqual(figures["exp"], ROWS * N * 2 / 8)
        both = self.figures(parts=[])
        self.assertAlmostEqual(both["slots"], (SLOTS + ROWS * 2) * 2 / 8)

    def test_paths_lists_and_architectures(self):
        figures = self.figures(loops=[("1", {"sm_90": ROWS, "sm_80": 99}), ("1.1", [N])])
        self.assertAlmostEqual(figures["slots"], SLOTS * 2 / 8)

    def test_the_largest_time_is_the_prediction(self):
        h100, figures = sass_cases.DEVICES[0], self.figures()
        cycle = 1e12 / (h100.multiprocessors * h100.clock)
        self.assertAlmostEqual(figures["times"]["issue"], figures["slots"] / (4 * 0.35) * cycle)
        self.assertAlmostEqual(figures["times"]["exponentials"], figures["exp"] * 2 * cycle)
        self.assertEqual(figures["bound"], "issue")
        self.assertEqual(self.figures(bytes=1e6)["bound"], "memory")
        self.assertAlmostEqual(self.figures(bytes=1e6)["picoseconds"], 1e6 / 3.35)

    def test_cases_that_do_not_fit_are_refused_in_one_line(self):
        for changes, message in (
            ({"kernel": "other"}, "0 kernels match 'other'"),
            ({"kernel": ": "}, "2 kernels match"),
            ({"loops": LOOPS[:1]}, "loop 1.1 has no trip count"),
            ({"loops": [*LOOPS, (r"for \(int j", 1)]}, r"loop 'for \(int j' matches 0 times"),
            ({"loops": [LOOPS[0], (LOOPS[1][0], (1, 2))]}, "matches 1 times in the code, 2 expected"),
            ({"loops": [(r"for \(", [3])]}, "has 1 trip counts, the code has more loops"),
            ({"parts": [(r"if \(columns > 8", 0)]}, r"part 'if \(columns > 8' matches 0 times"),
            ({"bytes": {"sm_80": 1}}, "for sm_90"),
        ):
            status, output, errors = run("--cases", cases=[case(**changes)])
            self.assertEqual((status, output, errors.count("\n")), (2, "", 1), changes)
            self.assertIn(message, errors)

    def test_a_planted_change_fails_the_check(self):
        with tempfile.TemporaryDirectory() as folder:
            table, changed = pathlib.Path(folder, "table.json"), pathlib.Path(folder, "loops.sass")
            arguments = dict(cases=[case()])
            self.assertEqual(run("--update", table, "--toolkit", "13.0", **arguments)[0], 0)
            self.assertEqual(run("--check", table, "--toolkit", "13.0", **arguments)[0], 0)
            line = "        /*0080*/                   MUFU.EX2 R2, R2 ;\n"
            text = LISTING.read_text()
            self.assertIn(line, text)
            changed.write_text(text.replace(line, 2 * line))
            status, output, _ = run("--check", table, "--toolkit", "13.0", listing=changed, **arguments)
            self.assertEqual(status, 1)
            self.assertRegex(output, r"FAULT sm_90 rows: slots 74\.5 -> 82, exp 7\.5 -> 15")
            self.assertEqual(run("--check", table, "--toolkit", "12.9", listing=changed, **arguments)[0], 0)
            self.assertEqual(run("--check", pathlib.Path(folder, "none.json"), **arguments)[0], 2)


class Arguments(unittest.TestCase):
    def test_invalid_input_is_refused_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            empty = pathlib.Path(folder, "empty.o")
            empty.write_bytes(b"")
            for arguments, listing, message in (
                (["--kernel", "none"], LISTING, "no kernel matches 'none'"),
                (["--kernel", "("], LISTING, "missing )"),
                (["--cases", "--kernel", "none"], LISTING, "no case matches 'none'"),
                ([], empty, "not a 64-bit ELF file"),
                ([], pathlib.Path(folder, "absent.o"), "No such file"),
            ):
                status, _, errors = run(*arguments, cases=[case()], listing=listing)
                self.assertEqual((status, errors.count("\n")), (2, 1), errors)
                self.assertIn(message, errors)

    def test_prints_the_loops_of_kernels(self):
        status, output, _ = run("--kernel", "nested", "--lines", "1")
        self.assertEqual(status, 0)
        self.assertRegex(output, r"(?m)^    1\.1 +30 +9 +9 .*loops\.cu: for \(int i = 0")
        self.assertEqual(json.loads(run("--json")[1])["sm_90"]["loops: nested"]["loops"]["1"]["slots"], 10)


if __name__ == "__main__":
    unittest.main()
