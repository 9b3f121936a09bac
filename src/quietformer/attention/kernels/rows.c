/* The extension module quietformer.attention.kernels._rows: row-wise clipped softmax, forward and backward, in place.

   For each row r of contiguous float32 scores: p = softmax(scores), w = clamp(p - low[r], 0, high[r]).
   Each direction makes as few passes over memory as possible. compiled_rows.py registers the functions as torch operators;
   where this file was not compiled, or the CPU lacks AVX2, torch's own operators compute the same. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

/* One number per row (step 1), or one number for all rows (step 0); a null pointer stands for infinity. */
typedef struct {
    const float *values;
    int64_t step;
} Bound;

static inline float bound_of(Bound bound, int64_t row) { return bound.values ? bound.values[row * bound.step] : INFINITY; }

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define WORTH_THREADS 16384 /* with fewer values, starting threads costs more than it saves */

static int is_supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/* exp(x) for x <= 0, accurate to about one unit in the last place; 0 where the result would be subnormal, NaN for NaN.
   x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) is a polynomial of degree 7 with fitted coefficients. */
AVX2 static inline __m256 exp8(__m256 x) {
    const __m256 lowest = _mm256_set1_ps(-87.3f);
    __m256 bounded = _mm256_max_ps(lowest, x); /* the order of the arguments matters: this one keeps NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(bounded, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), bounded);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), _mm256_castsi256_ps(scaled));
}

AVX2 static inline float sum8(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

AVX2 static inline float max8(__m256 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/* Mask of the lanes of the last, incomplete vector that belong to the row. */
AVX2 static inline __m256i last_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Replaces a row of scores x by exp(x - max x) and returns one over their sum. */
AVX2 static float exponentials(float *row, int64_t k) {
    int64_t whole = k & ~(int64_t)7;
    __m256i rest = last_lanes(k - whole);
    __m256 infinite = _mm256_set1_ps(-INFINITY), top = infinite, other = infinite;
    int64_t i = 0;
    for (; i + 16 <= whole; i += 16) {
        top = _mm256_max_ps(top, _mm256_loadu_ps(row + i));
        other = _mm256_max_ps(other, _mm256_loadu_ps(row + i + 8));
    }
    top = _mm256_max_ps(top, other);
    if (i < whole) top = _mm256_max_ps(top, _mm256_loadu_ps(row + i));
    if (whole < k)
        top = _mm256_max_ps(
            top, _mm256_blendv_ps(infinite, _mm256_maskload_ps(row + whole, rest), _mm256_castsi256_ps(rest)));
    __m256 shift = _mm256_set1_ps(max8(top)), sum = _mm256_setzero_ps(), second = sum;
    for (i = 0; i + 16 <= whole; i += 16) {
        __m256 x = exp8(_mm256_sub_ps(_mm256_loadu_ps(row + i), shift));
        __m256 y = exp8(_mm256_sub_ps(_mm256_loadu_ps(row + i + 8), shift));
        _mm256_storeu_ps(row + i, x);
        _mm256_storeu_ps(row + i + 8, y);
        sum = _mm256_add_ps(sum, x);
        second = _mm256_add_ps(second, y);
    }
    for (; i < whole; i += 8) {
        __m256 x = exp8(_mm256_sub_ps(_mm256_loadu_ps(row + i), shift));
        _mm256_storeu_ps(row + i, x);
        sum = _mm256_add_ps(sum, x);
    }
    if (whole < k) {
        __m256 x = exp8(_mm256_sub_ps(_mm256_maskload_ps(row + whole, rest), shift));
        x = _mm256_and_ps(x, _mm256_castsi256_ps(rest));
        _mm256_maskstore_ps(row + whole, rest, x);
        sum = _mm256_add_ps(sum, x);
    }
    return 1.0f / sum8(_mm256_add_ps(sum, second));
}

AVX2 static inline __m256 clamp8(__m256 p, __m256 low, __m256 high) {
    return _mm256_min_ps(high, _mm256_max_ps(_mm256_setzero_ps(), _mm256_sub_ps(p, low)));
}

AVX2 static void forward_row(float *row, int64_t k, float low, float high) {
    __m256 part = _mm256_set1_ps(exponentials(row, k)), lows = _mm256_set1_ps(low), highs = _mm256_set1_ps(high);
    int64_t i = 0;
    for (; i + 8 <= k; i += 8)
        _mm256_storeu_ps(row + i, clamp8(_mm256_mul_ps(_mm256_loadu_ps(row + i), part), lows, highs));
    if (i < k) {
        __m256i rest = last_lanes(k - i);
        __m256 w = clamp8(_mm256_mul_ps(_mm256_maskload_ps(row + i, rest), part), lows, highs);
        _mm256_maskstore_ps(row + i, rest, w);
    }
}

/* Replaces the scores by p, fills in the weights w, and replaces the gradient of w by the gradient of the scores. */
AVX2 static void backward_row(float *row, float *weights, float *grad, int64_t k, float low, float high) {
    __m256 part = _mm256_set1_ps(exponentials(row, k)), lows = _mm256_set1_ps(low), highs = _mm256_set1_ps(high);
    __m256 zero = _mm256_setzero_ps(), sum = zero;
    for (int64_t i = 0; i < k; i += 8) {
        __m256i lanes = last_lanes(k - i);
        __m256 p = _mm256_mul_ps(_mm256_maskload_ps(row + i, lanes), part);
        __m256 w = clamp8(p, lows, highs);
        __m256 passes = _mm256_and_ps(_mm256_cmp_ps(w, zero, _CMP_GT_OQ), _mm256_cmp_ps(w, highs, _CMP_LT_OQ));
        __m256 g = _mm256_and_ps(_mm256_maskload_ps(grad + i, lanes), passes);
        sum = _mm256_fmadd_ps(p, g, sum);
        _mm256_maskstore_ps(row + i, lanes, p);
        _mm256_maskstore_ps(weights + i, lanes, w);
        _mm256_maskstore_ps(grad + i, lanes, g);
    }
    __m256 total = _mm256_set1_ps(sum8(sum));
    for (int64_t i = 0; i < k; i += 8) {
        __m256i lanes = last_lanes(k - i);
        __m256 g = _mm256_sub_ps(_mm256_maskload_ps(grad + i, lanes), total);
        _mm256_maskstore_ps(grad + i, lanes, _mm256_mul_ps(g, _mm256_maskload_ps(row + i, lanes)));
    }
}

AVX2 static void forward(float *scores, Bound low, Bound high, int64_t rows, int64_t k) {
#pragma omp parallel for schedule(static) if (rows * k > WORTH_THREADS)
    for (int64_t r = 0; r < rows; r++) forward_row(scores + r * k, k, bound_of(low, r), bound_of(high, r));
}

AVX2 static void backward(float *scores, float *weights, float *grad, Bound low, Bound high, int64_t rows, int64_t k) {
#pragma omp parallel for schedule(static) if (rows * k > WORTH_THREADS)
    for (int64_t r = 0; r < rows; r++)
        backward_row(scores + r * k, weights + r * k, grad + r * k, k, bound_of(low, r), bound_of(high, r));
}

#else /* never called: supported() is false */

static int is_supported(void) { return 0; }
static void forward(float *scores, Bound low, Bound high, int64_t rows, int64_t k) {}
static void backward(float *scores, float *weights, float *grad, Bound low, Bound high, int64_t rows, int64_t k) {}

#endif

/* Pointers arrive as Python integers (Tensor.data_ptr()). The caller has checked dtypes, sizes and contiguity, and keeps
   the tensors alive. */
static void *pointer(unsigned long long address) { return (void *)(uintptr_t)address; }

static PyObject *py_supported(PyObject *self, PyObject *unused) { return PyBool_FromLong(is_supported()); }

static PyObject *py_forward(PyObject *self, PyObject *args) {
    unsigned long long scores, low, high;
    long long low_step, high_step, rows, k;
    if (!PyArg_ParseTuple(args, "KKLKLLL", &scores, &low, &low_step, &high, &high_step, &rows, &k)) return NULL;
    Bound lows = {pointer(low), low_step}, highs = {pointer(high), high_step};
    Py_BEGIN_ALLOW_THREADS forward(pointer(scores), lows, highs, rows, k);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *py_backward(PyObject *self, PyObject *args) {
    unsigned long long scores, weights, grad, low, high;
    long long low_step, high_step, rows, k;
    if (!PyArg_ParseTuple(args, "KKKKLKLLL", &scores, &weights, &grad, &low, &low_step, &high, &high_step, &rows, &k))
        return NULL;
    Bound lows = {pointer(low), low_step}, highs = {pointer(high), high_step};
    Py_BEGIN_ALLOW_THREADS backward(pointer(scores), pointer(weights), pointer(grad), lows, highs, rows, k);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, "Whether this CPU can run the functions (AVX2 and FMA)."},
    {"forward", py_forward, METH_VARARGS, "forward(scores, low, low_step, high, high_step, rows, keys): scores become weights."},
    {"backward", py_backward, METH_VARARGS,
     "backward(scores, weights, grad, low, low_step, high, high_step, rows, keys): grad becomes that of the scores."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", "Row-wise clipped softmax.", -1, methods};

PyMODINIT_FUNC PyInit__rows(void) { return PyModule_Create(&definition); }
