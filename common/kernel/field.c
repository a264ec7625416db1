/* Arithmetic modulo p = 2^64 − 2^32 + 1, for the norm proof and for sums under it.
 *
 * All words are below p, in memory as the processor holds them. 2^64 = 2^32 − 1 and 2^96 = −1
 * modulo p, so a product of 128 bits is reduced by two subtractions and an addition. No branch and
 * no address depends on words. prime_field.py says what each function computes and checks lengths
 * before it calls.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))
#define P 0xFFFFFFFF00000001ULL
/* 2^64 mod p. */
#define FOLD 0xFFFFFFFFULL

__extension__ typedef unsigned __int128 wide;

/* The mask of all ones where the condition holds. */
static inline uint64_t when(int condition)
{
    return -(uint64_t)condition;
}

/* value mod p. */
static inline uint64_t reduced(wide value)
{
    uint64_t low = (uint64_t)value, high = (uint64_t)(value >> 64);
    uint64_t top = high >> 32, middle = high & FOLD;
    uint64_t sum = low - top;
    sum -= FOLD & when(low < top);
    uint64_t folded = (middle << 32) - middle;
    uint64_t result = sum + folded;
    result += FOLD & when(result < folded);
    return result - (P & when(result >= P));
}

/* a + b mod p. */
static inline uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;
    sum += FOLD & when(sum < a);
    return sum - (P & when(sum >= P));
}

/* a − b mod p. */
static inline uint64_t minus(uint64_t a, uint64_t b)
{
    return a - b - (FOLD & when(a < b));
}

/* a·b mod p. */
static inline uint64_t times(uint64_t a, uint64_t b)
{
    return reduced((wide)a * b);
}

/* A sum of products in 192 bits: up to 2^64 of them. */
typedef struct {
    uint64_t low, high, carry;
} Sum;

/* Adds a·b to the sum. */
static inline void add_product(Sum *sum, uint64_t a, uint64_t b)
{
    wide before = (wide)sum->high << 64 | sum->low;
    wide after = before + (wide)a * b;
    sum->carry += after < before;
    sum->low = (uint64_t)after;
    sum->high = (uint64_t)(after >> 64);
}

/* The sum mod p: 2^128 = (2^32 − 1)^2 = −2^32 modulo p. */
static inline uint64_t total(const Sum *sum)
{
    uint64_t result = reduced((wide)sum->high << 64 | sum->low);
    return minus(result, reduced((wide)sum->carry << 32));
}

/* out[i] = a[i] + b[i]. */
EXPORTED void precad_field_add(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = plus(a[i], b[i]);
}

/* out[i] = a[i] − b[i]. */
EXPORTED void precad_field_subtract(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = minus(a[i], b[i]);
}

/* out[i] = a[i]·b[i]. */
EXPORTED void precad_field_multiply(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = times(a[i], b[i]);
}

/* Σ over i of a[i]·b[i]. */
EXPORTED uint64_t precad_field_dot(const uint64_t *a, const uint64_t *b, size_t n)
{
    Sum sum = {0, 0, 0};
    for (size_t i = 0; i < n; i++)
        add_product(&sum, a[i], b[i]);
    return total(&sum);
}

/* out[i] += Σ over m of weights[m]·rows[m·columns + i]. */
EXPORTED void precad_field_combine(const uint64_t *rows, const uint64_t *weights, size_t count,
                                   size_t columns, uint64_t *out)
{
    enum { TOGETHER = 128 };
    for (size_t first = 0; first < columns; first += TOGETHER) {
        size_t width = columns - first < TOGETHER ? columns - first : TOGETHER;
        Sum sums[TOGETHER];
        for (size_t i = 0; i < width; i++)
            sums[i] = (Sum){out[first + i], 0, 0};
        for (size_t m = 0; m < count; m++)
            for (size_t i = 0; i < width; i++)
                add_product(&sums[i], weights[m], rows[m * columns + first + i]);
        for (size_t i = 0; i < width; i++)
            out[first + i] = total(&sums[i]);
    }
}

/* squares[m] += Σ over i of rows[m·columns + i]². */
EXPORTED void precad_field_squares(const uint64_t *rows, size_t count, size_t columns,
                                   uint64_t *squares)
{
    for (size_t m = 0; m < count; m++) {
        Sum sum = {squares[m], 0, 0};
        for (size_t i = 0; i < columns; i++)
            add_product(&sum, rows[m * columns + i], rows[m * columns + i]);
        squares[m] = total(&sum);
    }
}

/* In each column of rows [n][columns], values at the n-th roots of unity become the values, at
 * shift times these roots, of the same polynomial: to coefficients in bit-reversed order, times
 * scale (shift^j/n, in that order), and back. roots[j] and inverses[j] are ω^j and ω^−j, j < n/2. */
EXPORTED void precad_field_shift(uint64_t *rows, size_t n, size_t columns, const uint64_t *roots,
                                 const uint64_t *inverses, const uint64_t *scale)
{
    for (size_t half = n / 2, step = 1; half; half /= 2, step *= 2)
        for (size_t start = 0; start < n; start += 2 * half)
            for (size_t j = 0; j < half; j++) {
                uint64_t *a = rows + (start + j) * columns, *b = a + half * columns;
                uint64_t root = inverses[j * step];
                for (size_t i = 0; i < columns; i++) {
                    uint64_t x = a[i], y = b[i];
                    a[i] = plus(x, y);
                    b[i] = times(minus(x, y), root);
                }
            }
    for (size_t m = 0; m < n; m++)
        for (size_t i = 0; i < columns; i++)
            rows[m * columns + i] = times(rows[m * columns + i], scale[m]);
    for (size_t half = 1, step = n / 2; half < n; half *= 2, step /= 2)
        for (size_t start = 0; start < n; start += 2 * half)
            for (size_t j = 0; j < half; j++) {
                uint64_t *a = rows + (start + j) * columns, *b = a + half * columns;
                uint64_t root = roots[j * step];
                for (size_t i = 0; i < columns; i++) {
                    uint64_t x = a[i], y = times(b[i], root);
                    a[i] = plus(x, y);
                    b[i] = minus(x, y);
                }
            }
}

/* base to the power of exponent. */
static uint64_t power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, base = times(base, base))
        if (exponent & 1)
            result = times(result, base);
    return result;
}

/* The n values L_k(t) = ω^k·(t^n − 1)/(n·(t − ω^k)): what the value at ω^k of a polynomial of
 * degree below n has in its value at t. prefix has room for n words. One inversion for all. */
EXPORTED void precad_field_lagrange(uint64_t omega, size_t n, uint64_t t, uint64_t *prefix,
                                    uint64_t *weights)
{
    uint64_t point = 1, product = 1;
    for (size_t k = 0; k < n; k++, point = times(point, omega)) {
        prefix[k] = product;
        weights[k] = minus(t, point);
        product = times(product, weights[k]);
    }
    /* The last point times ω is 1 again; the points are taken backwards by ω^−1 = ω^(n−1). */
    uint64_t back = power(omega, n - 1), inverse = power(product, P - 2);
    uint64_t factor = times(minus(power(t, n), 1), power(n, P - 2));
    point = back;
    for (size_t k = n; k-- > 0; point = times(point, back)) {
        uint64_t of_difference = times(inverse, prefix[k]);
        inverse = times(inverse, weights[k]);
        weights[k] = times(times(point, factor), of_difference);
    }
}
