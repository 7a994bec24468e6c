// Whether a sanitizer is built in: it makes everything some ten times slower, and AddressSanitizer and ThreadSanitizer
// end the program where an allocation is too large, before it can be refused.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVROOF_TEST_SANITIZED 1
#elif defined(__has_feature)
#define KVROOF_TEST_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define KVROOF_TEST_SANITIZED 0
#endif
