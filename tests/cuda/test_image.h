/* Rigs of the image kernels' tests: layouts and matrices in guarded device memory, with padding and alignment to choose.
 * Included by one program. */
#ifndef TESTS_CUDA_TEST_IMAGE_H
#define TESTS_CUDA_TEST_IMAGE_H

#include "cuda/image.h"
#include "tests/cuda/cuda_test.h"

#include <memory>

/* Segments of rows, or of maps when h and w are given. */
struct Layout {
    std::vector<int32_t> start{0}, chunk{0}, h, w;
    std::unique_ptr<Dev<int32_t>> d[4];
    struct cu_layout y = {};

    explicit Layout(const std::vector<int> &rows) : Layout(rows, {}, {})
    {
    }
    Layout(const std::vector<int> &maps_h, const std::vector<int> &maps_w)
        : Layout(product(maps_h, maps_w), maps_h, maps_w)
    {
    }
    int n_seg() const
    {
        return y.n_seg;
    }
    int rows(int s) const
    {
        return start[(size_t)s + 1] - start[(size_t)s];
    }
    int seg(int row) const
    {
        int s = 0;
        while (row >= start[(size_t)s + 1])
            s++;
        return s;
    }

  private:
    static std::vector<int> product(const std::vector<int> &a, const std::vector<int> &b)
    {
        std::vector<int> v;
        for (size_t i = 0; i < a.size(); i++)
            v.push_back(a[i] * b[i]);
        return v;
    }
    Layout(const std::vector<int> &rows, const std::vector<int> &maps_h,
           const std::vector<int> &maps_w)
        : h(maps_h.begin(), maps_h.end()), w(maps_w.begin(), maps_w.end())
    {
        for (int n : rows) {
            start.push_back(start.back() + n);
            chunk.push_back(chunk.back() + (n + CU_CHUNK_ROWS - 1) / CU_CHUNK_ROWS);
        }
        const std::vector<int32_t> *all[] = {&start, &chunk, &h, &w};
        for (int i = 0; i < 4; i++)
            d[i].reset(new Dev<int32_t>(all[i]->empty() ? std::vector<int32_t>{0} : *all[i]));
        y.n_seg = (int)rows.size();
        y.n_row = start.back();
        y.start = d[0]->p;
        y.chunk = d[1]->p;
        y.n_chunk = chunk.back();
        y.h = h.empty() ? nullptr : d[2]->p;
        y.w = h.empty() ? nullptr : d[3]->p;
    }
};

/* [rows, cols] with rows of ld elements, `shift` elements behind an aligned address; NaN where nothing was put. */
template <class T> struct Mat {
    int rows, cols, ld, shift;
    Dev<T> mem;
    Mat(int n, int c, int pad = 0, int off = 0)
        : rows(n), cols(c), ld(c + pad), shift(off),
          mem((size_t)(n ? (n - 1) * (c + pad) + c : 0) + (size_t)off)
    {
    }
    Mat(int n, int c, const std::vector<T> &v, int pad = 0, int off = 0) : Mat(n, c, pad, off)
    {
        std::vector<T> all(mem.n, ct_from<T>(NAN));
        for (int r = 0; r < n; r++)
            std::copy(v.begin() + (long)r * c, v.begin() + (long)(r + 1) * c,
                      all.begin() + (long)r * ld + shift);
        mem.set(all);
    }
    struct cu_mat m()
    {
        return {mem.p + shift, ld, sizeof(T) == 2 ? CU_BF16 : CU_F32, cols};
    }
    /* The values without padding, which nobody may have written. */
    std::vector<T> get()
    {
        std::vector<T> all = mem.get(), v;
        for (int i = 0; i < shift; i++)
            CT_CHECK(ct_double(all[(size_t)i]) != ct_double(all[(size_t)i]));
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < ld && (r < rows - 1 || k < cols); k++) {
                const T x = all[(size_t)(r * ld + k + shift)];
                if (k < cols)
                    v.push_back(x);
                else
                    CT_CHECK(ct_double(x) != ct_double(x));
            }
        return v;
    }
};

/* A result's name for ct_repeat: its case's numbers. */
static std::string key(std::initializer_list<int> v)
{
    std::string s;
    for (int i : v)
        s += std::to_string(i) + " ";
    return s;
}

template <class T> static std::vector<T> part(const std::vector<T> &v, int from, int n)
{
    return std::vector<T>(v.begin() + from, v.begin() + from + n);
}

#endif
