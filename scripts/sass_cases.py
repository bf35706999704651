"""Cases of sass_cost.py: what a block of a kernel computes, how often its loops run, and the devices."""

from dataclasses import dataclass, field

STATUS = "fitted to an H200"

# Instructions that a scheduler issues per cycle: 0.32 to 0.43 on an H200 (docs/internals/kernel_cost.md#measured).
# Dependent instructions, barriers and loads take the other cycles.
ISSUED_PER_CYCLE = 0.35


@dataclass(frozen=True)
class Device:
    """Rates per cycle of a multiprocessor; docs/internals/kernel_cost.md gives their sources."""

    name: str
    architecture: str
    multiprocessors: int
    clock: float  # Hz
    mma: float  # multiply-accumulates of mma.sync, bfloat16
    wgmma: float  # of wgmma
    bandwidth: float  # bytes per second
    schedulers: int = 4
    exponentials: int = 16
    wavefronts: int = 1  # of shared memory, 128 bytes each

    def times(self, figures):
        """Picoseconds that each resource needs for what one token of a head takes."""
        cycles = {
            "issue": figures["slots"] / (self.schedulers * ISSUED_PER_CYCLE),
            "products": figures["mma"] / self.mma + (figures["wgmma"] / self.wgmma if self.wgmma else 0),
            "exponentials": figures["exp"] * 32 / self.exponentials,
            "shared": figures["wavefronts"] / self.wavefronts,
        }
        found = {name: amount / (self.multiprocessors * self.clock) * 1e12 for name, amount in cycles.items()}
        return {**found, "memory": figures["bytes"] / self.bandwidth * 1e12}


DEVICES = (
    Device("H100 SXM", "sm_90", 132, 1.83e9, 0.62 * 2048, 2048, 3.35e12),
    Device("A100 SXM 80 GB", "sm_80", 108, 1.41e9, 1024, 0, 2.039e12),
)


@dataclass(frozen=True)
class Case:
    """Numbers may be dictionaries by architecture."""

    name: str
    kernel: str  # regular expression for "file: kernel"
    warps: int  # of a block
    token_heads: object  # tokens times heads that a block computes
    bytes: object  # of device memory per token-head
    # (statement, trips): a regular expression for the loop's statement, the statements around it and the calls that
    # were inlined, or the loop's path ("2.1"). A list has the trips of several loops with this statement, in order of
    # addresses. The first rule that matches counts.
    loops: list = field(default_factory=list)
    # (statement, times): a share of the instructions that a statement, or one around it, has in the source. 0: they do
    # not run in this case. Without a rule both sides of a branch count.
    parts: list = field(default_factory=list)


def by(sm_90, sm_80):
    return {"sm_90": sm_90, "sm_80": sm_80}


# ---- fused linear attention: causal, bfloat16, 24 heads of 16,384 tokens of width 64: 11 segments of 24 chunks ----

CHUNKS = 24  # on an A100 9 segments of 29, which changes less than the tolerance
TOKENS = 64 * CHUNKS
# The warp's keys that its queries see: 1 to 4 of 4 blocks of 16.
VISIBLE = (1 + 2 + 3 + 4) / 16


def state_cases(name, form, tiles):
    """Sums of segments. A block has one feature tile of `tiles`."""
    return [
        Case(
            f"{name} sums of {side}",
            rf": fused_plain_states<\(FusedForm\){form}, 64, {keys}>",
            warps=4,
            token_heads=TOKENS / tiles,
            bytes=bytes,
            loops=[(r"for \(int turn = 0", CHUNKS)],
            parts=[(r": if \(rises\) raise\(", 1 / CHUNKS), (r": if \(moves\) \{", 0)],
        )
        for side, keys, bytes in (("keys", "true", 256), ("queries", "false", 268))
    ]


