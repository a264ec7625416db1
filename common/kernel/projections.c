/* Projections of 64-bit words on rows of −1, 0 and 1, by what the processor has; and, at the end,
 * the pass over a body that makes the words which are projected.
 *
 * All projections compute the same, as __init__.py says: z[r][0] += Σ entry(r, i)·low(words[i]) and
 * z[r][1] += Σ entry(r, i)·high(words[i]), of the words' halves of 32 bits. z[0] + 2^32·z[1] is the
 * projection in the ring as it is in the field. The masks are read where the keystream left them:
 * for each block of 64 words and each row two 64-bit masks u, v, little-endian; an entry is a bit
 * of u minus the same bit of v.
 *
 * The vector kernels multiply bytes. A word is the sum of its 8 bytes (limbs) times 2^(8l), so a
 * row's inner product is that of 8 sums of bytes times −1, 0 or 1, which the processor makes 32
 * or 64 at a time. No branch and no address depends on words.
 *
 * No Python in here: the library is loaded by __init__.py, which checks lengths before it calls.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* Words, and their bytes, of a block; bytes of a row's two masks; bytes of a word. */
enum { BLOCK = 64, BLOCK_BYTES = 512, MASK_BYTES = 16, LIMBS = 8 };

#define LOW 0xFFFFFFFFULL

/* By memcpy: pieces of a message may begin at any byte. */
static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* By subset sums: a table holds the sums of all 256 subsets of 8 words, and a byte of a mask says
 * which one a row takes. For any processor, whatever its byte order. */
EXPORTED void precad_halves_c(const uint8_t *words, const uint8_t *masks, size_t blocks, size_t k,
                               uint64_t *z)
{
    uint64_t subset[256][2];
    subset[0][0] = subset[0][1] = 0;
    for (size_t block = 0; block < blocks; block++) {
        const uint8_t *of_block = masks + block * k * MASK_BYTES;
        for (size_t byte = 0; byte < 8; byte++) {
            for (size_t bit = 0; bit < 8; bit++) {
                uint64_t word = word_at(words + block * BLOCK_BYTES + (8 * byte + bit) * 8);
                size_t half = (size_t)1 << bit;
                for (size_t without = 0; without < half; without++) {
                    subset[half + without][0] = subset[without][0] + (word & LOW);
                    subset[half + without][1] = subset[without][1] + (word >> 32);
                }
            }
            for (size_t row = 0; row < k; row++) {
                const uint8_t *uv = of_block + row * MASK_BYTES + byte;
                z[2 * row] += subset[uv[0]][0] - subset[uv[8]][0];
                z[2 * row + 1] += subset[uv[0]][1] - subset[uv[8]][1];
            }
        }
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))

/* Words that are cut into limbs together: their limbs (16 KiB) stay in L1 while all rows use them. */
enum { TILE_BLOCKS = 32, TILE = TILE_BLOCKS * BLOCK };

/* Two words' bytes in turn: both bytes of limb 0, both of limb 1 … */
#define PAIRED 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15

/* 32 words: the 32 bytes of limb 0, then those of limb 1 …, each less 128 (see below). */
AVX2 static inline void split_avx2(const uint8_t *words, uint8_t *limbs)
{
    const __m256i paired = _mm256_setr_epi8(PAIRED, PAIRED);
    const __m256i less_128 = _mm256_set1_epi8((char)0x80);
    __m256i pair[8], four[8], eight[8];
    /* Words 0 to 15 in the low half of the registers, 16 to 31 in the high one, so that
     * interleaving, which never crosses the halves, ends in the words' own order. */
    for (int i = 0; i < 8; i++) {
        __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(words + 16 * i)));
        __m128i high = _mm_loadu_si128((const __m128i *)(words + 128 + 16 * i));
        pair[i] = _mm256_shuffle_epi8(_mm256_inserti128_si256(low, high, 1), paired);
    }
    /* four[i]: limbs 0 to 3 of words 4i to 4i + 3; four[4 + i]: limbs 4 to 7. */
    for (int i = 0; i < 4; i++) {
        four[i] = _mm256_unpacklo_epi16(pair[2 * i], pair[2 * i + 1]);
        four[4 + i] = _mm256_unpackhi_epi16(pair[2 * i], pair[2 * i + 1]);
    }
    /* eight[4h + 2p + i]: limbs 4h + 2p and the next, of words 8i to 8i + 7. */
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 2; i++) {
            __m256i first = four[4 * h + 2 * i], second = four[4 * h + 2 * i + 1];
            eight[4 * h + i] = _mm256_unpacklo_epi32(first, second);
            eight[4 * h + 2 + i] = _mm256_unpackhi_epi32(first, second);
        }
    for (int p = 0; p < 4; p++) {
        __m256i even = _mm256_unpacklo_epi64(eight[2 * p], eight[2 * p + 1]);
        __m256i odd = _mm256_unpackhi_epi64(eight[2 * p], eight[2 * p + 1]);
        _mm256_store_si256((__m256i *)(limbs + 64 * p), _mm256_xor_si256(even, less_128));
        _mm256_store_si256((__m256i *)(limbs + 64 * p + 32), _mm256_xor_si256(odd, less_128));
    }
}

