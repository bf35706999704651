#pragma once
// Transposition of 16 × 16 words of 32 bits in registers of AVX-512. Include after <immintrin.h>.

namespace furlong::simd {

/// Transposes 16 × 16 words of 32 bits.
__attribute__((target("avx512f"))) inline void transpose_words(__m512i (&row)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // row[4 i + c]: column 4 l + c of rows 4 i to 4 i + 3, in lane l of 128 bits
    row[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    row[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(row[c], row[4 + c], 0x88),
                  b = _mm512_shuffle_i32x4(row[c], row[4 + c], 0xdd);
    const __m512i e = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0x88),
                  f = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, e, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(b, f, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(a, e, 0xdd);
    t[12 + c] = _mm512_shuffle_i32x4(b, f, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) row[i] = t[i];
}

}  // namespace furlong::simd
