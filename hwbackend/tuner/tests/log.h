/* What NCCL's logger prints here. */
#include <stdarg.h>
#include <stdio.h>

static void print_log(int level, const char *format, va_list values) {
  fprintf(stderr, "log %d ", level);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
}