/* 32 bits of a mask, bit i in byte i; no other bit is set. */
AVX2 static inline __m256i spread(const uint8_t *mask, __m256i bits)
{
    const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                              0x0303030303030303);
    int32_t half;
    memcpy(&half, mask, sizeof half);
    return _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(half), places), bits);
}

/* A row's entries for 32 words, each more by 1: 0, 1 or 2. */
AVX2 static inline __m256i entries_avx2(const uint8_t *uv)
{
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    __m256i u = _mm256_min_epu8(spread(uv, bits), _mm256_set1_epi8(1));
    __m256i not_v = _mm256_cmpeq_epi8(spread(uv + 8, bits), _mm256_setzero_si256());
    return _mm256_sub_epi8(u, not_v);
}

/* Adds products to a row's 8 sums. */
AVX2 static inline __attribute__((always_inline)) void add_products(__m256i sums[LIMBS],
                                                                    const uint8_t *limbs,
                                                                    __m256i entries)
{
    for (int l = 0; l < LIMBS; l++) {
        __m256i limb = _mm256_load_si256((const __m256i *)(limbs + 32 * l));
        sums[l] = _mm256_add_epi16(sums[l], _mm256_maddubs_epi16(entries, limb));
        /* One sum after the other: else the compiler keeps more of them than there are registers. */
        __asm__("" : "+x"(sums[l]));
    }
}

/* Adds to both halves Σ of 4 sums of 16-bit numbers, the l-th times 2^(8l). */
AVX2 static inline void total_avx2(const __m256i sums[LIMBS], uint64_t halves[2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i wide[LIMBS];
    for (int l = 0; l < LIMBS; l++)
        wide[l] = _mm256_madd_epi16(sums[l], ones);
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(wide[0], wide[1]),
                                    _mm256_hadd_epi32(wide[2], wide[3]));
    __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(wide[4], wide[5]),
                                     _mm256_hadd_epi32(wide[6], wide[7]));
    int32_t parts[2 * LIMBS];
    _mm256_storeu_si256((__m256i *)parts, low);
    _mm256_storeu_si256((__m256i *)(parts + 8), high);
    for (int l = 0; l < 4; l++) {
        halves[0] += (uint64_t)(int64_t)(parts[l] + parts[4 + l]) << (8 * l);
        halves[1] += (uint64_t)(int64_t)(parts[8 + l] + parts[12 + l]) << (8 * l);
    }
}

/* The processor multiplies a byte without a sign by one with a sign that stands in memory. So limbs
 * are taken less 128, and entries more by 1. With E = Σ entry, and K the half whose bytes are 128,
 *     Σ entry·half = Σ_l 2^(8l) Σ (entry + 1)(limb_l − 128) + K·E − Σ (half − K).
 * A 16-bit sum gains two products of at least −256 and less than 256 a step, and a tile has
 * 2·TILE_BLOCKS = 64 steps: at least −32,768 = −2^15. Wide sums have 16 of these. */
