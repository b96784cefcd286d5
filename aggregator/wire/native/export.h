/* What a shared library shows to ctypes. */
#ifndef TESTBED_EXPORT_H
#define TESTBED_EXPORT_H

#if defined(__GNUC__)
#define TB_EXPORT __attribute__((visibility("default")))
#else
#define TB_EXPORT
#endif

#endif
