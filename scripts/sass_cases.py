"""Cases of sass_cost.py: what a block of a kernel computes, how often its loops run, and the devices."""

from dataclasses import dataclass, field

STATUS = "not confirmed on hardware"

# Instructions that a scheduler issues per cycle, assumed for all kernels: dependent instructions, barriers and loads
# take the other cycles.
ISSUED_PER_CYCLE = 0.6


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

# Sources that the case does not run: other maps, rows without 16-byte accesses, masks, documents, lost pairs.
NO_VECTORS = (r"pack_bf16\(to_compute\(at\[2 \* i\]\)", 0)
NO_ENTRIES = (r": if \(exists\) read_entries|: target\.put\(row, at \+ e", 0)
OTHER_PROJECTIONS = (r": if \(form == (rectified|stretched)_projection\)", 0)
DOCUMENTS = (r"const int start = run_start\[end - 1\]|: return \{start > first", 0)


def weighted(in_code, in_code_80):
    """The compiler makes two versions of some of these, for the forms "logarithms" and "values". 64 of the `in_code`
    exponentials run."""
    return (r"const float e = gpu_exp_fast\(\(p\.values", by(64 / in_code, 64 / in_code_80))


OF_VALUES = (r": return p\.values \? feature \* e : e", 0)

# The warp's keys that its queries see: 1 to 4 of 4 blocks of 16.
VISIBLE = (1 + 2 + 3 + 4) / 16

FORWARD = [
    NO_VECTORS,
    NO_ENTRIES,
    DOCUMENTS,
    weighted(128, 128),
    OF_VALUES,
    (r": while \(true\)", 0),
    (r": if \(has_bad && ", 1 / 8),  # the first condition alone
    (r": const float weight = lost >> slot & 1u \? gpu_exp_fast", 1 / 4),
    (r": store_vector\(static_cast<float\*>\(out\.output\)", 0),
    (r": (normal\(\)\.b\(8 \* n, 16 \* k, b\)|multiply\(products\[n( \+ 1)?\], a, b\[[01]\]\));", VISIBLE),
    (r": __device__ __forceinline__ void add_pairs\(", VISIBLE),
]
CHUNKS_OF_BLOCK = (r"for \(int first = begin", CHUNKS)
VALUES = [
    (r"for \(int i = [^\n]*i < fused_chunk \* vectors", 4),
    (r"for \(int i = [^\n]*i < fused_chunk \* pairs", 16 / 4),
    (r"for \(int column = [^\n]*column < width\(\)", 0),
]
FIRST_DIRECTIONS = (
    r"for \(int i = [^\n]*i < fused_tile \* vectors.*if constexpr \(Projected\) load_directions\(",
    (0, 1),
)
DIRECTIONS = (r"for \(int i = [^\n]*i < fused_tile \* vectors", 1)
PROJECTION = (r"for \(int column = 0; column < p\.d_padded", 2)
ROW_TERMS = (r"for \(int column = 8 \* t; column < p\.d; ", 1)


def start_loops(features):
    """Loads of the state before a segment."""
    return [
        (r"for \(int i = [^\n]*i < p\.m_padded \* width", (0, features * 64 / 128 / 4)),
        (r"for \(int f = [^\n]*f < p\.m_padded; f \+= fused_threads", (features / 128, 0)),
    ]


STATES = [
    (r"for \(int i = [^\n]*i < fused_chunk \* vectors", 4),
    (r"for \(int turn = 0", CHUNKS),
]
SPLIT_STATES = [NO_VECTORS, NO_ENTRIES, weighted(128, 128), OF_VALUES]
RUNS = (r": while \(until > first", 0)