AVX2 EXPORTED void precad_halves_avx2(const uint8_t *words, const uint8_t *masks, size_t blocks,
                                       size_t k, uint64_t *z)
{
    const uint64_t each_128 = 0x80808080;
    _Alignas(64) uint8_t limbs[TILE * LIMBS];
    while (blocks) {
        size_t tile = blocks < TILE_BLOCKS ? blocks : TILE_BLOCKS;
        uint64_t less[2] = {0, 0};
        for (size_t at = 0; at < tile * BLOCK; at++) {
            uint64_t word = word_at(words + 8 * at);
            less[0] += (word & LOW) - each_128;
            less[1] += (word >> 32) - each_128;
        }
        for (size_t at = 0; at < tile * BLOCK; at += 32)
            split_avx2(words + 8 * at, limbs + 8 * at);
        for (size_t row = 0; row < k; row++) {
            __m256i sums[LIMBS];
            for (int l = 0; l < LIMBS; l++)
                sums[l] = _mm256_setzero_si256();
            const uint8_t *uv = masks + row * MASK_BYTES, *limb = limbs;
            int64_t entries = 0;
            for (size_t block = 0; block < tile; block++) {
                entries += __builtin_popcountll(word_at(uv)) - __builtin_popcountll(word_at(uv + 8));
                add_products(sums, limb, entries_avx2(uv));
                add_products(sums, limb + 32 * LIMBS, entries_avx2(uv + 4));
                uv += k * MASK_BYTES;
                limb += BLOCK * LIMBS;
            }
            total_avx2(sums, z + 2 * row);
            for (int half = 0; half < 2; half++)
                z[2 * row + half] += each_128 * (uint64_t)entries - less[half];
        }
        words += tile * BLOCK_BYTES;
        masks += tile * k * MASK_BYTES;
        blocks -= tile;
    }
}

/* Of four registers with limbs p, p + 2, p + 4, p + 6 of 16 words each: four with 64 words each. */
AVX512 static inline void gather(const __m512i from[4], uint8_t limbs[LIMBS][TILE], int p, size_t at)
{
    __m512i a = _mm512_shuffle_i64x2(from[0], from[1], 0x44);
    __m512i b = _mm512_shuffle_i64x2(from[0], from[1], 0xEE);
    __m512i c = _mm512_shuffle_i64x2(from[2], from[3], 0x44);
    __m512i d = _mm512_shuffle_i64x2(from[2], from[3], 0xEE);
    _mm512_store_si512(&limbs[p][at], _mm512_shuffle_i64x2(a, c, 0x88));
    _mm512_store_si512(&limbs[p + 2][at], _mm512_shuffle_i64x2(a, c, 0xDD));
    _mm512_store_si512(&limbs[p + 4][at], _mm512_shuffle_i64x2(b, d, 0x88));
    _mm512_store_si512(&limbs[p + 6][at], _mm512_shuffle_i64x2(b, d, 0xDD));
}

/* 64 words: their bytes, limb by limb, from place at on. */
AVX512 static void split_avx512(const uint8_t *words, uint8_t limbs[LIMBS][TILE], size_t at)
{
    static const uint8_t pairs[16] = {PAIRED};
    const __m512i paired = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)pairs));
    uint16_t order[32];
    for (int l = 0; l < LIMBS; l++)
        for (int i = 0; i < 4; i++)
            order[4 * l + i] = (uint16_t)(8 * i + l);
    const __m512i by_limb = _mm512_loadu_si512(order);
    /* eight[i]: limbs 0 to 7 of words 8i to 8i + 7. */
    __m512i eight[8], even[4], odd[4];
    for (int i = 0; i < 8; i++) {
        __m512i pair = _mm512_shuffle_epi8(_mm512_loadu_si512(words + 64 * i), paired);
        eight[i] = _mm512_permutexvar_epi16(by_limb, pair);
    }
    for (int i = 0; i < 4; i++) {
        even[i] = _mm512_unpacklo_epi64(eight[2 * i], eight[2 * i + 1]);
        odd[i] = _mm512_unpackhi_epi64(eight[2 * i], eight[2 * i + 1]);
    }
    gather(even, limbs, 0, at);
    gather(odd, limbs, 1, at);
}

/* A row's entries for 64 words: −1, 0 or 1. */
AVX512 static inline __m512i entries_avx512(const uint8_t *uv)
{
    const __m512i one = _mm512_set1_epi8(1);
    __m512i u = _mm512_maskz_mov_epi8(_cvtu64_mask64(word_at(uv)), one);
    return _mm512_mask_sub_epi8(u, _cvtu64_mask64(word_at(uv + 8)), u, one);
}

/* Σ of 4 sums of 32-bit numbers, the l-th times 2^(8l). */
AVX512 static inline uint64_t total_avx512(const __m512i sums[LIMBS / 2])
{
    __m512i total = _mm512_setzero_si512();
    for (int l = LIMBS / 2 - 1; l >= 0; l--) {
        __m512i even = _mm512_srai_epi64(_mm512_slli_epi64(sums[l], 32), 32);
        __m512i odd = _mm512_srai_epi64(sums[l], 32);
        total = _mm512_add_epi64(_mm512_slli_epi64(total, 8), _mm512_add_epi64(even, odd));
    }
    uint64_t parts[8], sum = 0;
    _mm512_storeu_si512(parts, total);
    for (int i = 0; i < 8; i++)
        sum += parts[i];
    return sum;
}