def plain_cases(name, form, tiles, tiles_80):
    """Forward and the sweeps. `tiles`: feature tiles of a block in the sweeps; forward has all."""
    projected = name == "favor_positive"
    rare = []  # scales that rise after the first tile, and lost pairs
    forward_loops = [(r"for \(int i = [^\n]*i < plain_sum_tile", (0, 8, 0, 0))]  # the second takes four at a time
    sweep_loops = [(r"for \(int i = [^\n]*i < Layout::sum_tile", (0, 8, 0, 0))]
    forward_rare, tile_loop = [], []
    if projected:
        forward_loops = [
            (r"for \(int i = [^\n]*i < plain_sum_tile", (8, 0)),
            (r"for \(int tile = 0; tile < tile_count\(\)", (4, 0)),
            (r"for \(int tile = 0", 4),
        ]
        sweep_loops = [
            (r"for \(int i = [^\n]*i < Layout::sum_tile", (8, 0)),
            (r"for \(int tile = 0", by(tiles, tiles_80)),
        ]
        first_tile = r"of_row = quad_max|gpu_fma\(of_row|= ::ceilf|= exp2_fast\(scale\[half\] - raised\)"
        rare = [(first_tile, by(1 / tiles, 1 / tiles_80)), (r": if \(__any_sync\(full_warp, has_lost\)\)", 0)]
        forward_rare = [
            (first_tile, 1 / 4),
            (r"^[^\n]*\n.*: if \(query\.raise\(", 0),
            (r"^[^\n]*\n.*: if \(keys_moved\)", 0),
            (r": while \(true\)", 0),
            (r"^[^\n]*\n.*: if \(tile == 0\) \{", 1 / 4),
            # One of two, where scales of tiles differ.
            (r"^[^\n]*\n.*: if \(scale > past_scale\)|: for \(int e = 0; e < 4; \+\+e\) features\[n\]\[e\] \*=", 1 / 2),
        ]
        tile_loop = [(r": if \(raised\) compute_pairs\(\)", by(1 / tiles, 1 / tiles_80))]
    written = [
        (r": if \(target\.parts == nullptr\) return store_gradient", by(1 / 2, 0 if tiles_80 < tiles else 1 / 2)),
        (r": store_vector\(to \+ i, Vector<float, 4>", by(0, 1 if tiles_80 < tiles else 0)),
    ]
    visible = r": __device__ __forceinline__ void (compute_pairs|gather_pairs)\("
    pairs = r"normal\(\)\.b_transposed\(16 \* k, 8 \* n, b\)|multiply\(gradients\[n( \+ 1)?\], pairs\[k\]"
    sweep_loops += [(r"for \(int turn = 0", CHUNKS), (r"for \(int i = lane; i < 16 \* 8 && target\.data", 4)]

    def sweep(side, keys, bytes):
        return Case(
            f"{name} {side} sweep",
            rf": fused_plain_gradients<\(FusedForm\){form}, {keys}>",
            warps=4,
            token_heads=by(TOKENS * tiles / (4 if projected else 1), TOKENS * tiles_80 / (4 if projected else 1)),
            bytes=bytes,
            loops=sweep_loops,
            parts=[*rare, *tile_loop, *written, (visible, VISIBLE), (pairs, VISIBLE)],
        )

    split = tiles_80 < tiles  # parts of gradients are written and added
    return [
        Case(
            f"{name} forward",
            rf": fused_plain_outputs<\(FusedForm\){form}, 64>",
            warps=4,
            token_heads=TOKENS,
            bytes=520,
            loops=[
                *forward_loops,
                (r"for \(int first = begin", CHUNKS),
                (r"for \(int column = [^\n]*column < width", 0),
                (r"for \(int j = 0; j < fused_chunk", 0),
                (r"for \(int c = g; c < 64", 0),
            ],
            parts=[
                *forward_rare,
                (r": if \(has_bad && ", 1 / 8),  # the first condition alone
                (r": (normal\(\)\.b\(8 \* n, 16 \* k, b\)|multiply\(products\[n( \+ 1)?\], a\[k\], b)", VISIBLE),
                (r": __device__ __forceinline__ void add_pairs\(|: each_pair\(", VISIBLE),
            ],
        ),
        sweep("query", "false", by(900, 1900 if split else 900)),
        sweep("key", "true", by(780, 2830 if split else 780)),
    ]


# ---- composed kernels: favor_trig with 256 features, causal, bfloat16, chunks of 64 tokens, one span ----

COMPOSED = [
    Case(
        "composed features (queries)",
        r": linear_attention_features_kernel<float, .*1>",
        warps=4,
        token_heads=16,
        bytes=2600,  # projections and |x|² read, features written, read and written in two parts
        loops=[
            (r"for \(int i = warp_index\(\); i < rows", 16 / 4),
            (r"for \(int j = .*for_columns\(n_projections", (0, 2)),  # the first is another map's
            # Loops over eight lane widths or four of 64 columns; shorter rows take the code after them.
            (r"for \(int j = .*row_dot\(x, x, d\)", 0),
            (r"for \(int j = .*row_dot\(features, features, c\.m\)", 1),
            (r"for \(int f = 2 \* lane_index\(\)", 1),
            (r"for \(int f = c\.m \+ lane_index\(\); f < c\.m_padded; f \+= 32\) features", 0),
        ],
        parts=[
            (r": if \(block_thread\(\) == 0\) c\.describe", 1 / 4),
            (r": M::features\(\*this|M::feature\(Lane|= M::feature\(numbers\(\), u, square", 0),
            (r": rotate_row\(|side\.rotated\.put", 0),
        ],
    ),
    Case(
        "composed chunks (weights)",
        r": linear_attention_weights_kernel<float, .*1>",
        warps=4,
        token_heads=16,
        bytes=1800,  # products read and weights written, features and z read
        loops=[
            (r"for \(int i = warp_index\(\); i < rows", 16 / 4),
            (r"for \(int j = visible\.first", 0),  # four lane widths; a chunk has two
            (r"for \(int j = c\.band_begin", 1),
            (r"for \(int j = .*row_dot\(a, state\.normalizer, c\.m\)", 0),  # sixteen lane widths
        ],
        parts=[
            (r": if \(visible\.soft < visible\.soft_end\)", 0),
            (r": for \(int direction = 0", 1 / 2),
        ],
    ),
    Case(
        "composed scan",
        r": linear_attention_scan_kernel<float>",
        warps=8,
        token_heads=16384 / 8,  # an eighth of a head's state
        bytes=3072,
        loops=[
            (r"for \(std::int64_t at = global_thread", 1),
            (r"for \(int k = 0; k < c\.chunks", 16384 / 64),
        ],
        parts=[(r"^[^\n]*\n.*: if \(f == 0\)", 1 / 64)],
    ),
]

