/* What the kernels on AMX tiles share. Included by kern_*_amx.c alone, inside their ISA. */
#ifndef ENGINE_CPU_AMX_H
#define ENGINE_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

#define AMX_TILE 1024 /* bytes */
/* The compiler does not know that a tile load reads memory, nor that a store writes it. */
#define AMX_BARRIER(p) __asm__ volatile("" : : "r"(p) : "memory")

struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles 0 to 5 of `rows` rows (sums and left factors), 6 and 7 of 16 (right factors). */
static inline void amx_open(int rows)
{
    struct amx_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? rows : 16);
        t.row_bytes[i] = 64;
    }
    AMX_BARRIER(&t);
    _tile_loadconfig(&t);
}

/* 16 floats, zeros behind the first n. */
static inline __m512 amx_load_n(const float *p, int n)
{
    return n >= 16  ? _mm512_loadu_ps(p)
           : n <= 0 ? _mm512_setzero_ps()
                    : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

/* Words 0, 16, 1, 17, ...: two rows of 16 as pairs. */
static inline __m512i amx_pair_order(void)
{
    uint16_t order[32];
    for (int i = 0; i < 32; i++)
        order[i] = (uint16_t)(i / 2 + (i & 1) * 16);
    return _mm512_loadu_si512(order);
}

#endif