/* Adds to z the projections of a tile's words on one row or two.
 * A 32-bit sum gains four products of a byte and an entry a block, at most 1,020 in absolute
 * value, and a tile has TILE_BLOCKS = 32 blocks: at most 32,640 < 2^31. */
AVX512 static inline void project_rows(uint8_t limbs[LIMBS][TILE], const uint8_t *masks,
                                       size_t blocks, size_t stride, int rows, uint64_t *z)
{
    __m512i sums[2][LIMBS];
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < LIMBS; l++)
            sums[r][l] = _mm512_setzero_si512();
    for (size_t block = 0; block < blocks; block++, masks += stride) {
        __m512i entries[2];
        for (int r = 0; r < rows; r++)
            entries[r] = entries_avx512(masks + MASK_BYTES * r);
        for (int l = 0; l < LIMBS; l++) {
            __m512i limb = _mm512_load_si512(&limbs[l][block * BLOCK]);
            for (int r = 0; r < rows; r++)
                sums[r][l] = _mm512_dpbusd_epi32(sums[r][l], limb, entries[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        z[2 * r] += total_avx512(sums[r]);
        z[2 * r + 1] += total_avx512(sums[r] + LIMBS / 2);
    }
}

/* Here the byte without a sign is the limb and the one with a sign the entry: neither is moved, as
 * precad_halves_avx2 has to. */
AVX512 EXPORTED void precad_halves_avx512_vnni(const uint8_t *words, const uint8_t *masks,
                                                size_t blocks, size_t k, uint64_t *z)
{
    _Alignas(64) uint8_t limbs[LIMBS][TILE];
    while (blocks) {
        size_t tile = blocks < TILE_BLOCKS ? blocks : TILE_BLOCKS;
        for (size_t block = 0; block < tile; block++)
            split_avx512(words + block * BLOCK_BYTES, limbs, block * BLOCK);
        /* Two rows at a time: their 16 sums fit in the registers, and limbs are loaded once. */
        size_t row = 0;
        for (; row + 2 <= k; row += 2)
            project_rows(limbs, masks + row * MASK_BYTES, tile, k * MASK_BYTES, 2, z + 2 * row);
        if (row < k)
            project_rows(limbs, masks + row * MASK_BYTES, tile, k * MASK_BYTES, 1, z + 2 * row);
        words += tile * BLOCK_BYTES;
        masks += tile * k * MASK_BYTES;
        blocks -= tile;
    }
}
#endif

/* Makes the mask a into this server's share of x, in place: a itself, or b + a. Adds it to total
 * where there is one, and ⟨b, a⟩ and ⟨b, b⟩ to sums; all mod 2^64. One pass, for each of the
 * processor's instruction sets; b may begin at any byte. */
static inline __attribute__((always_inline)) void share_words(const uint8_t *b, uint64_t *a,
                                                              size_t words, int adds_b,
                                                              uint64_t *total, uint64_t *sums)
{
    uint64_t crossed = 0, squared = 0;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = word_at(b + 8 * i), mask = a[i];
        crossed += word * mask;
        squared += word * word;
        if (adds_b)
            a[i] = word + mask;
        if (total)
            total[i] += adds_b ? word + mask : mask;
    }
    sums[0] += crossed;
    sums[1] += squared;
}

EXPORTED void precad_share_c(const uint8_t *b, uint64_t *restrict a, size_t words, int adds_b,
                             uint64_t *restrict total, uint64_t *restrict sums)
{
    share_words(b, a, words, adds_b, total, sums);
}

#if defined(__x86_64__)
AVX2 EXPORTED void precad_share_avx2(const uint8_t *b, uint64_t *restrict a, size_t words,
                                     int adds_b, uint64_t *restrict total, uint64_t *restrict sums)
{
    share_words(b, a, words, adds_b, total, sums);
}

__attribute__((target("avx512f,avx512dq"))) EXPORTED void
precad_share_avx512_vnni(const uint8_t *b, uint64_t *restrict a, size_t words, int adds_b,
                         uint64_t *restrict total, uint64_t *restrict sums)
{
    share_words(b, a, words, adds_b, total, sums);
}
#endif

/* Which of the functions this processor can run: 1 for AVX2, 2 for AVX-512 VNNI, added up. */
EXPORTED int precad_kernels(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    return (avx2 ? 1 : 0) | (avx512 ? 2 : 0);
#else
    return 0;
#endif
}