# ---- softmax attention: causal, bfloat16, 16,384 tokens, width 64; a block has 128 rows ----

BLOCKS = 16384 // 128
FIND = (r"for \(first = from", 1)


def softmax_case(name, kernel, rows, tile, bytes, loops, parts):
    """`tile`: rows of the other side per step. A block meets half of them on average, and those of its own rows in
    part: parts without a share run for the latter alone."""
    tiles = (BLOCKS + 1) / 2 * 128 / tile
    return Case(
        name,
        kernel,
        warps=4,
        token_heads=128,
        bytes=bytes,
        loops=[
            (r"while \(position < range_end\)", 1),
            (rf"for \(int row = [^\n]*row < rows;.*load_tile<width, Tiles::{rows}>", 8 / 4),
            (r"for \(int row = ", tile / 16 / 4),
            (r"for \(int stage = 0", tiles),
            *loops,
        ],
        parts=[
            (r": for \(int i = thread; i < rows \* width; i \+= mma_threads\)", 0),
            # The loop over rows takes four at a time; the code for up to three more does not run.
            (r"^[^\n]*: for \(int row = thread / vectors", tile / 16 / (tile / 16 + 3)),
            (r": else of if \(width <= 128 && depth > width - 16\)", 0),
            (r": add\(std::false_type\{\}\)", 0),
            *((part, 128 / tile / tiles if share is None else share) for part, share in parts),
        ],
    )


CASES = [
    *plain_cases("favor_positive", form=1, tiles=4, tiles_80=2),
    *state_cases("favor_positive", form=1, tiles=4),
    *plain_cases("elu1", form=6, tiles=1, tiles_80=1),
    *state_cases("elu1", form=6, tiles=1),
    *COMPOSED,
    softmax_case(
        "softmax forward",
        r": softmax_forward_mma<64>",
        rows="queries",
        tile=64,
        bytes=516,
        loops=[FIND, (r"for \(int i = [^\n]*i < keys \* vectors", 64 * 8 / 128)],
        parts=[
            (r"^[^\n]*\n.*: if \(!whole\)|void hide_scores\(", None),
            (r"^[^\n]*\n.*: if \((non_finite|negate_queries)\)", 0),
        ],
    ),
    softmax_case(
        "softmax query gradient",
        r": softmax_query_gradient_mma<64>",
        rows="queries",
        tile=32,
        bytes=648,
        loops=[FIND],
        parts=[
            (r"^[^\n]*\n.*: if \(!whole\)|void hide_scores\(", None),
            (r"^[^\n]*\n.*: if \(kept && !tile\.is_full\(\)\)", 0),
        ],
    ),
    softmax_case(
        "softmax key and value gradient",
        r": softmax_key_gradient_mma<64, true, true>",
        rows="keys",
        tile=64,
        bytes=776,
        loops=[(r"for \(int i = 0; i < queries; i \+= 16", 4)],
        parts=[(r"^[^\n]*\n.*: if \(!whole\)", None), (r": for \(int j = [^\n]*j < count", 0)],
    ),
]
SUMS = {
    "favor_positive, forward and backward": (
        "favor_positive sums of keys",
        "favor_positive forward",
        "favor_positive sums of keys",
        "favor_positive query sweep",
        "favor_positive sums of queries",
        "favor_positive key sweep",
    ),
    "elu1, forward and backward": (
        "elu1 sums of keys",
        "elu1 forward",
        "elu1 sums of keys",
        "elu1 query sweep",
        "elu1 sums of queries",
        "elu1 key sweep",
    ),
    "softmax, forward and backward": (
        "softmax forward",
        "softmax query gradient",
        "softmax key and value gradient",
    ),
}
