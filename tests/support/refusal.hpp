// A refusal: an Error of this code, with one line of text that says what was wrong.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/error.hpp"

namespace kvroof::test {

// `what` names the case; `said` must occur in the text.
template <typename Call>
void expect_refusal(ErrorCode code, const std::string& what, const Call& run, const std::string& said = "") {
  try {
    run();
    ADD_FAILURE() << what << ": accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_STREQ(error_name(error.code), error_name(code)) << what << ": " << text;
    EXPECT_GT(text.size(), 10u) << what;
    EXPECT_NE(text.find(said), std::string::npos) << what << " does not say '" << said << "': " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << what << ": one line";
  }
}

}  // namespace kvroof::test
