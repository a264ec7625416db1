/* AES-256 in counter mode, two blocks in a register: what keystream.py otherwise has OpenSSL do,
 * at twice the speed. For processors with VAES alone. The key's schedule is made anew in each call
 * and wiped at its end. No branch and no address depends on a key. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

#if defined(__x86_64__)
#include <immintrin.h>

#define AES __attribute__((target("aes,sse4.1")))
#define VAES __attribute__((target("vaes,aes,avx2")))

/* Rounds of AES-256, bytes of a block, and registers of two blocks that are under way at once. */
enum { ROUNDS = 14, BLOCK_BYTES = 16, LANES = 8, LANE_BYTES = 2 * BLOCK_BYTES };

/* A round key's words, each xored into all that follow it. */
AES static inline __m128i folded(__m128i key)
{
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_slli_si128(key, 8));
}

/* The next two round keys (FIPS 197, section 5.2); the processor takes its constants from the code. */
#define NEXT_EVEN(i, constant)                                                                     \
    keys[i] = _mm_xor_si128(                                                                       \
        folded(keys[(i) - 2]),                                                                     \
        _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[(i) - 1], constant), 0xFF))
#define NEXT_ODD(i)                                                                                \
    keys[i] = _mm_xor_si128(folded(keys[(i) - 2]),                                                 \
                            _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[(i) - 1], 0), 0xAA))

AES static void expand(const uint8_t *key, __m128i keys[ROUNDS + 1])
{
    keys[0] = _mm_loadu_si128((const __m128i *)key);
    keys[1] = _mm_loadu_si128((const __m128i *)(key + BLOCK_BYTES));
    NEXT_EVEN(2, 0x01);
    NEXT_ODD(3);
    NEXT_EVEN(4, 0x02);
    NEXT_ODD(5);
    NEXT_EVEN(6, 0x04);
    NEXT_ODD(7);
    NEXT_EVEN(8, 0x08);
    NEXT_ODD(9);
    NEXT_EVEN(10, 0x10);
    NEXT_ODD(11);
    NEXT_EVEN(12, 0x20);
    NEXT_ODD(13);
    NEXT_EVEN(14, 0x40);
}

/* The counter's upper 64 bits are zero: no stream is 2^68 bytes long. */
VAES static inline __m256i counters(uint64_t block)
{
    return _mm256_set_epi64x((long long)__builtin_bswap64(block + 1), 0,
                             (long long)__builtin_bswap64(block), 0);
}

VAES static inline void encrypt(const __m256i keys[ROUNDS + 1], uint64_t block, __m256i state[LANES])
{
    for (int lane = 0; lane < LANES; lane++)
        state[lane] = _mm256_xor_si256(counters(block + 2 * (uint64_t)lane), keys[0]);
    for (int round = 1; round < ROUNDS; round++)
        for (int lane = 0; lane < LANES; lane++)
            state[lane] = _mm256_aesenc_epi128(state[lane], keys[round]);
    for (int lane = 0; lane < LANES; lane++)
        state[lane] = _mm256_aesenclast_epi128(state[lane], keys[ROUNDS]);
}

/* Bytes start to start + length of AES-256-CTR's stream under the 32 bytes of key, from counter 0. */
VAES EXPORTED void precad_keystream_vaes(const uint8_t *key, uint64_t start, uint8_t *out,
                                         size_t length)
{
    __m128i narrow[ROUNDS + 1];
    __m256i keys[ROUNDS + 1], state[LANES];
    expand(key, narrow);
    for (int round = 0; round <= ROUNDS; round++)
        keys[round] = _mm256_broadcastsi128_si256(narrow[round]);
    uint64_t block = start / BLOCK_BYTES;
    size_t skipped = start % BLOCK_BYTES;
    while (length) {
        encrypt(keys, block, state);
        if (!skipped && length >= sizeof state) {
            for (int lane = 0; lane < LANES; lane++)
                _mm256_storeu_si256((__m256i *)(out + lane * LANE_BYTES), state[lane]);
            out += sizeof state;
            length -= sizeof state;
        } else {
            size_t left = sizeof state - skipped, taken = length < left ? length : left;
            memcpy(out, (const uint8_t *)state + skipped, taken);
            out += taken;
            length -= taken;
            skipped = 0;
        }
        block += sizeof state / BLOCK_BYTES;
    }
    memset(narrow, 0, sizeof narrow);
    memset(keys, 0, sizeof keys);
    memset(state, 0, sizeof state);
    /* So that no compiler leaves the wiping out. */
    __asm__ volatile("" : : "r"(narrow), "r"(keys), "r"(state) : "memory");
}
#endif

/* 1 where this processor can run what is above. */
EXPORTED int precad_keystreams(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("vaes") && __builtin_cpu_supports("aes") &&
           __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}
