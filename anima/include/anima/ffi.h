/* Types of the elements of arrays that C has no type for, for functions that Anima calls.

   A function takes and gives plain pointers to row-major arrays, and numbers:

       void scale(const float *x, float *out, int64_t x_size, double by);

   Pointers to constants are operands, other pointers results, both in order. A number named x_size, x_ndim or x_dim0
   is a size of the array x; const int64_t *x_shape is all of them. Other numbers are attributes of the call. It may
   run on any thread, and several times at once; it must not call Python. */

#ifndef ANIMA_FFI_H
#define ANIMA_FFI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t float16;   /* IEEE binary16, as bits */
typedef uint16_t bfloat16;  /* the high half of a float, as bits */

#endif