def gradient_loops(tiles, tiles_80):
    """Loops of a sweep. `tiles`: feature tiles of a block, the average where they differ."""
    return [
        (r"for \(int i = [^\n]*i < tiles\(\) \* fused_tile \* p\.d_value", by((0, 8 * tiles), (0, 8 * tiles_80))),
        (r"for \(int f = [^\n]*f < tiles\(\) \* fused_tile", by((tiles / 2, 0), (tiles_80 / 2, 0))),
        (r"for \(int i = [^\n]*i < fused_chunk \* vectors", 4),
        (r"for \(int turn = 0", CHUNKS),
        (r"for \(int i = lane; i < 16 \* at\.ld_inputs", 16 * 72 / 32 / 4),
        (r"for \(int tile = 0", by(tiles, tiles_80)),
        (r"for \(int c = 0; c < fused_chunk", 4 * VISIBLE),
        (r"for \(int (k|width|c) = 0; (k|width|c) < p\.(d_value|d_padded)", 4),
        (r"for \(int i = lane; (d_vector\.data && )?i < 16 \* \(p\.d(_value)? / 8\)", 4),
        (r"for \(int slice = 0", 1),
    ]


FIRST_CHUNK = (r"^[^\n]*\n.*: if \(at\.stages == 1 \|\| turn == 0\)", by(1 / CHUNKS, 1))
SHARED = (r": if \(!shares_output\(\)\)", 0)  # one tile: gradients of keys and values share memory
CLEARED = (r"for \(int i = lane; i < 16 \* at\.ld_d_vectors", 16 * 72 / 32 / 16)
SWEEP = [
    NO_VECTORS,
    NO_ENTRIES,
    OF_VALUES,
    (r": const float factor = visible && !lost \?", 1 / 2),  # two versions, too
    (r": directly\(turn, first", 0),
    (r": const float by = !p\.values \? e :", 1 / 8),  # the condition alone
    (r": if \(target\.parts == nullptr\) return store_gradient", 0),
]
# elu1 reads entries of rows instead of products with a random projection.
ELU1 = [
    (r": if \(form == relu\) return body|: body\(std::integral_constant<FusedForm, softmax>", 0),
    (r": if \(!Projected && p\.form == FusedForm::softmax\)", 0),
    (
        r": const auto four = load_vector<4>\(at \+ 4|: entries\[i\] = at\[i\]|int j = 0; j < 4; \+\+j\) entries",
        0,
    ),
]
SOFTMAX_GRADIENT = (r": gpu_exp_fast\(x\[e\] - own_terms", 0)
OPRF = (r": value = gpu_fma\(u, head\.factor, gpu_fma", 0)

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
    Case(
        "favor_positive forward",
        r": fused_outputs<true, true>",
        warps=4,
        token_heads=TOKENS,
        bytes=520,
        loops=[
            *start_loops(256),
            FIRST_DIRECTIONS,
            DIRECTIONS,
            *VALUES,
            CHUNKS_OF_BLOCK,
            ROW_TERMS,
            (r"for \(int tile = 0", 4),
            PROJECTION,
        ],
        parts=[
            *FORWARD,
            OTHER_PROJECTIONS,
            OPRF,
            (r"^[^\n]*\n.*: if \(tile == 0( && p\.causal)?\)", 1 / 4),
            # One stage where two blocks share a multiprocessor.
            (r"^[^\n]*\n.*: if \(at\.stages == 1\) \{", by(1, 0)),
            (r": if \(((p\.causal|goes_on) && at\.stages > 1|more && !here)\)", by(0, 1)),
        ],
    ),
    Case(
        "favor_positive sums of keys",
        r": fused_local_states<true, true, true>",
        warps=4,
        token_heads=TOKENS / 4,
        bytes=256,
        loops=[*STATES, FIRST_DIRECTIONS, ROW_TERMS, PROJECTION],
        parts=[*SPLIT_STATES, DOCUMENTS, OTHER_PROJECTIONS, OPRF],
    ),
    Case(
        "favor_positive sums of queries",
        r": fused_local_states<true, true, false>",
        warps=4,
        token_heads=TOKENS / 4,
        bytes=268,
        loops=[*STATES, FIRST_DIRECTIONS, PROJECTION],
        parts=[*SPLIT_STATES, RUNS, OTHER_PROJECTIONS, OPRF],
    ),
    Case(
        "favor_positive query sweep",
        r": fused_gradients<true, true, false>",
        warps=4,
        token_heads=by(TOKENS * 2 / 4, TOKENS),
        bytes=by(1900, 900),
        loops=[*gradient_loops(2, 4), FIRST_DIRECTIONS, DIRECTIONS, ROW_TERMS, PROJECTION],
        parts=[
            *SWEEP,
            weighted(96, 96),
            OTHER_PROJECTIONS,
            OPRF,
            DOCUMENTS,
            (r": if \(more && !here\)", by(1 / CHUNKS / 2, 1)),
            (r": if \(tile == 0 && at\.stages > 1", 0),
        ],
    ),
    Case(
        "favor_positive key sweep",
        r": fused_gradients<true, true, true>",
        warps=4,
        token_heads=by(TOKENS / 4, TOKENS * 2 / 4),  # sm_80: three tiles and one
        bytes=by(4900, 2830),
        loops=[*gradient_loops(1, 2), FIRST_DIRECTIONS, DIRECTIONS, ROW_TERMS, PROJECTION, CLEARED],
        parts=[
            *SWEEP,
            weighted(129, 121),
            OTHER_PROJECTIONS,
            OPRF,
            RUNS,
            (r": if \(more && !here\)", by(0, 1)),
            FIRST_CHUNK,
            (r": if \(!shares_output\(\)\)", by(0, 1)),
            (r": if \(shares_output\(\)\)", by(1, 0)),
            (r": if \(tile == 0 && at\.stages > 1", by(1, 0)),
        ],
    ),
    Case(
        "elu1 forward",
        r": fused_outputs<true, false>",
        warps=4,
        token_heads=TOKENS,
        bytes=520,
        loops=[*start_loops(64), *VALUES, CHUNKS_OF_BLOCK, (r"for \(int tile = 0", 1)],
        parts=[*FORWARD, *ELU1, (r"^[^\n]*\n.*: if \(at\.stages == 1\) \{", 0)],
    ),
    Case(
        "elu1 sums of keys",
        r": fused_local_states<true, false, true>",
        warps=4,
        token_heads=TOKENS,
        bytes=256,
        loops=STATES,
        parts=[*SPLIT_STATES, DOCUMENTS, *ELU1],
    ),
    Case(
        "elu1 sums of queries",
        r": fused_local_states<true, false, false>",
        warps=4,
        token_heads=TOKENS,
        bytes=268,
        loops=STATES,
        parts=[*SPLIT_STATES, RUNS, *ELU1],
    ),
    Case(
        "elu1 query sweep",
        r": fused_gradients<true, false, false>",
        warps=4,
        token_heads=TOKENS,
        bytes=900,
        loops=gradient_loops(1, 1),
        parts=[*SWEEP, weighted(96, 96), DOCUMENTS, *ELU1, SOFTMAX_GRADIENT, FIRST_CHUNK],
    ),
    Case(
        "elu1 key sweep",
        r": fused_gradients<true, false, true>",
        warps=4,
        token_heads=TOKENS,
        bytes=780,
        loops=[*gradient_loops(1, 1), CLEARED],
        parts=[*SWEEP, weighted(113, 125), RUNS, *ELU1, SOFTMAX_GRADIENT, FIRST_CHUNK, SHARED],
    ),
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
            (r": if \(!whole && !\(", None),
            (r"^[^\n]*\n.*: if \(kept && !tile\.is_full\(\)\)", 0),
        ],
    ),
    softmax_case(
        "softmax key and value gradient",
        r": softmax_key_gradient_mma<64, true, true>",
        rows="keys",
        tile=32,
        bytes=776,
        loops=[(r"for \(int i = 0; i < queries; i \+= 16", 2)],
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
